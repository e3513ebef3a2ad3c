"""PLEG, the pod lifecycle event generator: report changes in the runtime.

    runtime events ---.
    request(uid) -----+--> inspections, one per pod at a time --> cache, then LifecycleEvents
    the slow relist --'

A runtime event only names the pod to inspect. `rules.relist` compares the inspection with the pod's last known state to
find the change. So lost, repeated, late and reordered events lead to the same result, and a relist finds changes
without an event. While the event stream is trusted, relists are slow. Otherwise they are as frequent as in the kubelet.

Guarantees:

* The cache entry is stored before its lifecycle events are sent. Each change is reported once.
* If an inspection fails, the pod keeps its record and is inspected again, with backoff, until an inspection succeeds.
* A hung inspection or relist delays no other pod: after its lease, an inspection returns its slot.

An event costs O(1), a relist without changes some microseconds per pod. Kubelet counterparts:
pkg/kubelet/pleg/generic.go and evented.go.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from msgspec.structs import replace

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.concurrency.slots import Slots
from podkeeper.engine.cache import PodCache
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import AgentError, CallTimedOut
from podkeeper.model.messages import LifecycleEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.relist import (
    ListedPod,
    RelistState,
    complete_inspection,
    current_containers_first,
    ips_to_cache,
    is_unchanged,
    listing_of,
    relevant_events,
    relist_pod,
    request_reinspection,
)

log = logging.getLogger(__name__)

_NEVER = float("-inf")
_NOT_YET = float("inf")
_BLANK = RelistState()
_NAMED = 3  # pods named in one line of the log
# The kubelet tries a failed inspection again with its next relist, after 1 s.
_RETRY = GrowingDelay(first_seconds=1.0, longest_seconds=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlegTiming:
    # Runtime events can be lost (k/k 121349), so the PLEG relists even while events are trusted.
    relist_seconds: float = 60.0  # between relists while events are trusted
    # The kubelet's relist period. It is the delay that users complain about in k/k 45278.
    poll_seconds: float = 1.0  # between relists while events are not trusted
    # CRI-O without enable_pod_events ends each new stream at once and without an error.
    trust_after_seconds: float = 5.0  # after this time, a new event stream is trusted
    distrust_seconds: float = 60.0  # after a missed event, the stream is not trusted for this time
    late_seconds: float = 2.0  # an event that arrives within this time after the relist was late, not missed
    # A backstop for runtimes without deadlines. The agent's BoundedRuntime ends a listing after 120 s.
    relist_deadline_seconds: float = 180.0
    # The kubelet's relistThreshold.
    unhealthy_seconds: float = 180.0  # after this time without a successful relist, the PLEG is unhealthy
    inspection_slots: int = 16
    inspection_lease_seconds: float = 10.0
    # As CallLimits.call_seconds, for runtimes without deadlines of their own.
    inspection_deadline_seconds: float = 120.0
    retry: GrowingDelay = _RETRY


DEFAULT_PLEG_TIMING = PlegTiming()


@dataclass(frozen=True, slots=True)
class SlowInspection:
    """An inspection that exceeds its lease."""

    uid: PodUID
    pod: str
    seconds: float


class _InspectionState(Enum):
    IDLE = auto()
    QUEUED = auto()  # waits for a slot
    RUNNING = auto()
    RUNNING_OUTDATED = auto()  # requested again after it began, so it may miss a change and another one follows
    BACKOFF = auto()  # the last one failed, and a timer starts the next one


@dataclass(slots=True, eq=False)
class _PlegPod:
    state: RelistState = _BLANK
    inspection: _InspectionState = _InspectionState.IDLE
    seen_at: float = _NEVER  # begin of the last successful inspection, or of the listing without the pod
    failures: int = 0
    retry: asyncio.TimerHandle | None = None
    inspected_at: float = _NEVER  # begin of the current or last inspection


@dataclass(slots=True, eq=False)
class _UnreportedChange:
    """A change of a pod that a listing shows and no event has reported."""

    listed_at: datetime  # on the clock of the events
    changed: bool  # False: an inspection must confirm the change


class Pleg:
    def __init__(
        self,
        *,
        runtime: Runtime,
        cache: PodCache,
        emit: Callable[[LifecycleEvent], None],
        clock: Clock,
        inspection_clock: Callable[[], float],
        timing: PlegTiming = DEFAULT_PLEG_TIMING,
        observer: Observer | None = None,
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._emit = emit
        self._clock = clock
        self._inspection_clock = inspection_clock
        self._timing = timing
        self._observer = observer or Observer()
        self._group: asyncio.TaskGroup | None = None
        self._pods: dict[PodUID, _PlegPod] = {}
        self._queue: deque[PodUID] = deque()
        self._inspections: dict[PodUID, float] = {}  # start time of each running inspection, oldest first
        self._slots: Slots[PodUID] = Slots(
            timing.inspection_slots,
            lease_seconds=timing.inspection_lease_seconds,
            on_free=self._fill_slots,
            on_expired=self._lease_over,
        )
        self._relist_requested = asyncio.Event()
        self._relist_began: float | None = None  # of the running relist
        self._relisted_at = _NEVER  # begin of the last successful relist
        self._trusted_from = _NOT_YET  # when the event stream becomes or became trusted
        self._distrusted_until = _NEVER
        self._unreported: dict[PodUID, _UnreportedChange] = {}
        # The cache is below the PLEG in the import order, so it gets a function instead of a reference.
        cache.connect(self.request)

    async def run(self) -> None:
        """Inspect pods, relist and follow events until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                group.create_task(self._follow_events())
                # Pods may have been requested before `run`, while there was no task group.
                self._fill_slots()
                await self._run_relists()
            finally:
                self._group = None
                for pod in self._pods.values():
                    if pod.retry is not None:
                        pod.retry.cancel()
                self._slots.cancel_timer()

    def request(self, uid: PodUID, since: float = _NOT_YET) -> None:
        """Request an inspection that begins after `since` (default: after this call).

        A running inspection that began before may miss the caller's change, so another one follows it.
        """
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = _PlegPod()
        if pod.inspection is not _InspectionState.RUNNING or pod.inspected_at <= since:
            self._schedule(uid, pod)

    def health(self) -> str | None:
        """Return what is wrong with relisting, or None. Hung inspections are named, but are no error by themselves."""
        if self._relisted_at == _NEVER:
            problem = "no relist has succeeded yet"
        elif (elapsed := self._clock.monotonic() - self._relisted_at) > self._timing.unhealthy_seconds:
            problem = f"the last successful relist began {elapsed:.0f} s ago"
        else:
            return None
        if self._relist_began is not None:
            problem += f"; the current one has been running for {self._clock.monotonic() - self._relist_began:.0f} s"
        slow = [f"{each.pod} for {each.seconds:.0f} s" for each in self.slow_inspections()]
        return f"{problem}; inspections that hang: {_some(slow)}" if slow else problem

    def slow_inspections(self) -> tuple[SlowInspection, ...]:
        """Return the inspections that exceed their lease, oldest first."""
        now, slow = self._clock.monotonic(), []
        for uid, began in self._inspections.items():
            if now - began < self._timing.inspection_lease_seconds:
                break
            slow.append(SlowInspection(uid, self._name(uid), now - began))
        return tuple(slow)

    # Inspections.

    def _schedule(self, uid: PodUID, pod: _PlegPod) -> None:
        match pod.inspection:
            case _InspectionState.RUNNING:
                pod.inspection = _InspectionState.RUNNING_OUTDATED
            case _InspectionState.IDLE | _InspectionState.BACKOFF:
                if pod.retry is not None:
                    pod.retry.cancel()
                    pod.retry = None
                self._enqueue(uid, pod)
                self._fill_slots()
            case _InspectionState.QUEUED | _InspectionState.RUNNING_OUTDATED:
                pass

    def _enqueue(self, uid: PodUID, pod: _PlegPod) -> None:
        pod.inspection = _InspectionState.QUEUED
        self._queue.append(uid)

    def _fill_slots(self) -> None:
        while self._group is not None and self._queue and self._slots.take(self._queue[0]):
            uid = self._queue.popleft()
            self._group.create_task(self._inspect(uid, self._pods[uid]))

    def _lease_over(self, uid: PodUID) -> None:
        log.warning("the inspection of pod %s hangs, its slot is released", self._name(uid))

    async def _inspect(self, uid: PodUID, pod: _PlegPod) -> None:
        pod.inspection = _InspectionState.RUNNING
        # Before the call, because the runtime may take its snapshot at any moment of the call. The record is at least
        # this new.
        at = pod.inspected_at = self._inspection_clock()
        began = self._inspections[uid] = self._clock.monotonic()
        try:
            self._succeeded(uid, pod, await self._pod_record(uid), at)
        except AgentError as error:
            self._failed(uid, pod, error, at)
        except Exception as error:
            log.exception("unexpected error in the inspection of pod %s", self._name(uid))
            self._failed(uid, pod, error, at)
        finally:
            del self._inspections[uid]
            self._slots.give_back(uid)
        self._observer.inspected(self._clock.monotonic() - began)
        self._finish(uid, pod)
        self._fill_slots()

    async def _pod_record(self, uid: PodUID) -> PodRecord:
        deadline = asyncio.timeout(self._timing.inspection_deadline_seconds)
        try:
            async with deadline:
                return await self._runtime.pod_record(uid)
        except TimeoutError as error:
            # A TimeoutError of the runtime itself is not our deadline.
            if not deadline.expired():
                raise
            seconds = self._timing.inspection_deadline_seconds
            raise CallTimedOut(f"cannot inspect pod {self._name(uid)}: no answer within {seconds:g} s") from error

    def _succeeded(self, uid: PodUID, pod: _PlegPod, record: PodRecord, at: float) -> None:
        pod.failures = 0
        if at < pod.seen_at:  # a later listing did not show the pod
            return
        listed = _listed(record)
        if not self._store(uid, record, listed, at):
            # A later listing confirmed the cached record, and another one showed a change. `pod.state` (the relist
            # state) must not be newer than the cache. Otherwise the next listing would equal it and confirm the old
            # record.
            self._schedule(uid, pod)
            return
        pod.seen_at = at
        # Read before `relist_pod` replaces it: `relevant_events` compares the events with the previous record.
        before = pod.state.records.get(uid)
        pod.state, findings = relist_pod(pod.state, uid, listed)
        unreported = self._unreported.get(uid)
        if unreported is not None and not unreported.changed:
            if findings:
                unreported.changed = True
            else:  # the listing showed a change that the inspection does not confirm
                del self._unreported[uid]
        for finding in findings:
            pod.state, events = complete_inspection(pod.state, finding, inspected=True)
            self._send(relevant_events(events, before))

    def _store(self, uid: PodUID, record: PodRecord, listed: ListedPod | None, at: float) -> bool:
        """Store an inspection in the cache. Return whether the cache accepted it."""
        if listed is None:
            return self._cache.drop(uid, at)
        record = current_containers_first(record)
        ips = ips_to_cache(record, self._cache.get(uid))
        return self._cache.set(uid, record if ips == record.ips else replace(record, ips=ips), at)

    def _failed(self, uid: PodUID, pod: _PlegPod, error: Exception, at: float) -> None:
        if at < pod.seen_at:
            return
        pod.failures += 1
        # Without this, an equal listing would count as inspected, and the failed inspection would never be repeated.
        pod.state = request_reinspection(pod.state, uid)
        # One warning per outage. The retries of many pods would otherwise fill the log.
        level = logging.WARNING if pod.failures == 1 else logging.DEBUG
        log.log(level, "cannot inspect pod %s (failure %d), will retry: %s", self._name(uid), pod.failures, error)
        self._cache.set_error(uid, error, at)

    def _finish(self, uid: PodUID, pod: _PlegPod) -> None:
        if pod.inspection is _InspectionState.RUNNING_OUTDATED:
            self._enqueue(uid, pod)
        elif pod.failures:
            # A timer instead of waiting for the next relist as in the kubelet, because that may be a minute away.
            pod.inspection = _InspectionState.BACKOFF
            pause = self._timing.retry.after(pod.failures)
            pod.retry = asyncio.get_running_loop().call_later(pause, self._schedule, uid, pod)
        else:
            pod.inspection = _InspectionState.IDLE
            self._forget_if_gone(uid, pod)

    def _forget_if_gone(self, uid: PodUID, pod: _PlegPod) -> None:
        if pod.inspection is _InspectionState.IDLE and not pod.state.records:
            del self._pods[uid]

    def _send(self, events: Iterable[LifecycleEvent]) -> None:
        for event in events:
            try:
                self._emit(event)
            except Exception:
                log.exception("cannot send %s", event)
                self._observer.event_discarded()

    # The relist.

    async def _run_relists(self) -> None:
        retries = RetryCounter(self._timing.retry)
        while True:
            # Clear before the relist, not after it: an event stream that ends during the relist must cause another one.
            self._relist_requested.clear()
            if await self._relist():
                retries.succeeded()
                pause = self._timing.relist_seconds if self._trusts_events() else self._timing.poll_seconds
            else:
                pause = retries.failed()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._relist_requested.wait()

    def _trusts_events(self) -> bool:
        return self._clock.monotonic() >= max(self._trusted_from, self._distrusted_until)

    async def _relist(self) -> bool:
        # Events have wall times, cache entries have instants of the monotonic clock. So store both for this listing.
        at, wall = self._inspection_clock(), self._clock.now()
        began = self._relist_began = self._clock.monotonic()
        interval = None if self._relisted_at == _NEVER else at - self._relisted_at
        try:
            async with asyncio.timeout(self._timing.relist_deadline_seconds):
                records = await self._runtime.list_pods()
            self._compare(records, at, wall)
        except AgentError as error:
            log.warning("cannot relist, will retry: %s", error)
            return False
        except TimeoutError:
            log.warning("cannot relist, will retry: no answer after %g s", self._clock.monotonic() - began)
            return False
        except Exception:
            log.exception("unexpected error in the relist, will retry")
            return False
        else:
            self._observer.pods_listed(records, self._clock.now())
            return True
        finally:
            self._relist_began = None
            self._observer.relisted(self._clock.monotonic() - began, interval)

    def _compare(self, records: Iterable[PodRecord], at: float, wall: datetime) -> None:
        """Schedule an inspection of each changed pod, and drop the pods that the listing does not show."""
        here: set[PodUID] = set()
        changed: list[PodUID] = []
        unreported: dict[PodUID, str] = {}  # with their names
        for record in records:
            uid, listed = PodUID(record.uid), _listed(record)
            if listed is None:
                continue
            here.add(uid)
            pod = self._pods.get(uid)
            if pod is None:
                pod = self._pods[uid] = _PlegPod()
            elif pod.seen_at > at or is_unchanged(pod.state, listed):
                # A later inspection or listing has already shown a newer state.
                continue
            if relist_pod(pod.state, uid, listed)[1]:
                changed.append(uid)
                if self._is_unreported(pod):
                    unreported[uid] = _name_of(record)
                    self._unreported[uid] = _UnreportedChange(wall, changed=False)
        # After the loop above, because only a complete listing shows that a pod is gone.
        for uid in self._pods.keys() - here:
            pod = self._pods[uid]
            if pod.seen_at < at:
                if self._is_unreported(pod):
                    unreported[uid] = self._name(uid)
                    self._unreported[uid] = _UnreportedChange(wall, changed=True)
                self._removed(uid, pod, at)
        self._relisted_at = at
        # After the drops above, because it also deletes the cache entries of pods that this listing no longer shows.
        self._cache.all_seen(at, but=changed)
        for uid in changed:
            pod = self._pods[uid]
            if pod.inspection is not _InspectionState.BACKOFF:  # keep the backoff, its timer starts the inspection
                self._schedule(uid, pod)
        if unreported and self._group is not None:
            self._group.create_task(self._count_missed(unreported))

    def _removed(self, uid: PodUID, pod: _PlegPod, at: float) -> None:
        """Handle a pod that a listing no longer shows."""
        state, findings = relist_pod(pod.state, uid, None)
        for finding in findings:
            if not self._cache.drop(uid, at):
                return  # a later inspection has failed. The next listing or inspection detects the removal.
            pod.seen_at = at
            pod.state, events = complete_inspection(state, finding, inspected=True)
            self._send(events)
        if pod.inspection is _InspectionState.BACKOFF and pod.retry is not None:
            pod.retry.cancel()
            pod.retry = None
            pod.inspection = _InspectionState.IDLE
        self._forget_if_gone(uid, pod)

    def _is_unreported(self, pod: _PlegPod) -> bool:
        """Return whether no event reported a changed pod, although the event stream was open all the time."""
        return pod.inspection is _InspectionState.IDLE and self._trusted_from <= max(pod.seen_at, self._relisted_at)

    async def _count_missed(self, names: Mapping[PodUID, str]) -> None:
        """Wait for late events, then count the changes that no event has reported."""
        # The relist and the event of the same change race. Without this pause, most races would count as missed events.
        await asyncio.sleep(self._timing.late_seconds)
        inspected = ((name, self._unreported.pop(uid, None)) for uid, name in names.items())
        missed = [name for name, unreported in inspected if unreported is not None and unreported.changed]
        if missed:
            log.warning("a relist found changes of %d pods without a runtime event: %s", len(missed), _some(missed))
            self._observer.events_missed(len(missed))
            # One lost event suggests that others are lost, too. So poll like the kubelet for a while (k/k 121349).
            self._distrusted_until = self._clock.monotonic() + self._timing.distrust_seconds
            self._relist_requested.set()

    # Events.

    async def _follow_events(self) -> None:
        short_streams = 0
        while True:
            opened = self._clock.monotonic()
            self._trusted_from = opened + self._timing.trust_after_seconds
            self._observer.stream_opened()
            reason = await self._stream_end()
            self._trusted_from = _NOT_YET
            self._observer.stream_ended()
            self._relist_requested.set()  # because changes since the end of the stream have no events
            lived = self._clock.monotonic() - opened
            # Only streams that end early are retried with backoff. A stream that worked is opened again at once.
            short_streams = 0 if lived >= self._timing.trust_after_seconds else short_streams + 1
            if short_streams <= 1:
                log.warning("the runtime's event stream ended, relisting until it is open again: %s", reason)
            await asyncio.sleep(self._timing.retry.after(short_streams) if short_streams else 0)

    async def _stream_end(self) -> str:
        """Handle events until the stream ends. Return the reason."""
        try:
            async for event in self._runtime.events():
                self._handle(event)
        except AgentError as error:
            return str(error)
        except Exception as error:
            log.exception("unexpected error in the runtime's event stream")
            return str(error)
        return "end of stream"

    def _handle(self, event: RuntimeEvent) -> None:
        if not event.uid:
            log.warning("ignored an event of container %s: it has no pod UID", event.container_id)
            return
        unreported = self._unreported.get(event.uid)
        # Later events report our own reaction to the listing, not the change itself.
        if unreported is not None and event.at <= unreported.listed_at:
            del self._unreported[event.uid]
        self._observer.event_received(max(0.0, (self._clock.now() - event.at).total_seconds()))
        # Request an inspection and do not use the content of the event: it may be late or out of order (k/k 121349).
        self.request(event.uid)

    def _name(self, uid: PodUID) -> str:
        return _name_of(self._cache.get(uid))


def _name_of(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}" if record.name else record.uid


def _listed(record: PodRecord) -> ListedPod | None:
    """Return a record in the form of `RelistState`. None if the runtime has nothing of the pod."""
    return listing_of(record) if record.sandboxes or record.containers else None


def _some(names: Sequence[str]) -> str:
    """Join the first few names, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
