"""Laws of all three patch types: a diff applied gives the modified object, inputs never change, nothing crashes."""

import contextlib
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.rules.patch import json_patch, merge, strategic
from podkeeper.rules.patch.errors import PatchConflict, PatchError
from podkeeper.rules.patch.value import MAX_DEPTH, Json, same
from tests.rules.patch.patching import DEPLOYMENT, DEPLOYMENTS, POD, POD_SPEC, PODS, json_objects, json_values

law = settings(max_examples=40)

PAIRS = st.one_of(
    st.tuples(st.just(POD), PODS, PODS),
    st.tuples(st.just(DEPLOYMENT), DEPLOYMENTS, DEPLOYMENTS),
    st.tuples(st.just("core.v1.PodSpec"), POD_SPEC, POD_SPEC),
)


def text(*values: Any) -> str:
    return json.dumps(values, sort_keys=True)


# A diff, applied, gives the other document.


@law
@given(PAIRS)
def test_a_strategic_diff_leads_to_the_modified_object(pair: tuple[str, Any, Any]) -> None:
    kind, before, after = pair
    patch = strategic.two_way_diff(before, after, kind)
    once = strategic.apply(before, patch, kind)
    assert text(once) == text(after)
    assert text(strategic.apply(once, patch, kind)) == text(after)


@law
@given(json_objects(), json_objects(nulls=False))
def test_a_merge_diff_leads_to_the_modified_object_that_has_no_nulls(before: Any, after: Any) -> None:
    patch = merge.diff(before, after)
    assert text(merge.apply(before, patch)) == text(after)
    assert text(merge.apply(after, patch)) == text(after)


@law
@given(json_values(), json_values())
def test_a_json_patch_diff_leads_to_the_modified_document(before: Any, after: Any) -> None:
    assert text(json_patch.apply(before, [*json_patch.diff(before, after)])) == text(after)


@law
@given(PAIRS)
def test_a_three_way_diff_of_an_untouched_object_is_a_two_way_diff_in_effect(pair: tuple[str, Any, Any]) -> None:
    kind, before, after = pair
    patch = strategic.three_way_diff(before, after, before, kind, overwrite=False)
    assert text(strategic.apply(before, patch, kind)) == text(after)


@law
@given(st.tuples(PODS, PODS, PODS))
def test_a_three_way_diff_sets_all_modified_values(pods: tuple[Any, Any, Any]) -> None:
    before, wanted, now = pods
    patch = strategic.three_way_diff(before, wanted, now, POD)
    after = strategic.apply(now, patch, POD)
    assert contains(after, wanted)


def contains(whole: Any, part: Any) -> bool:
    """Whether all of `part` is in `whole`, list items in any place."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(item, wanted) for item in whole) for wanted in part)
    return same(whole, part)


# Empty diffs and patches.


@law
@given(PAIRS, json_objects())
def test_the_diff_of_equal_documents_is_empty(pair: tuple[str, Any, Any], value: Any) -> None:
    kind, document, _ = pair
    twin = copy.deepcopy(document)
    assert strategic.two_way_diff(document, twin, kind) == {}
    assert strategic.three_way_diff(document, twin, document, kind) == {}
    assert merge.diff(value, copy.deepcopy(value)) == {}
    assert json_patch.diff(value, copy.deepcopy(value)) == []


@law
@given(PAIRS)
def test_an_empty_patch_returns_the_object_itself(pair: tuple[str, Any, Any]) -> None:
    kind, document, _ = pair
    assert strategic.apply(document, {}, kind) is document
    assert merge.apply(document, {}) is document
    assert json_patch.apply(document, []) is document


@law
@given(json_objects(), json_objects())
def test_a_merge_patch_is_idempotent(document: Any, patch: Any) -> None:
    once = merge.apply(document, patch)
    assert text(merge.apply(once, patch)) == text(once)


def test_a_boolean_is_not_a_number() -> None:
    assert strategic.two_way_diff({"spec": {"a": [1]}}, {"spec": {"a": [True]}}, POD) == {"spec": {"a": [True]}}
    assert merge.diff({"a": 1, "b": 0}, {"a": True, "b": False}) == {"a": True, "b": False}
    assert json_patch.diff({"a": 1}, {"a": 1.0}) == [{"op": "replace", "path": "/a", "value": 1.0}]


# Inputs stay as they are, and what a patch does not touch is shared.


@law
@given(PAIRS, PODS)
def test_no_diff_changes_its_inputs(pair: tuple[str, Any, Any], current: Any) -> None:
    kind, before, after = pair
    snapshot = text(before, after, current)
    patch = strategic.two_way_diff(before, after, kind)
    with_directives = text(patch)
    strategic.apply(before, patch, kind)
    with contextlib.suppress(PatchConflict):
        strategic.three_way_diff(before, after, current, kind, overwrite=False)
    operations = json_patch.diff(before, after)
    written = text(operations)
    json_patch.apply(before, [*operations])
    merge.apply(before, merge.diff(before, after))
    assert text(before, after, current) == snapshot
    assert (text(patch), text(operations)) == (with_directives, written)


def test_untouched_parts_are_shared() -> None:
    before: Any = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    after: Any = strategic.apply(before, {"spec": {"containers": [{"name": "a", "image": "x"}]}}, POD)
    assert after["metadata"] is before["metadata"]
    assert after["spec"]["containers"][1] is before["spec"]["containers"][1]
    assert merge.apply(before, {"kind": "Pod"})["spec"] is before["spec"]
    moved: Any = json_patch.apply(before, [{"op": "add", "path": "/metadata/name", "value": "x"}])
    assert moved["spec"] is before["spec"]


# Whatever comes in, a PatchError is the worst that comes out.

DIRECTIVES = st.sampled_from(
    [
        "$patch", "$retainKeys", "$setElementOrder/containers", "$setElementOrder/finalizers", "$setElementOrder",
        "$deleteFromPrimitiveList/finalizers", "$deleteFromPrimitiveList/containers", "$deleteFromPrimitiveListx",
        "metadata", "spec", "containers", "finalizers", "name", "env", "strategy", "volumes", "type",
    ]
)  # fmt: skip
WORDS = st.sampled_from(["delete", "replace", "merge", "a", "name", "", 1, True, None])
BAD_PATCHES: st.SearchStrategy[Any] = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(DIRECTIVES, inner, max_size=4), max_leaves=20
)
WITHIN = st.sampled_from(
    [POD, DEPLOYMENT, "core.v1.PodSpec", "core.v1.Container", "meta.v1.ObjectMeta", "core.v1.Volume"]
)


@law
@given(BAD_PATCHES, BAD_PATCHES, BAD_PATCHES, WITHIN)
def test_invalid_patches_raise_a_patch_error(one: Any, two: Any, three: Any, kind: str) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: strategic.apply(one, two, kind),
        lambda: strategic.two_way_diff(one, two, kind),
        lambda: strategic.three_way_diff(one, two, three, kind, overwrite=False),
        lambda: merge.apply(one, two),
        lambda: merge.diff(one, two),
        lambda: json_patch.apply(one, two),
    ]
    snapshot = text(one, two, three)
    for attempt in attempts:
        with contextlib.suppress(PatchError):
            attempt()
    assert text(one, two, three) == snapshot


def nested(levels: int, step: Callable[[Json], Json]) -> Json:
    value: Json = "bottom"
    for _ in range(levels):
        value = step(value)
    return value


STEPS: dict[str, Callable[[Json], Json]] = {
    "objects": lambda inner: {"spec": inner},
    "lists": lambda inner: [inner],
    "objects in lists": lambda inner: {"containers": [{"name": "a", "x": inner}]},
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_ten_thousand_levels_are_rejected(step: Callable[[Json], Json]) -> None:
    deep: Json = {"spec": nested(10_000, step)}
    twin: Json = {"spec": nested(10_000, step)}
    attempts: list[Callable[[], object]] = [
        lambda: strategic.apply({}, deep, POD),
        lambda: strategic.apply(twin, deep, POD),
        lambda: strategic.two_way_diff(twin, deep, POD),
        lambda: strategic.three_way_diff(twin, deep, twin, POD),
        lambda: merge.apply({}, deep),
        lambda: merge.diff(twin, deep),
        lambda: json_patch.apply({}, [{"op": "add", "path": "/a", "value": deep}]),
        lambda: json_patch.diff(twin, deep),
    ]
    for attempt in attempts:
        with pytest.raises(PatchError, match=f"deeper than {MAX_DEPTH} levels"):
            attempt()


def test_a_deep_document_that_is_not_changed_is_accepted() -> None:
    deep: Json = {"spec": nested(10_000, STEPS["lists"]), "kind": "Pod"}
    assert strategic.apply(deep, {"kind": "Job"}, POD)["kind"] == "Job"
    assert strategic.two_way_diff(deep, deep, POD) == {}


def test_the_deepest_allowed_document_works() -> None:
    deep: Json = {"spec": nested(MAX_DEPTH - 1, STEPS["objects"])}
    twin: Json = {"spec": nested(MAX_DEPTH - 1, STEPS["objects"])}
    assert strategic.two_way_diff(deep, twin, POD) == {}
    assert strategic.apply({}, deep, POD) == deep
    assert merge.apply({}, deep) == deep
