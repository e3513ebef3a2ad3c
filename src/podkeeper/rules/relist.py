"""Relisting: what happened in the runtime between two looks at it.

    Book + listing --relist--> findings --(the shell inspects each pod)--> settle --> Book + events

In: the book (what each pod looked like when it was last inspected, and who must be inspected again) and a fresh
listing. Out: a finding per pod that changed; the shell inspects it (or, when it is gone, drops it from the cache) and
settles the finding. Only a successful inspection turns the page: until then the book keeps the old record, so that
the same change is found again, and no event runs ahead of the cache.

An unhealthy listing is simply not given to `relist`: nothing changes. A book may be about all pods, or about one:
settling copies it, so whoever keeps many pods keeps a book for each. The Go ancestor is `GenericPLEG` in
pkg/kubelet/pleg/generic.go; the shell is the engine's PLEG.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter

import msgspec

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord


class PodListing(msgspec.Struct, frozen=True):
    """One pod of a listing: ids and states, in the order listed. A sandbox counts as a container."""

    uid: PodUID
    containers: Mapping[str, ContainerState]
    sandboxes: Mapping[str, ContainerState]


class Book(msgspec.Struct, frozen=True):
    """What relisting remembers from one look to the next."""

    records: Mapping[PodUID, PodListing | None] = msgspec.field(default_factory=dict)  # None: seen, never yet inspected
    reinspect: frozenset[PodUID] = frozenset()  # to be inspected at the next look, changed or not


class Finding(msgspec.Struct, frozen=True):
    """A pod to be inspected; `listed` None: it is gone, there is nothing to inspect and the cache forgets it."""

    uid: PodUID
    listed: PodListing | None
    events: tuple[LifecycleEvent, ...]


def listing_of(record: PodRecord) -> PodListing:
    """A pod's listing from the runtime's records."""
    return PodListing(
        PodUID(record.uid),
        {container.id: container.state for container in record.containers},
        {box.id: ContainerState.RUNNING if box.ready else ContainerState.EXITED for box in record.sandboxes},
    )


def current_containers_first(record: PodRecord) -> PodRecord:
    """The record with the current container of each name before its others.

    That is one that runs, else the latest attempt that has started or can still be the next one.

    A create call of a killed agent may take effect late. It creates an earlier attempt again, or a later one that the
    next agent does not know. Sorted by time or by number alone, such a container would hide the one that runs or has
    run, and the agent would start another. A container that has not started does not count if a newer one has, or if
    it was created before another one ended: the next attempt is created only after that.
    """
    firsts: dict[str, tuple[bool, bool, int]] = {}
    started: set[str] = set()
    ranked: list[tuple[tuple[bool, bool, int], ContainerRecord]] = []
    in_order = True
    for container in record.containers:  # newest first
        name, has_started = container.name, container.state is not ContainerState.CREATED
        counts = has_started or (name not in started and not _was_created_too_early(container, record))
        rank = container.state is ContainerState.RUNNING, counts, container.restart_count
        in_order = in_order and firsts.setdefault(name, rank) >= rank
        if has_started:
            started.add(name)
        ranked.append((rank, container))
    if in_order:
        return record
    ranked.sort(key=itemgetter(0), reverse=True)  # stable: equals stay as they are
    return msgspec.structs.replace(record, containers=tuple(container for _, container in ranked))


def _was_created_too_early(container: ContainerRecord, record: PodRecord) -> bool:
    """Whether a container was created before another one of its name ended. Then it is not the next attempt."""
    created = container.created_at
    return created is not None and any(
        other.name == container.name and other.finished_at is not None and other.finished_at > created
        for other in record.containers
    )


def request_reinspection(book: Book, uid: PodUID) -> Book:
    """Have a pod inspected at the next look that shows it, even if it looks unchanged."""
    return Book(book.records, book.reinspect | {uid})


def relist(book: Book, listing: Iterable[PodListing]) -> tuple[Book, tuple[Finding, ...]]:
    """Find what a full listing shows to be new, changed, gone or due for inspection."""
    listed = {pod.uid: pod for pod in listing}
    return _look(book, {**dict.fromkeys(book.records), **listed})


def relist_pod(book: Book, uid: PodUID, listed: PodListing | None) -> tuple[Book, tuple[Finding, ...]]:
    """The same for one pod alone, as it is listed now; None: the runtime has nothing of it."""
    return _look(book, {uid: listed})


def is_unchanged(book: Book, listed: PodListing) -> bool:
    """Whether a listed pod is in the book just so: a quick way to know that `relist_pod` would find nothing."""
    return not book.reinspect and book.records.get(listed.uid) == listed


def settle(book: Book, finding: Finding, inspected: bool) -> tuple[Book, tuple[LifecycleEvent, ...]]:
    """Note how the inspection of a finding went, and say what to tell the loop.

    A pod that is gone always counts as inspected. `ContainerChanged` only leads to the inspection: nobody acts on it.
    """
    records = dict(book.records)
    if finding.listed is None:
        records.pop(finding.uid, None)
    elif inspected:
        records[finding.uid] = finding.listed
    else:
        records.setdefault(finding.uid, None)
        return Book(records, book.reinspect | {finding.uid}), ()
    # An inspection nobody saw a reason for must still reach the pod's worker.
    events = finding.events or (LifecycleEvent(finding.uid, LifecycleEventType.POD_SYNC),)
    told = tuple(event for event in events if event.type is not LifecycleEventType.CONTAINER_CHANGED)
    return Book(records, book.reinspect), told


def worth_telling(events: Iterable[LifecycleEvent], before: PodListing | None) -> tuple[LifecycleEvent, ...]:
    """The events without the deaths of containers that never lived: made, not started, and gone.

    Whoever starts a container first clears such leftovers away. Were that news, a start that fails would be tried
    again at once, and again: no pause would hold.
    """
    told = tuple(events)
    gone = {event.data for event in told if event.type is LifecycleEventType.CONTAINER_REMOVED}
    unlived = {each for each in gone if before is not None and before.containers.get(each) is ContainerState.CREATED}
    return tuple(
        event for event in told if event.data not in unlived or event.type is not LifecycleEventType.CONTAINER_DIED
    )


def events_between(uid: PodUID, old: PodListing | None, new: PodListing | None) -> tuple[LifecycleEvent, ...]:
    """What must have happened to a pod's containers and sandboxes between two listings.

    In the order of the old listing, containers before sandboxes; then those that are only in the new one.
    """
    if old == new:  # as a rule, and this is quicker
        return ()
    before, after = _states(old), _states(new)
    return tuple(
        LifecycleEvent(uid, kind, container)
        for container in dict.fromkeys([*before, *after])
        for kind in transition(before.get(container), after.get(container))
    )


def transition(old: ContainerState | None, new: ContainerState | None) -> tuple[LifecycleEventType, ...]:
    """The events of one container's step; None: it does not exist. Created counts as unknown."""
    old, new = _simple(old), _simple(new)
    if old is new:
        return ()
    match new:
        case ContainerState.RUNNING:
            return (LifecycleEventType.CONTAINER_STARTED,)
        case ContainerState.EXITED:
            return (LifecycleEventType.CONTAINER_DIED,)
        case None if old is ContainerState.EXITED:  # its death has been told already
            return (LifecycleEventType.CONTAINER_REMOVED,)
        case None:
            return (LifecycleEventType.CONTAINER_DIED, LifecycleEventType.CONTAINER_REMOVED)
        case _:
            return (LifecycleEventType.CONTAINER_CHANGED,)


def ips_to_cache(fresh: PodRecord, cached: PodRecord | None) -> tuple[str, ...]:
    """The addresses to cache with a fresh record.

    A pod that has ended has lost its network, but the API shows the address it had; so without a ready sandbox the
    addresses known before are kept.
    """
    if fresh.ips or cached is None or any(sandbox.ready for sandbox in fresh.sandboxes):
        return fresh.ips
    return cached.ips


def _look(book: Book, now: Mapping[PodUID, PodListing | None]) -> tuple[Book, tuple[Finding, ...]]:
    findings = []
    for uid, listed in now.items():
        events = events_between(uid, book.records.get(uid), listed)
        if events or uid in book.reinspect:
            findings.append(Finding(uid, listed, events))
    # A request made while an inspection runs must not be lost: so the wish is met now, not when it settles.
    return Book(book.records, book.reinspect.difference(now)), tuple(findings)


def _states(pod: PodListing | None) -> dict[str, ContainerState]:
    if pod is None:
        return {}
    return {**pod.containers, **{key: state for key, state in pod.sandboxes.items() if key not in pod.containers}}


def _simple(state: ContainerState | None) -> ContainerState | None:
    return ContainerState.UNKNOWN if state is ContainerState.CREATED else state
