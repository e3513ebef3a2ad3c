"""Relist: find what changed in the runtime, and derive lifecycle events.

    state + listing --relist--> pods to inspect --(the shell inspects each)--> complete_inspection --> state + events

In: a `RelistState` (each pod as of its last inspection, and the pods to inspect again) and a new listing. Out: the
pods that changed. The shell inspects each of them, or removes it from the cache if it is gone. Then it calls
`complete_inspection`. Until an inspection succeeds, the state keeps the old record. So the next relist finds the
same change again, and no event is sent before the cache is current.

If the runtime cannot be listed, `relist` is not called and nothing changes. A state may cover all pods or one pod.
The engine's PLEG has one state per pod, because `complete_inspection` copies the state. Kubelet counterpart:
`GenericPLEG` in pkg/kubelet/pleg/generic.go.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter

import msgspec

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState


class ListedPod(msgspec.Struct, frozen=True):
    """One pod of a listing, with the IDs and states of its containers and sandboxes in the order listed."""

    uid: PodUID
    containers: Mapping[str, RecordState]
    sandboxes: Mapping[str, RecordState]


class RelistState(msgspec.Struct, frozen=True):
    """What a relist needs from the previous one."""

    records: Mapping[PodUID, ListedPod | None] = msgspec.field(default_factory=dict)  # None: never inspected
    reinspect: frozenset[PodUID] = frozenset()  # to inspect at the next relist, even if unchanged


class PodToInspect(msgspec.Struct, frozen=True):
    """A pod to inspect. `listed` is None if the pod is gone, and the cache must remove it."""

    uid: PodUID
    listed: ListedPod | None
    events: tuple[LifecycleEvent, ...]


def listing_of(record: PodRecord) -> ListedPod:
    return ListedPod(
        PodUID(record.uid),
        {container.id: container.state for container in record.containers},
        {box.id: RecordState.RUNNING if box.ready else RecordState.EXITED for box in record.sandboxes},
    )


def current_containers_first(record: PodRecord) -> PodRecord:
    """Return the record with the current container of each name before the others.

    The current container is the running one, otherwise the latest attempt that has started or can still start next.

    A create call of a killed agent may take effect late. It creates an earlier attempt again, or a later one that the
    next agent did not request. If containers were sorted only by time or only by attempt, such a container would hide
    the one that runs or has run, and the agent would start another. So a container that never started is ignored in two
    cases:

    * A newer container of its name has started.
    * It was created before another container of its name exited. The agent creates the next attempt only after an exit.
    """
    firsts: dict[str, tuple[bool, bool, int]] = {}
    started: set[str] = set()
    ranked: list[tuple[tuple[bool, bool, int], ContainerRecord]] = []
    in_order = True
    for container in record.containers:  # newest first
        name, has_started = container.name, container.state is not RecordState.CREATED
        # Seeds 94 and 331: a create call of a dead agent made a later attempt. This attempt hid the running container,
        # and the agent started another one.
        counts = has_started or (name not in started and not _was_created_too_early(container, record))
        rank = container.state is RecordState.RUNNING, counts, container.restart_count
        in_order = in_order and firsts.setdefault(name, rank) >= rank
        if has_started:
            started.add(name)
        ranked.append((rank, container))
    if in_order:
        return record
    ranked.sort(key=itemgetter(0), reverse=True)  # stable
    return msgspec.structs.replace(record, containers=tuple(container for _, container in ranked))


def _was_created_too_early(container: ContainerRecord, record: PodRecord) -> bool:
    """Return whether a container was created before another one of its name ended. Then it is not the next attempt."""
    created = container.created_at
    return created is not None and any(
        other.name == container.name and other.finished_at is not None and other.finished_at > created
        for other in record.containers
    )


def request_reinspection(state: RelistState, uid: PodUID) -> RelistState:
    """Inspect a pod at the next relist, even if it is unchanged."""
    return RelistState(state.records, state.reinspect | {uid})


def relist(state: RelistState, listing: Iterable[ListedPod]) -> tuple[RelistState, tuple[PodToInspect, ...]]:
    """Return the pods of a full listing that are new, changed, gone or due for inspection."""
    listed = {pod.uid: pod for pod in listing}
    return _compare(state, {**dict.fromkeys(state.records), **listed})


def relist_pod(
    state: RelistState, uid: PodUID, listed: ListedPod | None
) -> tuple[RelistState, tuple[PodToInspect, ...]]:
    """Relist one pod. `listed` is None if the runtime does not have it."""
    return _compare(state, {uid: listed})


def is_unchanged(state: RelistState, listed: ListedPod) -> bool:
    """Return whether a pod is unchanged, so that `relist_pod` would find nothing. This is faster."""
    return not state.reinspect and state.records.get(listed.uid) == listed


def complete_inspection(
    state: RelistState, pod: PodToInspect, inspected: bool
) -> tuple[RelistState, tuple[LifecycleEvent, ...]]:
    """Store the result of an inspection, and return the events for the loop.

    A pod that is gone always counts as inspected. `ContainerChanged` only causes the inspection and is not returned.
    """
    records = dict(state.records)
    if pod.listed is None:
        records.pop(pod.uid, None)
    elif inspected:
        records[pod.uid] = pod.listed
    else:
        records.setdefault(pod.uid, None)
        return RelistState(records, state.reinspect | {pod.uid}), ()
    # A requested inspection must cause a sync even if nothing changed.
    events = pod.events or (LifecycleEvent(pod.uid, LifecycleEventType.POD_SYNC),)
    events = tuple(event for event in events if event.type is not LifecycleEventType.CONTAINER_CHANGED)
    return RelistState(records, state.reinspect), events


def relevant_events(events: Iterable[LifecycleEvent], before: ListedPod | None) -> tuple[LifecycleEvent, ...]:
    """Return the events without ContainerDied of containers that were created, never started and removed.

    Each start attempt first removes such containers. With an event, every failed start would cause the next attempt at
    once, without backoff.
    """
    events = tuple(events)
    gone = {event.data for event in events if event.type is LifecycleEventType.CONTAINER_REMOVED}
    unstarted = {each for each in gone if before is not None and before.containers.get(each) is RecordState.CREATED}
    return tuple(
        event for event in events if event.data not in unstarted or event.type is not LifecycleEventType.CONTAINER_DIED
    )


def events_between(uid: PodUID, old: ListedPod | None, new: ListedPod | None) -> tuple[LifecycleEvent, ...]:
    """Return the events of a pod's containers and sandboxes between two listings.

    They are in the order of the old listing, containers before sandboxes. New ones follow.
    """
    if old == new:  # the usual case
        return ()
    before, after = _states(old), _states(new)
    return tuple(
        LifecycleEvent(uid, kind, container)
        for container in dict.fromkeys([*before, *after])
        for kind in transition(before.get(container), after.get(container))
    )


def transition(old: RecordState | None, new: RecordState | None) -> tuple[LifecycleEventType, ...]:
    """Return the events of one container's change. None: it does not exist. Created counts as unknown."""
    old, new = _simple(old), _simple(new)
    if old is new:
        return ()
    match new:
        case RecordState.RUNNING:
            return (LifecycleEventType.CONTAINER_STARTED,)
        case RecordState.EXITED:
            return (LifecycleEventType.CONTAINER_DIED,)
        case None if old is RecordState.EXITED:  # ContainerDied was sent before
            return (LifecycleEventType.CONTAINER_REMOVED,)
        case None:
            return (LifecycleEventType.CONTAINER_DIED, LifecycleEventType.CONTAINER_REMOVED)
        case _:
            return (LifecycleEventType.CONTAINER_CHANGED,)


def ips_to_cache(fresh: PodRecord, cached: PodRecord | None) -> tuple[str, ...]:
    """Return the IP addresses to cache with a new record.

    A terminated pod has no network, but the API still shows its address. So keep the old addresses if no sandbox is
    ready.
    """
    if fresh.ips or cached is None or any(sandbox.ready for sandbox in fresh.sandboxes):
        return fresh.ips
    return cached.ips


def _compare(
    state: RelistState, now: Mapping[PodUID, ListedPod | None]
) -> tuple[RelistState, tuple[PodToInspect, ...]]:
    pods = []
    for uid, listed in now.items():
        events = events_between(uid, state.records.get(uid), listed)
        if events or uid in state.reinspect:
            pods.append(PodToInspect(uid, listed, events))
    # Clear the requests now, not after the inspection, so that a request during the inspection is not lost.
    return RelistState(state.records, state.reinspect.difference(now)), tuple(pods)


def _states(pod: ListedPod | None) -> dict[str, RecordState]:
    if pod is None:
        return {}
    return {**pod.containers, **{key: state for key, state in pod.sandboxes.items() if key not in pod.containers}}


def _simple(state: RecordState | None) -> RecordState | None:
    # As in the kubelet's PLEG, which has no state for created containers.
    return RecordState.UNKNOWN if state is RecordState.CREATED else state
