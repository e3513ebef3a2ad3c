"""JSON patch: operations, pointers, limits and diffs."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings

from podkeeper.rules.patch import json_patch
from podkeeper.rules.patch.errors import OperationError, PatchError, PatchTooLarge
from podkeeper.rules.patch.value import MAX_DEPTH
from tests.rules.patch.patching import json_objects


def op(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"op": name, "path": path, **more}


def move(source: str, path: str) -> dict[str, Any]:
    return {"op": "move", "from": source, "path": path}


def copy(source: str, path: str) -> dict[str, Any]:
    return {"op": "copy", "from": source, "path": path}


APPLY: dict[str, tuple[Any, list[Any], Any]] = {
    "a member is added": ({"a": 1}, [op("add", "/b", value=2)], {"a": 1, "b": 2}),
    "to add a member that is there replaces it": ({"a": 1}, [op("add", "/a", value=2)], {"a": 2}),
    "null is a value": ({}, [op("add", "/a", value=None)], {"a": None}),
    "an item is inserted": ({"a": [1, 3]}, [op("add", "/a/1", value=2)], {"a": [1, 2, 3]}),
    "an item is inserted at the end": ({"a": [1]}, [op("add", "/a/1", value=2)], {"a": [1, 2]}),
    "a dash appends": ({"a": [1]}, [op("add", "/a/-", value=2)], {"a": [1, 2]}),
    "a list is added, not its items": ({"a": [1]}, [op("add", "/a/-", value=[2])], {"a": [1, [2]]}),
    "a member is removed": ({"a": 1, "b": 2}, [op("remove", "/a")], {"b": 2}),
    "an item is removed": ({"a": [1, 2, 3]}, [op("remove", "/a/1")], {"a": [1, 3]}),
    "a member is replaced": ({"a": {"b": 1}}, [op("replace", "/a/b", value=[])], {"a": {"b": []}}),
    "an item is replaced": ({"a": [1, 2]}, [op("replace", "/a/0", value=0)], {"a": [0, 2]}),
    "replacing an absent member adds it": ({}, [op("replace", "/a", value=1)], {"a": 1}),
    "a negative index counts from the end": ({"a": [1, 2]}, [op("remove", "/a/-1")], {"a": [1]}),
    "minus one appends": ({"a": [1, 2]}, [op("add", "/a/-1", value=3)], {"a": [1, 2, 3]}),
    "a member is moved": ({"a": {"b": 1}, "c": {}}, [move("/a/b", "/c/d")], {"a": {}, "c": {"d": 1}}),
    "an item is moved": ({"a": [1, 2, 3]}, [move("/a/0", "/a/2")], {"a": [2, 3, 1]}),
    "moving to the same path does nothing": ({"a": [1, 2]}, [move("/a/0", "/a/0")], {"a": [1, 2]}),
    "a value is copied": ({"a": {"b": [1]}}, [copy("/a/b", "/c")], {"a": {"b": [1]}, "c": [1]}),
    "a copy is independent": (
        {"a": {"b": {}}}, [op("add", "/a/b/x", value=1), copy("/a", "/c"), op("add", "/c/b/y", value=2)],
        {"a": {"b": {"x": 1}}, "c": {"b": {"x": 1, "y": 2}}}),
    "a test that holds changes nothing": ({"a": [1, {"b": 2}]}, [op("test", "/a", value=[1, {"b": 2}])],
                                          {"a": [1, {"b": 2}]}),
    "absent and null are the same to a test": ({}, [op("test", "/a", value=None)], {}),
    "slashes and tildes are escaped": (
        {"a/b": {"m~n": 1}}, [op("replace", "/a~1b/m~0n", value=2)], {"a/b": {"m~n": 2}}),
    "an escaped escape is not unescaped twice": ({"~1": 1}, [op("remove", "/~01")], {}),
    "the empty name is a name": ({"": 1}, [op("replace", "/", value=2)], {"": 2}),
    "a number can be a name": ({"0": 1}, [op("remove", "/0")], {}),
    "the whole document is replaced": ({"a": 1}, [op("replace", "", value={"b": 2})], {"b": 2}),
    "the whole document is tested": ({"a": 1}, [op("test", "", value={"a": 1})], {"a": 1}),
    "unknown members of an operation are ignored": ({}, [op("add", "/a", value=1, comment="x")], {"a": 1}),
    "operations see the results of earlier ones": (
        {}, [op("add", "/a", value={}), op("add", "/a/b", value=[]), op("add", "/a/b/-", value=1)], {"a": {"b": [1]}}),
}  # fmt: skip


@pytest.mark.parametrize("original, patch, expected", APPLY.values(), ids=APPLY.keys())
def test_apply(original: Any, patch: Any, expected: Any) -> None:
    assert json_patch.apply(original, patch) == expected


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "add below an absent member": ({}, op("add", "/a/b", value=1), "member 'a' not found"),
    "to add into a scalar": ({"a": 1}, op("add", "/a/b", value=1), "a number, not an object or a list"),
    "a path through a scalar": ({"a": 1}, op("add", "/a/b/c", value=1), "'b' cannot be looked up in a number"),
    "to insert too far": ({"a": [1]}, op("add", "/a/3", value=1), "index 3 is out of range, expected 0 to 1"),
    "to insert too far back": ({"a": [1]}, op("add", "/a/-3", value=1), "index -3 is out of range"),
    "a name in a list": ({"a": [1]}, op("add", "/a/b", value=1), "'b' is not an index"),
    "an index with leading zeros": ({"a": [1, 2]}, op("remove", "/a/01"), "'01' is not an index"),
    "an index of foreign digits": ({"a": [1, 2]}, op("remove", "/a/\u0661"), "is not an index"),
    "an endless index": ({"a": [1, 2]}, op("remove", "/a/" + "9" * 5000), "is not an index"),
    "remove an absent member": ({"a": 1}, op("remove", "/b"), "member 'b' not found"),
    "remove an absent item": ({"a": [1]}, op("remove", "/a/1"), "index 1 is out of range"),
    "to remove an item of an empty list": (
        {"a": []},
        op("remove", "/a/0"),
        "index 0 is out of range, the list is empty",
    ),
    "to remove after the last": ({"a": [1]}, op("remove", "/a/-"), "'-' is not an index"),
    "to remove the whole document": ({"a": 1}, op("remove", ""), "cannot be removed"),
    "replace an absent item": ({"a": [1]}, op("replace", "/a/1", value=1), "index 1 is out of range"),
    "move an absent member": ({"a": 1}, move("/b", "/c"), "member 'b' not found"),
    "move into itself": ({"a": {"b": {}}}, move("/a", "/a/b/c"), "inside the moved value"),
    "copy an absent member": ({"a": 1}, copy("/b", "/c"), "member 'b' not found"),
    "a test that fails": ({"a": 1}, op("test", "/a", value=2), "the value differs"),
    "a test of a boolean for a number": ({"a": 1}, op("test", "/a", value=True), "the value differs"),
    "a path without a slash": ({"a": 1}, op("remove", "a"), "the pointer does not start with '/'"),
    "a path with a bad escape": ({"a": 1}, op("remove", "/~2"), "must be followed by"),
    "a path that is not a string": ({"a": 1}, {"op": "remove", "path": 1}, "a string like"),
    "a path too deep": ({"a": 1}, op("remove", "/a" * (MAX_DEPTH + 1)), "deeper than"),
    "no path": ({"a": 1}, {"op": "remove"}, "'path' is missing"),
    "no value": ({"a": 1}, op("add", "/a"), "'value' is missing"),
    "no source": ({"a": 1}, op("move", "/a"), "'from' is missing"),
}


@pytest.mark.parametrize("original, operation, reason", REFUSED.values(), ids=REFUSED.keys())
def test_refused(original: Any, operation: dict[str, Any], reason: str) -> None:
    with pytest.raises(OperationError) as caught:
        json_patch.apply(original, [op("test", "/nothing", value=None), operation])
    error = caught.value
    assert (error.index, error.operation, error.field) == (1, operation["op"], "[1]")
    assert reason in str(error)


@pytest.mark.parametrize(
    "patch, message",
    [
        ({}, "expected a list of operations"),
        (None, "expected a list of operations"),
        ([1], r"\[0\]: cannot apply the operation: it is a number"),
        ([{}], r"\[0\].op: .* add, remove, replace, move, copy, test"),
        ([{"op": "upsert", "path": "/a"}], "expected 'op' to be one of"),
        ([{"op": ["add"], "path": "/a"}], "expected 'op' to be one of"),
    ],
    ids=repr,
)
def test_invalid_operations_are_rejected(patch: Any, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        json_patch.apply({"a": 1}, patch)


def test_the_number_of_operations_is_limited() -> None:
    adds: list[Any] = [op("add", "/a", value=1)] * 3
    assert json_patch.apply({}, adds, max_operations=3) == {"a": 1}
    with pytest.raises(PatchTooLarge, match="it has 3 operations, expected at most 2"):
        json_patch.apply({}, adds, max_operations=2)


def test_the_total_size_of_copies_is_limited() -> None:
    document: Any = {"a": "x" * 98}  # 100 bytes as JSON
    twice: list[Any] = [copy("/a", "/b"), copy("/a", "/c")]
    assert json_patch.apply(document, twice, max_copy_bytes=200)
    with pytest.raises(PatchTooLarge, match="more than 199 bytes"):
        json_patch.apply(document, twice, max_copy_bytes=199)


def test_doubling_by_copies_ends_soon() -> None:
    doubling: list[Any] = [copy("/a", f"/a/{index}") for index in range(64)]
    with pytest.raises(PatchTooLarge):
        json_patch.apply({"a": {}}, doubling, max_copy_bytes=10_000)


def test_a_document_cannot_be_made_too_deep_in_small_steps() -> None:
    chain = "/a" * MAX_DEPTH
    steps: list[Any] = [op("add", "/a" * depth, value={}) for depth in range(1, MAX_DEPTH + 1)]
    for number in range(20):
        steps += [move("/a", f"/b{number}"), op("add", "/a", value={})]
        steps += [op("add", "/a" * depth, value={}) for depth in range(2, MAX_DEPTH)]
        steps += [move(f"/b{number}", chain)]
    with pytest.raises(PatchTooLarge, match="the patched document"):
        json_patch.apply({}, steps)


def test_a_failed_patch_does_not_change_the_original() -> None:
    document: Any = {"a": [1]}
    with pytest.raises(OperationError):
        json_patch.apply(document, [op("add", "/a/-", value=2), op("remove", "/nowhere")])
    assert document == {"a": [1]}


DIFF: dict[str, tuple[Any, Any, list[Any]]] = {
    "one operation for one change": (
        {"a": {"b": 1, "c": 2}},
        {"a": {"b": 1, "c": 3}},
        [op("replace", "/a/c", value=3)],
    ),
    "one member is added and one removed": ({"a": 1}, {"b": 1}, [op("remove", "/a"), op("add", "/b", value=1)]),
    "an item in the middle is removed": ({"a": [1, 2, 3, 4]}, {"a": [1, 2, 4]}, [op("remove", "/a/2")]),
    "an item in the middle is added": ({"a": [1, 3]}, {"a": [1, 2, 3]}, [op("add", "/a/1", value=2)]),
    "of equal items the last is removed": ({"a": [1, 1, 1]}, {"a": [1, 1]}, [op("remove", "/a/2")]),
    "of equal items the last is added": ({"a": [1, 1]}, {"a": [1, 1, 1]}, [op("add", "/a/2", value=1)]),
    "a change within an item": ({"a": [{"b": 1}, 2]}, {"a": [{"b": 2}, 2]}, [op("replace", "/a/0/b", value=2)]),
    "names are escaped": ({"a/b~c": 1}, {"a/b~c": 2}, [op("replace", "/a~1b~0c", value=2)]),
    "another type of document": ({"a": 1}, [1], [op("replace", "", value=[1])]),
}


@pytest.mark.parametrize("original, modified, patch", DIFF.values(), ids=DIFF.keys())
def test_diff(original: Any, modified: Any, patch: Any) -> None:
    assert json_patch.diff(original, modified) == patch
    assert json_patch.apply(original, patch) == modified


@settings(max_examples=40)
@given(json_objects(), json_objects())
def test_the_python_library_jsonpatch_agrees(before: Any, after: Any) -> None:
    assert json_patch.apply(before, list(jsonpatch.make_patch(before, after))) == after
    assert jsonpatch.apply_patch(before, [*json_patch.diff(before, after)]) == after
