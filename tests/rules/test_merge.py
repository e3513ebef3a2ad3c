"""One source's change against what it said before: verdicts row by row, then laws over whole histories."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    EventType,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
)
from podkeeper.rules.merge import (
    Merged,
    NotificationMode,
    Verdict,
    announcements,
    compare,
    duplicate_warning,
    merge,
)

NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
LATER = datetime(2024, 5, 6, 8, 0, 0, tzinfo=UTC)
SEEN = "2024-05-06T07:08:09.123456000Z"


def pod(
    name: str = "web",
    *,
    uid: str | None = None,
    node: str = "n1",
    message: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleted: str | None = None,
    grace: int | None = None,
    generation: int | None = None,
    version: str | None = None,
) -> Pod:
    """A pod; `node` stands for its spec and `message` for its status."""
    metadata = ObjectMeta(
        name=name,
        namespace="ns",
        uid=f"uid-{name}" if uid is None else uid,
        labels=labels,
        annotations=annotations,
        deletion_timestamp=deleted,
        deletion_grace_period_seconds=grace,
        generation=generation,
        resource_version=version,
    )
    return Pod(metadata=metadata, spec=PodSpec(node_name=node), status=PodStatus(message=message))


def stored(*pods: Pod, source: str = "api") -> dict[PodUID, Pod]:
    return dict(merge({}, PodUpdate(Op.SET, pods, source), NOW).pods)


def change(op: Op, *pods: Pod, source: str = "api") -> PodUpdate:
    return PodUpdate(op, pods, source)


def annotation(pod: Pod, key: str) -> str | None:
    return (pod.metadata.annotations or {}).get(key)


VERDICTS = {
    "the same again is silence": (pod(), pod(), Verdict.SAME),
    "another spec is an update": (pod(), pod(node="n2"), Verdict.UPDATE),
    "other labels are an update": (pod(labels={"a": "1"}), pod(labels={"a": "2"}), Verdict.UPDATE),
    "no labels and empty labels differ": (pod(labels=None), pod(labels={}), Verdict.UPDATE),
    "a new annotation is an update": (pod(), pod(annotations={"user/a": "1"}), Verdict.UPDATE),
    "a lost annotation is an update": (pod(annotations={"user/a": "1"}), pod(), Verdict.UPDATE),
    "an annotation with another value is an update":
        (pod(annotations={"user/a": "1"}), pod(annotations={"user/a": "2"}), Verdict.UPDATE),
    "no annotations and empty ones are the same": (pod(annotations=None), pod(annotations={}), Verdict.SAME),
    "another config hash is an update": (
        pod(annotations={CONFIG_HASH_ANNOTATION: "1"}), pod(annotations={CONFIG_HASH_ANNOTATION: "2"}), Verdict.UPDATE,
    ),
    "local annotations do not count": (
        pod(annotations={CONFIG_MIRROR_ANNOTATION: "1", CONFIG_SOURCE_ANNOTATION: "file"}),
        pod(annotations={CONFIG_MIRROR_ANNOTATION: "2", CONFIG_FIRST_SEEN_ANNOTATION: "x"}),
        Verdict.SAME,
    ),
    "a first deletion time is a graceful deletion": (pod(), pod(deleted="2024-01-01T00:00:00Z"), Verdict.DELETE),
    "a changed grace of a deletion is a deletion again": (
        pod(deleted="2024-01-01T00:00:00Z", grace=30), pod(deleted="2024-01-01T00:00:00Z", grace=1), Verdict.DELETE,
    ),
    "a new spec of a pod being deleted is a deletion again": (
        pod(deleted="2024-01-01T00:00:00Z"), pod(deleted="2024-01-01T00:00:00Z", node="n2"), Verdict.DELETE,
    ),
    "a deletion taken back is an update": (pod(deleted="2024-01-01T00:00:00Z"), pod(), Verdict.UPDATE),
    "another status alone is to be reconciled": (pod(message="a"), pod(message="b"), Verdict.RECONCILE),
    "a new spec outweighs a new status": (pod(message="a"), pod(message="b", node="n2"), Verdict.UPDATE),
    "resourceVersion and generation do not count": (pod(), pod(version="7", generation=2), Verdict.SAME),
}  # fmt: skip


@pytest.mark.parametrize("before, after, expected", VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict(before: Pod, after: Pod, expected: Verdict) -> None:
    assert compare(before, after) is expected


def test_a_new_pod_is_marked_with_its_source_and_the_time_of_first_sight() -> None:
    merged = merge({}, change(Op.SET, pod(annotations={"user/a": "1", CONFIG_FIRST_SEEN_ANNOTATION: "forged"})), NOW)
    assert merged.added[0].metadata.annotations == {
        "user/a": "1",
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: SEEN,
    }


def test_an_update_takes_the_new_annotations_but_keeps_the_local_ones() -> None:
    said = stored(pod(annotations={"user/a": "1", CONFIG_MIRROR_ANNOTATION: "h1"}))
    fresh = pod(annotations={"user/b": "2", CONFIG_MIRROR_ANNOTATION: "h2", CONFIG_SOURCE_ANNOTATION: "forged"})
    assert merge(said, change(Op.UPDATE, fresh), LATER).updated[0].metadata.annotations == {
        "user/b": "2",
        CONFIG_MIRROR_ANNOTATION: "h1",
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: SEEN,
    }


def test_an_update_may_bring_a_local_annotation_that_was_not_stored_yet() -> None:
    fresh = pod(node="n2", annotations={CONFIG_MIRROR_ANNOTATION: "h1"})
    (updated,) = merge(stored(pod()), change(Op.UPDATE, fresh), LATER).updated
    assert annotation(updated, CONFIG_MIRROR_ANNOTATION) == "h1"


def test_an_update_takes_over_generation_and_status_and_leaves_the_rest_of_the_metadata() -> None:
    said = stored(pod(version="1", generation=1))
    fresh = pod(version="2", generation=2, node="n2", message="b")
    (updated,) = merge(said, change(Op.UPDATE, fresh), LATER).updated
    assert (updated.spec, updated.status) == (fresh.spec, fresh.status)
    assert (updated.metadata.generation, updated.metadata.resource_version) == (2, "1")


def test_a_reconciled_pod_changes_its_status_and_nothing_else() -> None:
    said = stored(pod(message="a"))
    (reconciled,) = merge(said, change(Op.SET, pod(message="b", version="9")), LATER).reconciled
    assert reconciled == replace(said[PodUID("uid-web")], status=PodStatus(message="b"))


def test_a_pod_without_news_keeps_the_very_object_stored_before() -> None:
    said = stored(pod(annotations={"user/a": "1"}))
    again = merge(said, change(Op.SET, pod(annotations={"user/a": "1"})), LATER)
    assert again.pods[PodUID("uid-web")] is said[PodUID("uid-web")]


KNOWN, OTHER = pod("known"), pod("other")

OPS = {
    "SET adds the new, updates the known and removes the absent":
        (change(Op.SET, pod("known", node="n2"), pod("new")), "A:new U:known R:other"),
    "an empty SET removes all": (change(Op.SET), "R:known R:other"),
    "ADD of a known pod is an update": (change(Op.ADD, pod("known", node="n2")), "U:known"),
    "UPDATE of an unknown pod is an addition": (change(Op.UPDATE, pod("new")), "A:new"),
    "DELETE of an unknown pod is an addition": (change(Op.DELETE, pod("new", deleted="2024-01-01T00:00:00Z")), "A:new"),
    "DELETE without a deletion time is an update": (change(Op.DELETE, pod("known", node="n2")), "U:known"),
    "ADD with a deletion time is a deletion":
        (change(Op.ADD, pod("known", deleted="2024-01-01T00:00:00Z")), "D:known"),
    "ADD removes nothing": (change(Op.ADD), ""),
    "REMOVE takes a known pod away": (change(Op.REMOVE, pod("known")), "R:known"),
    "REMOVE needs only the UID": (change(Op.REMOVE, Pod(metadata=ObjectMeta(uid="uid-known"))), "R:known"),
    "REMOVE of an unknown pod does nothing": (change(Op.REMOVE, pod("new")), ""),
    "REMOVE of one pod twice removes it once": (change(Op.REMOVE, KNOWN, KNOWN), "R:known"),
    "RECONCILE is no word of a source": (change(Op.RECONCILE, pod("known", message="x"), pod("new")), ""),
    "of two pods with one full name the first wins":
        (change(Op.ADD, pod("new", uid="1"), pod("new", uid="2"), pod("new", uid="3")), "A:new"),
    "the same UID under two names is one pod: added, then updated":
        (change(Op.ADD, pod("a", uid="1"), pod("b", uid="1", node="n2")), "A:a U:a"),
    "within a SET two new pods of one UID are added both":
        (change(Op.SET, KNOWN, OTHER, pod("a", uid="1"), pod("b", uid="1")), "A:a A:b"),
}  # fmt: skip


def summary(merged: Merged) -> str:
    lists = zip("AUDRS", (merged.added, merged.updated, merged.deleted, merged.removed, merged.reconciled), strict=True)
    return " ".join(f"{letter}:{pod.metadata.name}" for letter, pods in lists for pod in pods)


@pytest.mark.parametrize("told, expected", OPS.values(), ids=OPS.keys())
def test_op(told: PodUpdate, expected: str) -> None:
    assert summary(merge(stored(KNOWN, OTHER), told, LATER)) == expected


def test_a_pod_named_twice_in_one_change_shows_its_final_content_in_each_list() -> None:
    told = change(
        Op.ADD, pod("a", uid="1", node="n1"), pod("b", uid="1", node="n2"), pod("c", uid="1", message="x", node="n2")
    )
    merged = merge({}, told, NOW)
    assert merged.added == merged.updated == merged.reconciled
    assert (merged.added[0].metadata.name, merged.added[0].spec.node_name, merged.added[0].status.message) == (
        "a",
        "n2",
        "x",
    )


def test_a_dropped_duplicate_is_told_by_name_and_uid() -> None:
    merged = merge({}, change(Op.SET, pod(uid="1"), pod(uid="2"), source="file"), NOW)
    (dropped,) = merged.duplicates
    expected = 'Error validating pod web_ns(2) from file due to duplicate pod name "web", ignoring'
    assert duplicate_warning(dropped, "file") == PodEvent(EventType.WARNING, "FailedValidation", expected, "2")


@pytest.mark.parametrize("op", [Op.SET, Op.ADD, Op.UPDATE, Op.DELETE, Op.REMOVE])
def test_a_pod_without_uid_is_refused_by_source_pod_and_field(op: Op) -> None:
    with pytest.raises(BadInput, match=r"pods\[1\]\.metadata\.uid: cannot merge pod web_ns from file without a uid"):
        merge({}, change(op, pod("first"), pod(uid=""), source="file"), NOW)


def test_a_pod_without_name_is_refused() -> None:
    with pytest.raises(BadInput, match=r"metadata\.name: cannot merge pod _ns from api without a name"):
        merge({}, change(Op.SET, pod("", uid="1")), NOW)


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(BadInput, match="from file: 'REPLACE' is no operation"):
        merge({}, change("REPLACE", pod(), source="file"), NOW)  # type: ignore[arg-type]  # the point


# Announcements: every combination of what a merge can hold, in every mode.

ONE = (pod("one"),)
ALL = (pod("one"), pod("two"))


def ops(updates: tuple[PodUpdate, ...]) -> list[str]:
    return [update.op.value if update.pods else f"{update.op.value}()" for update in updates]


def every_merge() -> list[tuple[Merged, bool]]:
    return [
        (Merged(pods={}, whole=False, added=a, updated=u, deleted=d, removed=r, reconciled=s), first)
        for a, u, d, r, s in product([(), ONE], repeat=5)
        for first in (False, True)
    ]


def test_incremental_mode_tells_each_change_once_in_strict_order_and_nothing_empty_but_the_first() -> None:
    for merged, first in every_merge():
        told = ops(announcements(NotificationMode.INCREMENTAL, "api", merged, first, ()))
        silent = not (merged.added or merged.updated or merged.deleted)
        expected = [
            *(["REMOVE"] if merged.removed else []),
            *(["ADD"] if merged.added else ["ADD()"] if first and silent else []),
            *(["UPDATE"] if merged.updated else []),
            *(["DELETE"] if merged.deleted else []),
            *(["RECONCILE"] if merged.reconciled else []),
        ]
        assert told == expected


def test_the_snapshot_modes_tell_everything_or_nothing_and_never_of_status_alone() -> None:
    for merged, first in every_merge():
        came_or_went = bool(merged.added or merged.removed or first)
        changes = [*(["UPDATE"] if merged.updated else []), *(["DELETE"] if merged.deleted else [])]
        both = announcements(NotificationMode.SNAPSHOT_AND_UPDATES, "api", merged, first, ALL)
        assert ops(both) == [*(["SET"] if came_or_went else []), *changes]
        only = announcements(NotificationMode.SNAPSHOT, "api", merged, first, ALL)
        assert ops(only) == (["SET"] if came_or_went or changes else [])
        assert all(update.pods == ALL for update in [*both, *only] if update.op is Op.SET)


# Laws.

names = st.sampled_from(["a", "b", "c"])
pods = st.builds(
    pod,
    names,
    uid=st.sampled_from(["1", "2", "3"]),
    node=st.sampled_from(["n1", "n2"]),
    message=st.sampled_from(["", "x"]),
    labels=st.sampled_from([None, {}, {"a": "1"}]),
    annotations=st.sampled_from([None, {}, {"user/a": "1"}, {CONFIG_MIRROR_ANNOTATION: "h"}]),
    deleted=st.sampled_from([None, "2024-01-01T00:00:00Z"]),
)
lists = st.lists(pods, max_size=4).map(tuple)
one_pod_per_uid = st.lists(pods, max_size=4, unique_by=lambda pod: pod.metadata.uid).map(tuple)
changes = st.builds(PodUpdate, st.sampled_from(list(Op)), lists, st.just("api"))


@settings(deadline=None, derandomize=True)
@given(lists, one_pod_per_uid)
def test_the_same_set_twice_says_nothing_the_second_time(before: tuple[Pod, ...], told: tuple[Pod, ...]) -> None:
    once = merge(stored(*before), change(Op.SET, *told), NOW)
    twice = merge(once.pods, change(Op.SET, *told), LATER)
    assert summary(twice) == ""
    assert twice.pods == once.pods


@settings(deadline=None, derandomize=True)
@given(lists, one_pod_per_uid)
def test_after_a_set_the_source_says_that_set_without_the_duplicates(
    before: tuple[Pod, ...], told: tuple[Pod, ...]
) -> None:
    merged = merge(stored(*before), change(Op.SET, *told), NOW)
    accepted = [pod for pod in told if pod not in merged.duplicates]
    assert list(merged.pods) == [pod.metadata.uid for pod in accepted]
    assert all(compare(merged.pods[PodUID(pod.metadata.uid or "")], pod) is Verdict.SAME for pod in accepted)


def now_said(said: Mapping[PodUID, Pod], merged: Merged) -> dict[PodUID, Pod]:
    """What a source says once a merge is stored."""
    gone = {pod.metadata.uid for pod in merged.removed}
    kept = {} if merged.whole else {uid: pod for uid, pod in said.items() if uid not in gone}
    return {**kept, **merged.pods}


@settings(deadline=None, derandomize=True)
@given(lists, changes)
def test_a_consumer_of_the_changes_ends_up_with_what_is_stored(before: tuple[Pod, ...], told: PodUpdate) -> None:
    said = stored(*before)
    merged = merge(said, told, LATER)
    view = dict(said)
    for update in announcements(NotificationMode.INCREMENTAL, "api", merged, False, ()):
        for changed in update.pods:
            uid = PodUID(changed.metadata.uid or "")
            if update.op is Op.REMOVE:
                assert view.pop(uid) == changed
            else:
                view[uid] = changed
    assert view == now_said(said, merged)


@settings(deadline=None, derandomize=True)
@given(lists, changes)
def test_merging_changes_none_of_its_inputs(before: tuple[Pod, ...], told: PodUpdate) -> None:
    said = stored(*before)
    as_it_was = msgspec.json.encode([list(said.values()), told.pods])
    merge(said, told, LATER)
    assert msgspec.json.encode([list(said.values()), told.pods]) == as_it_was


@settings(deadline=None, derandomize=True)
@given(lists, changes)
def test_the_time_of_first_sight_never_moves(before: tuple[Pod, ...], told: PodUpdate) -> None:
    said = stored(*before)
    merged = merge(said, told, LATER)
    for uid in said.keys() & merged.pods.keys():
        assert annotation(merged.pods[uid], CONFIG_FIRST_SEEN_ANNOTATION) == SEEN
