"""JSON merge patch: the examples of RFC 7386 that are about objects, and diffs."""

from typing import Any

import pytest

from podkeeper.rules.patch import merge
from podkeeper.rules.patch.errors import PatchError

APPLY: dict[str, tuple[Any, Any, Any]] = {
    "a member is replaced": ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    "a member is added": ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    "null removes a member": ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    "null for an absent member does nothing": ({"e": 1}, {"a": None}, {"e": 1}),
    "a scalar replaces a list": ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    "a list replaces a scalar": ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    "objects are merged": ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    "lists are replaced": ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    "null in an object stays when not named": ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    "an added object comes without its nulls": ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    "an object without its nulls replaces a scalar": ({"a": 1}, {"a": {"b": 2, "c": None}}, {"a": {"b": 2}}),
    "null is a value inside a list": ({"a": 1}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
    "an empty object adds an empty object": ({}, {"a": {}}, {"a": {}}),
}


@pytest.mark.parametrize("original, patch, expected", APPLY.values(), ids=APPLY.keys())
def test_apply(original: Any, patch: Any, expected: Any) -> None:
    assert merge.apply(original, patch) == expected


DIFF: dict[str, tuple[Any, Any, Any]] = {
    "only what differs is written": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
    "a removed member is null": ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2}}, {"a": None, "b": {"c": None}}),
    "lists are written whole": ({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a": [1, 2, 3]}),
    "a change of type is a change": ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
    "an emptied object loses its members": ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
    "null is not absent": ({"a": None}, {}, {"a": None}),
}


@pytest.mark.parametrize("original, modified, patch", DIFF.values(), ids=DIFF.keys())
def test_diff(original: Any, modified: Any, patch: Any) -> None:
    assert merge.diff(original, modified) == patch
    assert merge.apply(original, patch) == modified


def test_values_that_the_format_cannot_express_are_dropped() -> None:
    modified: dict[str, Any] = {"a": None, "b": {"c": None}}
    assert merge.apply({"a": 1}, merge.diff({"a": 1}, modified)) == {"b": {}}


@pytest.mark.parametrize("patch", [[], [1], "x", 1, True, None], ids=repr)
def test_a_patch_that_is_not_an_object_is_rejected(patch: Any) -> None:
    with pytest.raises(PatchError, match=r"cannot use the patch: .* expected an object"):
        merge.apply({"a": 1}, patch)
    with pytest.raises(PatchError, match="cannot use the original"):
        merge.apply(patch, {})
