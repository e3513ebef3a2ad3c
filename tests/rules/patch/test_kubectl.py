"""The tables of the other patch tests, and random patches, given to a real kubectl (`kubectl patch --local`).

kubectl applies patches with the same Go packages as the API server, and prints the result. Directives
that remain in it (and are lost when the API server decodes it into types) are removed before the comparison.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.rules.patch import json_patch, merge, strategic
from podkeeper.rules.patch.directives import without_directives
from podkeeper.rules.patch.errors import PatchError
from tests.rules.patch.patching import DEPLOYMENT, DEPLOYMENTS, POD, PODS, wire
from tests.rules.patch.test_strategic import APPLY, REFUSED

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def kubectl(how: str, original: Any, patch: Any) -> Any:
    """Return kubectl's result, None if it rejects the patch."""
    done = subprocess.run(
        ["kubectl", "patch", "--local", "-f", "-", f"--type={how}", "-p", json.dumps(patch), "-o", "json"],
        input=json.dumps(original),
        capture_output=True,
        text=True,
        check=False,
    )
    return without_directives(json.loads(done.stdout)) if done.returncode == 0 else None


@pytest.mark.parametrize("original, patch, expected", APPLY.values(), ids=APPLY.keys())
def test_strategic_patches(original: Any, patch: Any, expected: Any) -> None:
    assert kubectl("strategic", original, patch) == expected


@pytest.mark.slow
@pytest.mark.parametrize("original, patch", [row[:2] for row in REFUSED.values()], ids=REFUSED.keys())
def test_refused_strategic_patches(original: Any, patch: Any) -> None:
    assert kubectl("strategic", original, patch) is None


WEB = wire({"name": "a", "args": ["x", "y"]}, nodeName="n")

MERGE_AND_JSON: dict[str, tuple[str, Any]] = {
    "merge: null deletes, lists are replaced": (
        "merge", {"metadata": {"labels": {"a": "b", "c": None}}, "spec": {"nodeName": None, "containers": []}}),
    "json: add, append, move": (
        "json", [{"op": "add", "path": "/metadata/labels", "value": {"a~/b": "c"}},
                 {"op": "add", "path": "/spec/containers/0/args/-", "value": "z"},
                 {"op": "move", "from": "/spec/nodeName", "path": "/metadata/labels/n"}]),
    "json: test, copy, remove from the end": (
        "json", [{"op": "test", "path": "/spec/nodeName", "value": "n"},
                 {"op": "copy", "from": "/spec/containers/0", "path": "/spec/containers/-"},
                 {"op": "remove", "path": "/spec/containers/0/args/-1"}]),
    "json: an absent member is replaced": ("json", [{"op": "replace", "path": "/spec/hostNetwork", "value": True}]),
    "json: an absent member is null to a test": ("json", [{"op": "test", "path": "/spec/x", "value": None}]),
    "json: a test fails": ("json", [{"op": "test", "path": "/spec/nodeName", "value": "m"}]),
    "json: an index is out of range": ("json", [{"op": "remove", "path": "/spec/containers/1"}]),
    "json: a parent is missing": ("json", [{"op": "add", "path": "/status/phase", "value": "x"}]),
}  # fmt: skip


@pytest.mark.parametrize("how, patch", MERGE_AND_JSON.values(), ids=MERGE_AND_JSON.keys())
def test_merge_and_json_patches(how: str, patch: Any) -> None:
    assert kubectl(how, WEB, patch) == ours(how, WEB, patch)


def ours(how: str, original: Any, patch: Any, kind: str = POD) -> Any:
    try:
        match how:
            case "strategic":
                return strategic.apply(original, patch, kind)
            case "merge":
                return merge.apply(original, patch)
            case _:
                return json_patch.apply(original, patch)
    except PatchError:
        return None


thorough = settings(max_examples=200)
TRIPLES = st.one_of(
    st.tuples(st.just(POD), PODS, PODS, PODS), st.tuples(st.just(DEPLOYMENT), DEPLOYMENTS, DEPLOYMENTS, DEPLOYMENTS)
)


@pytest.mark.slow
@thorough
@given(TRIPLES)
def test_a_diff_does_the_same_to_a_third_object(triple: tuple[str, Any, Any, Any]) -> None:
    """A diff of two objects, with all its directives, applied to another one that has items of its own."""
    kind, before, after, other = triple
    patch = strategic.two_way_diff(before, after, kind)
    target = without_empty_lists(other)
    assert kubectl("strategic", target, patch) == ours("strategic", target, patch, kind)


def without_empty_lists(value: Any) -> Any:
    """The API server never writes them, and apimachinery fails to order one."""
    if isinstance(value, dict):
        return {key: without_empty_lists(member) for key, member in value.items() if member != []}
    return [without_empty_lists(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
@thorough
@given(TRIPLES)
def test_an_object_serves_as_a_patch(triple: tuple[str, Any, Any, Any]) -> None:
    kind, before, after, _ = triple
    assert kubectl("strategic", before, after) == ours("strategic", before, after, kind)
    assert kubectl("merge", before, after) == ours("merge", before, after)
    operations = json_patch.diff(before, after)
    assert kubectl("json", before, operations) == after
