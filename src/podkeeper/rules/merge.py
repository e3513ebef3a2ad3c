"""Merging: what one message of a source changes in what that source said before.

    said before + change  --merge-->  said now + who was added, updated, deleted, removed, reconciled
                                                     |
                                     announcements (one of three modes)  -->  updates for the loop

A pod changes its *meaning* with its spec, labels, deletion time, deletion grace, or annotations other than the
local ones (those the agent itself keeps on a pod). A pod whose status alone differs is reconciled: the node is the
truth for status. All else (resourceVersion, owners, ...) stays as it was first seen, except generation.

Promises: values are shared, never changed; a pod that says nothing new keeps the very object stored before. The
shell that holds the pods is `engine/storage.py`. The Go ancestor is `podStorage.merge` in pkg/kubelet/config/config.go
(the snapshot modes and the input ops other than SET are those of release 1.25).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum, auto

from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    EventType,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
)
from podkeeper.rules.mirror import full_name

LOCAL_ANNOTATIONS = frozenset({CONFIG_SOURCE_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_FIRST_SEEN_ANNOTATION})
"""What the agent itself keeps on a pod: no source can change these once they are stored."""


class NotificationMode(StrEnum):
    """How much the loop is told."""

    INCREMENTAL = "incremental"  # each change by itself; the only mode that reconciles
    SNAPSHOT_AND_UPDATES = "snapshot_and_updates"  # everything when pods come or go; else the changes
    SNAPSHOT = "snapshot"  # everything on any change


class Verdict(Enum):
    """How a pod differs from what its source said of it before."""

    SAME = auto()
    RECONCILE = auto()  # only the status differs
    DELETE = auto()  # it differs and is (still) being deleted: a graceful deletion
    UPDATE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What one change comes to. A pod named twice in one change stands in each list with its final content."""

    pods: Mapping[PodUID, Pod]  # what the source says now: all of it after a SET, else only what it says anew
    whole: bool  # all of it
    added: tuple[Pod, ...] = ()
    updated: tuple[Pod, ...] = ()
    deleted: tuple[Pod, ...] = ()
    removed: tuple[Pod, ...] = ()
    reconciled: tuple[Pod, ...] = ()
    duplicates: tuple[Pod, ...] = ()  # dropped: an earlier pod of the same change has their full name


def merge(said: Mapping[PodUID, Pod], change: PodUpdate, now: datetime) -> Merged:
    """Merge a source's change into what it said before.

    SET is all the source has; ADD, UPDATE and DELETE are all "this is how these pods are now", whether known or
    not. REMOVE needs no more than UIDs and forgives unknown ones. RECONCILE is ours to say, not a source's: ignored.
    """
    match change.op:
        case Op.SET | Op.ADD | Op.UPDATE | Op.DELETE:
            whole = change.op is Op.SET
        case Op.REMOVE:
            return _remove(said, change)
        case Op.RECONCILE:
            return Merged(pods={}, whole=False)
        case unknown:
            raise BadInput(Problem(f"cannot merge a change from {change.source}: {unknown!r} is no operation", "op"))
    accepted, duplicates = _first_of_each_name(change)
    first_seen = _nano_time(now)
    pods: dict[PodUID, Pod] = {}
    added: list[tuple[PodUID, Pod]] = []
    changed: dict[Verdict, list[PodUID]] = {verdict: [] for verdict in Verdict}
    latest: dict[PodUID, Pod] = {}  # of those that were known, or (but in a SET) became known with this change
    for pod in accepted:
        uid = PodUID(pod.metadata.uid or "")
        stored = latest.get(uid) or said.get(uid)
        if stored is None:
            pods[uid] = _newly_seen(pod, change.source, first_seen)
            added.append((uid, pods[uid]))
            # Within a SET a new pod never becomes known, so that a second one of its UID is added beside it.
            if not whole:
                latest[uid] = pods[uid]
            continue
        verdict = compare(stored, pod)
        if verdict is Verdict.SAME:
            pods[uid] = stored
            continue
        latest[uid] = pods[uid] = _taken_over(stored, pod, verdict)
        changed[verdict].append(uid)
    return Merged(
        pods=pods,
        whole=whole,
        added=tuple(latest.get(uid, pod) for uid, pod in added),
        updated=tuple(latest[uid] for uid in changed[Verdict.UPDATE]),
        deleted=tuple(latest[uid] for uid in changed[Verdict.DELETE]),
        removed=tuple(latest.get(uid, pod) for uid, pod in said.items() if uid not in pods) if whole else (),
        reconciled=tuple(latest[uid] for uid in changed[Verdict.RECONCILE]),
        duplicates=duplicates,
    )


def compare(stored: Pod, fresh: Pod) -> Verdict:
    """How a pod differs from its stored self, local annotations aside."""
    before, after = stored.metadata, fresh.metadata
    if (
        stored.spec != fresh.spec
        or before.labels != after.labels
        or before.deletion_timestamp != after.deletion_timestamp
        or before.deletion_grace_period_seconds != after.deletion_grace_period_seconds
        or not _same_annotations(before.annotations or {}, after.annotations or {})
    ):
        return Verdict.UPDATE if after.deletion_timestamp is None else Verdict.DELETE
    return Verdict.SAME if stored.status == fresh.status else Verdict.RECONCILE


def announcements(
    mode: NotificationMode, source: str, merged: Merged, first_set: bool, everything: Sequence[Pod]
) -> tuple[PodUpdate, ...]:
    """The updates that tell of a merge, in the order in which they must be delivered.

    `first_set`: the change made its source seen. The loop learns from the update's source that it is ready, so
    there is one even if it is empty. `everything` (all pods of all sources) is read only in the snapshot modes.
    """
    came_or_went = bool(merged.added or merged.removed) or first_set
    changed = bool(merged.updated or merged.deleted)
    match mode:
        case NotificationMode.INCREMENTAL:
            ready = first_set and not merged.added and not changed
            told = [
                (Op.REMOVE, merged.removed, bool(merged.removed)),
                (Op.ADD, merged.added, bool(merged.added) or ready),
                (Op.UPDATE, merged.updated, bool(merged.updated)),
                (Op.DELETE, merged.deleted, bool(merged.deleted)),
                (Op.RECONCILE, merged.reconciled, bool(merged.reconciled)),
            ]
        case NotificationMode.SNAPSHOT_AND_UPDATES:
            told = [
                (Op.SET, tuple(everything), came_or_went),
                (Op.UPDATE, merged.updated, bool(merged.updated)),
                (Op.DELETE, merged.deleted, bool(merged.deleted)),
            ]
        case NotificationMode.SNAPSHOT:
            told = [(Op.SET, tuple(everything), came_or_went or changed)]
    return tuple(PodUpdate(op, pods, source) for op, pods, due in told if due)


def duplicate_warning(pod: Pod, source: str) -> PodEvent:
    """The event about a pod that was dropped because of its name."""
    name, uid = pod.metadata.name, pod.metadata.uid or ""
    message = f'Error validating pod {full_name(pod)}({uid}) from {source} due to duplicate pod name "{name}", ignoring'
    return PodEvent(EventType.WARNING, "FailedValidation", message, uid)


def _remove(said: Mapping[PodUID, Pod], change: PodUpdate) -> Merged:
    removed: dict[PodUID, Pod] = {}
    for index, pod in enumerate(change.pods):
        if not pod.metadata.uid:
            raise _refusal(change.source, pod, index, "uid")
        if (known := said.get(uid := PodUID(pod.metadata.uid))) is not None:
            removed[uid] = known
    return Merged(pods={}, whole=False, removed=tuple(removed.values()))


def _first_of_each_name(change: PodUpdate) -> tuple[list[Pod], tuple[Pod, ...]]:
    """Split a change into the pods that count and those whose full name an earlier one took."""
    taken: set[tuple[str, str]] = set()
    accepted, duplicates = [], []
    for index, pod in enumerate(change.pods):
        about = pod.metadata
        if not about.uid or not about.name:
            raise _refusal(change.source, pod, index, "name" if about.uid else "uid")
        if (name := (about.name, about.namespace or "")) in taken:
            duplicates.append(pod)
        else:
            taken.add(name)
            accepted.append(pod)
    return accepted, tuple(duplicates)


def _refusal(source: str, pod: Pod, index: int, missing: str) -> BadInput:
    # A change is merged as a whole or not at all: half a SET would remove pods that are only misread.
    message = f"cannot merge pod {full_name(pod)} from {source} without a {missing}; right would be any non-empty text"
    return BadInput(Problem(message, field=f"pods[{index}].metadata.{missing}"))


def _same_annotations(stored: Mapping[str, str], fresh: Mapping[str, str]) -> bool:
    for key, value in fresh.items():
        if stored.get(key) != value and key not in LOCAL_ANNOTATIONS:
            return False
    for key in stored:  # noqa: SIM110 - `all(...)` costs as much as the whole rest
        if key not in fresh and key not in LOCAL_ANNOTATIONS:
            return False
    return True


def _newly_seen(pod: Pod, source: str, first_seen: str) -> Pod:
    ours = {CONFIG_SOURCE_ANNOTATION: source, CONFIG_FIRST_SEEN_ANNOTATION: first_seen}
    return replace(pod, metadata=replace(pod.metadata, annotations={**(pod.metadata.annotations or {}), **ours}))


def _taken_over(stored: Pod, fresh: Pod, verdict: Verdict) -> Pod:
    """The stored pod with what the fresh one changes."""
    if verdict is Verdict.RECONCILE:
        return replace(stored, status=fresh.status)
    kept = {key: text for key, text in (stored.metadata.annotations or {}).items() if key in LOCAL_ANNOTATIONS}
    metadata = replace(
        stored.metadata,
        labels=fresh.metadata.labels,
        deletion_timestamp=fresh.metadata.deletion_timestamp,
        deletion_grace_period_seconds=fresh.metadata.deletion_grace_period_seconds,
        generation=fresh.metadata.generation,
        annotations={**(fresh.metadata.annotations or {}), **kept},
    )
    return replace(stored, metadata=metadata, spec=fresh.spec, status=fresh.status)


def _nano_time(moment: datetime) -> str:
    """RFC 3339 with exactly nine digits, as the reference writes the time of first sight."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "000Z"
