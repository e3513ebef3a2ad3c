"""Replays recorded patches: 330 of apimachinery v0.36.4's strategicpatch, 170 of evanphx/json-patch v4.13.

The documents are random but well-formed pods, deployments, services, nodes and service accounts. The patches
contain random directives, nulls and mistakes. Directives that apimachinery left in a result (and loses when it decodes
the result) were removed from the records. Of errors only the kind was recorded.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podkeeper.rules.patch import json_patch, merge, strategic
from podkeeper.rules.patch.errors import PatchConflict, PatchError

CASES: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data/patch_cases.json.gz").read_bytes())
)

OURS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "apply": lambda case: strategic.apply(case["original"], case["patch"], case["kind"]),
    "two_way_diff": lambda case: strategic.two_way_diff(case["original"], case["modified"], case["kind"]),
    "three_way_diff": lambda case: strategic.three_way_diff(
        case["original"], case["modified"], case["current"], case["kind"], overwrite=case["overwrite"]
    ),
    "merge.apply": lambda case: merge.apply(case["original"], case["patch"]),
    "merge.diff": lambda case: merge.diff(case["original"], case["modified"]),
    "json_patch.apply": lambda case: json_patch.apply(case["original"], case["patch"]),
}


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": OURS[case["op"]](case)}
    except PatchConflict:
        return {"error": "conflict"}
    except PatchError:
        return {"error": "invalid"}


@pytest.mark.parametrize("operation", OURS)
def test_every_recorded_case_has_the_recorded_result(operation: str) -> None:
    cases = [case for case in CASES if case["op"] == operation]
    assert len(cases) >= 30
    for number, case in enumerate(cases):
        expected = {key: case[key] for key in ("result", "error") if key in case}
        assert json.dumps(outcome(case), sort_keys=True) == json.dumps(expected, sort_keys=True), (number, case)
