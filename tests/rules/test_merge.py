"""Merging a change into the stored pods: differences row by row, then laws."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodStatus
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
    MergeResult,
    NotificationMode,
    PodDifference,
    compare,
    duplicate_warning,
    merge,
    notifications,
)
from podkeeper.testing import build
from podkeeper.testing.build import pod_update

NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
LATER = datetime(2024, 5, 6, 8, 0, 0, tzinfo=UTC)
SEEN = "2024-05-06T07:08:09.123456000Z"


pod = partial(build.pod, namespace="ns", node="n1")


def stored(*pods: Pod, source: str = "api") -> dict[PodUID, Pod]:
    return dict(merge({}, PodUpdate(Op.SET, pods, source), NOW).pods)


def annotation(pod: Pod, key: str) -> str | None:
    return (pod.metadata.annotations or {}).get(key)


DIFFERENCES = {
    "an equal pod is the same": (pod(), pod(), PodDifference.SAME),
    "another spec is an update": (pod(), pod(node="n2"), PodDifference.UPDATE),
    "other labels are an update": (pod(labels={"a": "1"}), pod(labels={"a": "2"}), PodDifference.UPDATE),
    "no labels and empty labels differ": (pod(labels=None), pod(labels={}), PodDifference.UPDATE),
    "a new annotation is an update": (pod(), pod(annotations={"user/a": "1"}), PodDifference.UPDATE),
    "a removed annotation is an update": (pod(annotations={"user/a": "1"}), pod(), PodDifference.UPDATE),
    "an annotation with another value is an update":
        (pod(annotations={"user/a": "1"}), pod(annotations={"user/a": "2"}), PodDifference.UPDATE),
    "no annotations and empty ones are the same": (pod(annotations=None), pod(annotations={}), PodDifference.SAME),
    "another config hash is an update": (
        pod(annotations={CONFIG_HASH_ANNOTATION: "1"}),
        pod(annotations={CONFIG_HASH_ANNOTATION: "2"}),
        PodDifference.UPDATE,
    ),
    "local annotations do not count": (
        pod(annotations={CONFIG_MIRROR_ANNOTATION: "1", CONFIG_SOURCE_ANNOTATION: "file"}),
        pod(annotations={CONFIG_MIRROR_ANNOTATION: "2", CONFIG_FIRST_SEEN_ANNOTATION: "x"}),
        PodDifference.SAME,
    ),
    "a first deletion time is a graceful deletion": (pod(), pod(deleted="2024-01-01T00:00:00Z"), PodDifference.DELETE),
    "a changed deletion grace period is a deletion again": (
        pod(deleted="2024-01-01T00:00:00Z", deletion_grace=30),
        pod(deleted="2024-01-01T00:00:00Z", deletion_grace=1),
        PodDifference.DELETE,
    ),
    "a new spec of a pod being deleted is a deletion again": (
        pod(deleted="2024-01-01T00:00:00Z"), pod(deleted="2024-01-01T00:00:00Z", node="n2"), PodDifference.DELETE,
    ),
    "a removed deletion time is an update": (pod(deleted="2024-01-01T00:00:00Z"), pod(), PodDifference.UPDATE),
    "only another status is reconciled": (
        pod(status=PodStatus(message="a")), pod(status=PodStatus(message="b")), PodDifference.RECONCILE,
    ),
    "a new spec counts before a new status": (
        pod(status=PodStatus(message="a")), pod(node="n2", status=PodStatus(message="b")), PodDifference.UPDATE,
    ),
    "resourceVersion and generation do not count": (pod(), pod(version="7", generation=2), PodDifference.SAME),
}  # fmt: skip


@pytest.mark.parametrize("before, after, expected", DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_compare(before: Pod, after: Pod, expected: PodDifference) -> None:
    assert compare(before, after) is expected


def test_a_new_pod_gets_its_source_and_first_seen_time() -> None:
    merged = merge(
        {}, pod_update(Op.SET, pod(annotations={"user/a": "1", CONFIG_FIRST_SEEN_ANNOTATION: "forged"})), NOW
    )
    assert merged.added[0].metadata.annotations == {
        "user/a": "1",
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: SEEN,
    }


def test_an_update_replaces_annotations_but_keeps_the_local_ones() -> None:
    stored_pods = stored(pod(annotations={"user/a": "1", CONFIG_MIRROR_ANNOTATION: "h1"}))
    fresh = pod(annotations={"user/b": "2", CONFIG_MIRROR_ANNOTATION: "h2", CONFIG_SOURCE_ANNOTATION: "forged"})
    assert merge(stored_pods, pod_update(Op.UPDATE, fresh), LATER).updated[0].metadata.annotations == {
        "user/b": "2",
        CONFIG_MIRROR_ANNOTATION: "h1",
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: SEEN,
    }


def test_an_update_may_add_a_local_annotation_that_was_not_stored() -> None:
    fresh = pod(node="n2", annotations={CONFIG_MIRROR_ANNOTATION: "h1"})
    (updated,) = merge(stored(pod()), pod_update(Op.UPDATE, fresh), LATER).updated
    assert annotation(updated, CONFIG_MIRROR_ANNOTATION) == "h1"


def test_an_update_changes_generation_and_status_but_no_other_metadata() -> None:
    stored_pods = stored(pod(version="1", generation=1))
    fresh = pod(version="2", generation=2, node="n2", status=PodStatus(message="b"))
    (updated,) = merge(stored_pods, pod_update(Op.UPDATE, fresh), LATER).updated
    assert (updated.spec, updated.status) == (fresh.spec, fresh.status)
    assert (updated.metadata.generation, updated.metadata.resource_version) == (2, "1")


def test_a_reconciled_pod_only_changes_its_status() -> None:
    stored_pods = stored(pod(status=PodStatus(message="a")))
    (reconciled,) = merge(
        stored_pods, pod_update(Op.SET, pod(version="9", status=PodStatus(message="b"))), LATER
    ).reconciled
    assert reconciled == replace(stored_pods[PodUID("uid-web")], status=PodStatus(message="b"))


def test_an_unchanged_pod_keeps_its_stored_object() -> None:
    stored_pods = stored(pod(annotations={"user/a": "1"}))
    again = merge(stored_pods, pod_update(Op.SET, pod(annotations={"user/a": "1"})), LATER)
    assert again.pods[PodUID("uid-web")] is stored_pods[PodUID("uid-web")]


KNOWN, OTHER = pod("known"), pod("other")

OPS = {
    "SET adds new pods, updates known ones and removes missing ones":
        (pod_update(Op.SET, pod("known", node="n2"), pod("new")), "A:new U:known R:other"),
    "an empty SET removes all pods": (pod_update(Op.SET), "R:known R:other"),
    "ADD of a known pod is an update": (pod_update(Op.ADD, pod("known", node="n2")), "U:known"),
    "UPDATE of an unknown pod is an addition": (pod_update(Op.UPDATE, pod("new")), "A:new"),
    "DELETE of an unknown pod is an addition": (pod_update(Op.DELETE, pod("new", deleted=True)), "A:new"),
    "DELETE without a deletion time is an update": (pod_update(Op.DELETE, pod("known", node="n2")), "U:known"),
    "ADD with a deletion time is a deletion":
        (pod_update(Op.ADD, pod("known", deleted="2024-01-01T00:00:00Z")), "D:known"),
    "ADD removes nothing": (pod_update(Op.ADD), ""),
    "REMOVE removes a known pod": (pod_update(Op.REMOVE, pod("known")), "R:known"),
    "REMOVE needs only the UID": (pod_update(Op.REMOVE, Pod(metadata=ObjectMeta(uid="uid-known"))), "R:known"),
    "REMOVE of an unknown pod does nothing": (pod_update(Op.REMOVE, pod("new")), ""),
    "REMOVE of one pod twice removes it once": (pod_update(Op.REMOVE, KNOWN, KNOWN), "R:known"),
    "RECONCILE from a source is ignored": (
        pod_update(Op.RECONCILE, pod("known", status=PodStatus(message="x")), pod("new")), "",
    ),
    "of two pods with the same full name, the first one counts":
        (pod_update(Op.ADD, pod("new", uid="1"), pod("new", uid="2"), pod("new", uid="3")), "A:new"),
    "a UID with two names is one pod: added, then updated":
        (pod_update(Op.ADD, pod("a", uid="1"), pod("b", uid="1", node="n2")), "A:a U:a"),
    "in a SET, two new pods with one UID are both added":
        (pod_update(Op.SET, KNOWN, OTHER, pod("a", uid="1"), pod("b", uid="1")), "A:a A:b"),
}  # fmt: skip


def summary(merged: MergeResult) -> str:
    lists = zip("AUDRS", (merged.added, merged.updated, merged.deleted, merged.removed, merged.reconciled), strict=True)
    return " ".join(f"{letter}:{pod.metadata.name}" for letter, pods in lists for pod in pods)


@pytest.mark.parametrize("given_change, expected", OPS.values(), ids=OPS.keys())
def test_op(given_change: PodUpdate, expected: str) -> None:
    assert summary(merge(stored(KNOWN, OTHER), given_change, LATER)) == expected


def test_a_pod_that_occurs_twice_has_its_final_content_in_each_list() -> None:
    given_change = pod_update(
        Op.ADD,
        pod("a", uid="1", node="n1"),
        pod("b", uid="1", node="n2"),
        pod("c", uid="1", node="n2", status=PodStatus(message="x")),
    )
    merged = merge({}, given_change, NOW)
    assert merged.added == merged.updated == merged.reconciled
    assert (merged.added[0].metadata.name, merged.added[0].spec.node_name, merged.added[0].status.message) == (
        "a",
        "n2",
        "x",
    )


def test_the_event_of_a_duplicate_has_its_name_and_uid() -> None:
    merged = merge({}, pod_update(Op.SET, pod(uid="1"), pod(uid="2"), source="file"), NOW)
    (dropped,) = merged.duplicates
    expected = 'Error validating pod web_ns(2) from file due to duplicate pod name "web", ignoring'
    assert duplicate_warning(dropped, "file") == PodEvent(EventType.WARNING, "FailedValidation", expected, "2")


@pytest.mark.parametrize("op", [Op.SET, Op.ADD, Op.UPDATE, Op.DELETE, Op.REMOVE])
def test_a_pod_without_uid_is_rejected_with_source_pod_and_field(op: Op) -> None:
    with pytest.raises(
        BadInput, match=r"pods\[1\]\.metadata\.uid: Required value: cannot merge pod web_ns from file without a uid"
    ):
        merge({}, pod_update(op, pod("first"), pod(uid=""), source="file"), NOW)


def test_a_pod_without_name_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"metadata\.name: Required value: cannot merge pod _ns from api without a name"):
        merge({}, pod_update(Op.SET, pod("", uid="1")), NOW)


def test_an_unknown_operation_is_rejected() -> None:
    with pytest.raises(BadInput, match="from file: unknown operation 'REPLACE'"):
        merge({}, pod_update("REPLACE", pod(), source="file"), NOW)  # type: ignore[arg-type]  # the point


# Announcements: every combination of what a merge can hold, in every mode.

ONE = (pod("one"),)
ALL = (pod("one"), pod("two"))


def ops(updates: tuple[PodUpdate, ...]) -> list[str]:
    return [update.op.value if update.pods else f"{update.op.value}()" for update in updates]


def every_merge() -> list[tuple[MergeResult, bool]]:
    return [
        (MergeResult(pods={}, whole=False, added=a, updated=u, deleted=d, removed=r, reconciled=s), first)
        for a, u, d, r, s in product([(), ONE], repeat=5)
        for first in (False, True)
    ]


def test_incremental_mode_sends_each_change_once_in_order_and_only_the_first_set_may_be_empty() -> None:
    for merged, first in every_merge():
        given_change = ops(notifications(NotificationMode.INCREMENTAL, "api", merged, first, ()))
        silent = not (merged.added or merged.updated or merged.deleted)
        expected = [
            *(["REMOVE"] if merged.removed else []),
            *(["ADD"] if merged.added else ["ADD()"] if first and silent else []),
            *(["UPDATE"] if merged.updated else []),
            *(["DELETE"] if merged.deleted else []),
            *(["RECONCILE"] if merged.reconciled else []),
        ]
        assert given_change == expected


def test_snapshot_modes_send_all_pods_or_nothing_and_ignore_status_changes() -> None:
    for merged, first in every_merge():
        came_or_went = bool(merged.added or merged.removed or first)
        changes = [*(["UPDATE"] if merged.updated else []), *(["DELETE"] if merged.deleted else [])]
        both = notifications(NotificationMode.SNAPSHOT_AND_UPDATES, "api", merged, first, ALL)
        assert ops(both) == [*(["SET"] if came_or_went else []), *changes]
        only = notifications(NotificationMode.SNAPSHOT, "api", merged, first, ALL)
        assert ops(only) == (["SET"] if came_or_went or changes else [])
        assert all(update.pods == ALL for update in [*both, *only] if update.op is Op.SET)


# Laws.

names = st.sampled_from(["a", "b", "c"])
pods = st.builds(
    pod,
    names,
    uid=st.sampled_from(["1", "2", "3"]),
    node=st.sampled_from(["n1", "n2"]),
    status=st.sampled_from([PodStatus(message=""), PodStatus(message="x")]),
    labels=st.sampled_from([None, {}, {"a": "1"}]),
    annotations=st.sampled_from([None, {}, {"user/a": "1"}, {CONFIG_MIRROR_ANNOTATION: "h"}]),
    deleted=st.sampled_from([False, "2024-01-01T00:00:00Z"]),
)
lists = st.lists(pods, max_size=4).map(tuple)
one_pod_per_uid = st.lists(pods, max_size=4, unique_by=lambda pod: pod.metadata.uid).map(tuple)
changes = st.builds(PodUpdate, st.sampled_from(list(Op)), lists, st.just("api"))


@given(lists, one_pod_per_uid)
def test_a_repeated_set_changes_nothing(before: tuple[Pod, ...], given_change: tuple[Pod, ...]) -> None:
    once = merge(stored(*before), pod_update(Op.SET, *given_change), NOW)
    twice = merge(once.pods, pod_update(Op.SET, *given_change), LATER)
    assert summary(twice) == ""
    assert twice.pods == once.pods


@given(lists, one_pod_per_uid)
def test_after_a_set_the_stored_pods_are_that_set_without_duplicates(
    before: tuple[Pod, ...], given_change: tuple[Pod, ...]
) -> None:
    merged = merge(stored(*before), pod_update(Op.SET, *given_change), NOW)
    accepted = [pod for pod in given_change if pod not in merged.duplicates]
    assert list(merged.pods) == [pod.metadata.uid for pod in accepted]
    assert all(compare(merged.pods[PodUID(pod.metadata.uid or "")], pod) is PodDifference.SAME for pod in accepted)


def stored_after(stored_pods: Mapping[PodUID, Pod], merged: MergeResult) -> dict[PodUID, Pod]:
    """The stored pods of a source after a merge."""
    gone = {pod.metadata.uid for pod in merged.removed}
    kept = {} if merged.whole else {uid: pod for uid, pod in stored_pods.items() if uid not in gone}
    return {**kept, **merged.pods}


@given(lists, changes)
def test_a_consumer_of_all_updates_has_the_stored_pods(before: tuple[Pod, ...], given_change: PodUpdate) -> None:
    stored_pods = stored(*before)
    merged = merge(stored_pods, given_change, LATER)
    view = dict(stored_pods)
    for update in notifications(NotificationMode.INCREMENTAL, "api", merged, False, ()):
        for changed in update.pods:
            uid = PodUID(changed.metadata.uid or "")
            if update.op is Op.REMOVE:
                assert view.pop(uid) == changed
            else:
                view[uid] = changed
    assert view == stored_after(stored_pods, merged)


@given(lists, changes)
def test_merge_does_not_change_its_inputs(before: tuple[Pod, ...], given_change: PodUpdate) -> None:
    stored_pods = stored(*before)
    as_it_was = msgspec.json.encode([list(stored_pods.values()), given_change.pods])
    merge(stored_pods, given_change, LATER)
    assert msgspec.json.encode([list(stored_pods.values()), given_change.pods]) == as_it_was


@given(lists, changes)
def test_the_first_seen_time_never_changes(before: tuple[Pod, ...], given_change: PodUpdate) -> None:
    stored_pods = stored(*before)
    merged = merge(stored_pods, given_change, LATER)
    for uid in stored_pods.keys() & merged.pods.keys():
        assert annotation(merged.pods[uid], CONFIG_FIRST_SEEN_ANNOTATION) == SEEN
