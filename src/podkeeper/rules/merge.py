"""Merge a change from a pod source into the pods that are stored for it.

    stored pods + change  --merge-->  pods that were added, updated, deleted, removed, reconciled
                                                     |
                                     notifications (one of three modes)  -->  updates for the loop

A pod is updated if its spec, labels, deletion time, deletion grace period or annotations differ. Local annotations,
which the agent itself sets, do not count. A pod with only another status is reconciled, because the node owns the
status. All other fields (resourceVersion, owners, ...) stay as first seen, except generation.

Values are shared and never change. An unchanged pod keeps its stored object. `engine/storage.py` stores the pods.
Kubelet counterpart: `podStorage.merge` in pkg/kubelet/config/config.go. The snapshot modes and the operations other
than SET are those of release 1.25.
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
from podkeeper.rules.static.mirror import full_name

LOCAL_ANNOTATIONS = frozenset({CONFIG_SOURCE_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_FIRST_SEEN_ANNOTATION})
"""Annotations that the agent sets. A source cannot change them once they are stored."""


class NotificationMode(StrEnum):
    """Which updates the loop receives."""

    INCREMENTAL = "incremental"  # each change separately; the only mode with reconciliation
    SNAPSHOT_AND_UPDATES = "snapshot_and_updates"  # all pods if pods are added or removed, otherwise the changes
    SNAPSHOT = "snapshot"  # all pods on any change


class PodDifference(Enum):
    """How a pod differs from the stored one."""

    SAME = auto()
    RECONCILE = auto()  # only the status differs
    DELETE = auto()  # it differs and has a deletion timestamp: a graceful deletion
    UPDATE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of one change. A pod that occurs twice in a change has its final content in each list."""

    pods: Mapping[PodUID, Pod]  # all pods of the source after a SET, otherwise the changed ones
    whole: bool  # `pods` has all pods of the source
    added: tuple[Pod, ...] = ()
    updated: tuple[Pod, ...] = ()
    deleted: tuple[Pod, ...] = ()
    removed: tuple[Pod, ...] = ()
    reconciled: tuple[Pod, ...] = ()
    duplicates: tuple[Pod, ...] = ()  # ignored, because an earlier pod of the change has the same full name


def merge(stored_pods: Mapping[PodUID, Pod], change: PodUpdate, now: datetime) -> MergeResult:
    """Merge a change into the stored pods of its source.

    SET has all pods of the source. ADD, UPDATE and DELETE have the new content of known or unknown pods. REMOVE needs
    only UIDs and ignores unknown ones. RECONCILE never comes from a source and is ignored.
    """
    match change.op:
        case Op.SET | Op.ADD | Op.UPDATE | Op.DELETE:
            whole = change.op is Op.SET
        case Op.REMOVE:
            return _remove(stored_pods, change)
        case Op.RECONCILE:
            return MergeResult(pods={}, whole=False)
        case unknown:
            raise BadInput(Problem(f"cannot merge a change from {change.source}: unknown operation {unknown!r}", "op"))
    accepted, duplicates = _without_duplicates(change)
    # UTC. The kubelet writes local time.
    first_seen = _nano_time(now)
    pods: dict[PodUID, Pod] = {}
    added: list[tuple[PodUID, Pod]] = []
    changed: dict[PodDifference, list[PodUID]] = {difference: [] for difference in PodDifference}
    latest: dict[PodUID, Pod] = {}  # pods that were known, or became known with this change (not in a SET)
    for pod in accepted:
        uid = PodUID(pod.metadata.uid or "")
        stored = latest.get(uid) or stored_pods.get(uid)
        if stored is None:
            pods[uid] = _newly_seen(pod, change.source, first_seen)
            added.append((uid, pods[uid]))
            # Within a SET, a new pod does not become known, so a second one with its UID is added, too.
            if not whole:
                latest[uid] = pods[uid]
            continue
        difference = compare(stored, pod)
        if difference is PodDifference.SAME:
            pods[uid] = stored
            continue
        latest[uid] = pods[uid] = _updated_pod(stored, pod, difference)
        changed[difference].append(uid)
    return MergeResult(
        pods=pods,
        whole=whole,
        added=tuple(latest.get(uid, pod) for uid, pod in added),
        updated=tuple(latest[uid] for uid in changed[PodDifference.UPDATE]),
        deleted=tuple(latest[uid] for uid in changed[PodDifference.DELETE]),
        removed=tuple(latest.get(uid, pod) for uid, pod in stored_pods.items() if uid not in pods) if whole else (),
        reconciled=tuple(latest[uid] for uid in changed[PodDifference.RECONCILE]),
        duplicates=duplicates,
    )


def compare(stored: Pod, fresh: Pod) -> PodDifference:
    """Return how a pod differs from the stored one. Local annotations do not count."""
    before, after = stored.metadata, fresh.metadata
    if (
        stored.spec != fresh.spec
        or before.labels != after.labels
        or before.deletion_timestamp != after.deletion_timestamp
        or before.deletion_grace_period_seconds != after.deletion_grace_period_seconds
        or not _same_annotations(before.annotations or {}, after.annotations or {})
    ):
        return PodDifference.UPDATE if after.deletion_timestamp is None else PodDifference.DELETE
    return PodDifference.SAME if stored.status == fresh.status else PodDifference.RECONCILE


def notifications(
    mode: NotificationMode, source: str, result: MergeResult, first_set: bool, all_pods: Sequence[Pod]
) -> tuple[PodUpdate, ...]:
    """Return the updates for a merge, in the order of delivery.

    `first_set`: this is the first SET of its source. It needs an update even if it is empty, because the loop then
    counts the source as ready. `all_pods` (of all sources) is only used in the snapshot modes.
    """
    membership_changed = bool(result.added or result.removed) or first_set
    changed = bool(result.updated or result.deleted)
    match mode:
        case NotificationMode.INCREMENTAL:
            # Any other update of the first SET already makes the source ready.
            ready = first_set and not result.added and not changed
            updates = [
                # The kubelet's order. Removals come first, so a changed static pod is stopped before its successor is
                # handled.
                (Op.REMOVE, result.removed, bool(result.removed)),
                (Op.ADD, result.added, bool(result.added) or ready),
                (Op.UPDATE, result.updated, bool(result.updated)),
                (Op.DELETE, result.deleted, bool(result.deleted)),
                (Op.RECONCILE, result.reconciled, bool(result.reconciled)),
            ]
        case NotificationMode.SNAPSHOT_AND_UPDATES:
            updates = [
                (Op.SET, tuple(all_pods), membership_changed),
                (Op.UPDATE, result.updated, bool(result.updated)),
                (Op.DELETE, result.deleted, bool(result.deleted)),
            ]
        case NotificationMode.SNAPSHOT:
            updates = [(Op.SET, tuple(all_pods), membership_changed or changed)]
    return tuple(PodUpdate(op, pods, source) for op, pods, due in updates if due)


def duplicate_warning(pod: Pod, source: str) -> PodEvent:
    """Return the event for a pod that was ignored because of its name."""
    name, uid = pod.metadata.name, pod.metadata.uid or ""
    message = f'Error validating pod {full_name(pod)}({uid}) from {source} due to duplicate pod name "{name}", ignoring'
    return PodEvent(EventType.WARNING, "FailedValidation", message, uid)


def _remove(stored_pods: Mapping[PodUID, Pod], change: PodUpdate) -> MergeResult:
    removed: dict[PodUID, Pod] = {}
    for index, pod in enumerate(change.pods):
        if not pod.metadata.uid:
            raise _refusal(change.source, pod, index, "uid")
        if (known := stored_pods.get(uid := PodUID(pod.metadata.uid))) is not None:
            removed[uid] = known
    return MergeResult(pods={}, whole=False, removed=tuple(removed.values()))


def _without_duplicates(change: PodUpdate) -> tuple[list[Pod], tuple[Pod, ...]]:
    """Split a change into accepted pods and those whose full name an earlier pod has."""
    taken: set[tuple[str, str]] = set()
    accepted, duplicates = [], []
    for index, pod in enumerate(change.pods):
        metadata = pod.metadata
        if not metadata.uid or not metadata.name:
            raise _refusal(change.source, pod, index, "name" if metadata.uid else "uid")
        if (name := (metadata.name, metadata.namespace or "")) in taken:
            duplicates.append(pod)
        else:
            taken.add(name)
            accepted.append(pod)
    return accepted, tuple(duplicates)


def _refusal(source: str, pod: Pod, index: int, missing: str) -> BadInput:
    # Merge a change completely or not at all, because a partial SET would remove pods.
    message = f"Required value: cannot merge pod {full_name(pod)} from {source} without a {missing}"
    return BadInput(Problem(message, field=f"pods[{index}].metadata.{missing}"))


def _same_annotations(stored: Mapping[str, str], fresh: Mapping[str, str]) -> bool:
    for key, value in fresh.items():
        if stored.get(key) != value and key not in LOCAL_ANNOTATIONS:
            return False
    for key in stored:  # noqa: SIM110 - `all(...)` would double the time of this function
        if key not in fresh and key not in LOCAL_ANNOTATIONS:
            return False
    return True


def _newly_seen(pod: Pod, source: str, first_seen: str) -> Pod:
    local = {CONFIG_SOURCE_ANNOTATION: source, CONFIG_FIRST_SEEN_ANNOTATION: first_seen}
    return replace(pod, metadata=replace(pod.metadata, annotations={**(pod.metadata.annotations or {}), **local}))


def _updated_pod(stored: Pod, fresh: Pod, difference: PodDifference) -> Pod:
    """Return the stored pod with the changes of the fresh one."""
    if difference is PodDifference.RECONCILE:
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
    """Format a time as RFC 3339 with nine digits, as the kubelet writes the first-seen time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "000Z"
