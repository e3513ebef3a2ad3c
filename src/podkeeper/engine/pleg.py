"""PLEG, the pod lifecycle event generator: learns what happens in the runtime, and tells it.

    runtime events ---.
    request(uid) -----+--> looks, one per pod at a time --> cache, then LifecycleEvents
    the slow relist --'

An event only says *where* to look; what happened is decided by comparing the look with the book (`rules.relist`). So
lost, repeated, late and reordered events all come to the same end, and a relist finds what no event had announced.
While the event stream can be trusted the relist is slow; without it, or in doubt, it is as quick as the reference's.

Promises: a cache entry is there before its events; a change is told once; a pod whose look fails keeps its record and
is looked at again, ever less often, until a look succeeds; a hung look or relist delays nobody: a look that outlives
its lease gives its slot back. An event costs O(1), a quiet relist some microseconds per pod. The Go ancestors are
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
from typing import Protocol

from msgspec.structs import replace

from podkeeper.engine.cache import PodCache
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import AgentError, CallTimedOut
from podkeeper.model.messages import LifecycleEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Events, Inspection
from podkeeper.rules.relist import (
    Book,
    PodListing,
    current_containers_first,
    ips_to_cache,
    is_unchanged,
    listing_of,
    relist_pod,
    request_reinspection,
    settle,
    worth_telling,
)

log = logging.getLogger(__name__)

_NEVER = float("-inf")
_NOT_YET = float("inf")
_BLANK = Book()
_NAMED = 3  # pods named in one line of the log


class WatchedRuntime(Inspection, Events, Protocol):
    """What is needed of a runtime here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often PLEG looks, and how long it waits."""

    relist_seconds: float = 60.0  # between relists while events can be trusted
    poll_seconds: float = 1.0  # while they cannot
    trust_seconds: float = 5.0  # a stream that has lived this long can be trusted
    doubt_seconds: float = 60.0  # after a missed event the stream is not trusted for this long
    late_seconds: float = 2.0  # an event that comes this much after the relist found its news was only late
    relist_deadline_seconds: float = 180.0
    unhealthy_seconds: float = 180.0  # without a successful relist
    look_slots: int = 16
    look_lease_seconds: float = 10.0
    look_deadline_seconds: float = 120.0
    retry_seconds: float = 1.0  # the first pause after a failure; it doubles
    retry_max_seconds: float = 30.0

    def pause_after(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return float(min(self.retry_seconds * 2 ** min(failures - 1, 20), self.retry_max_seconds))


USUAL_PACE = Pace()


@dataclass(frozen=True, slots=True)
class SlowLook:
    """A look that has outlived its lease."""

    uid: PodUID
    pod: str
    seconds: float


class _Stage(Enum):
    RESTING = auto()
    QUEUED = auto()  # for a slot
    LOOKING = auto()
    LOOKING_AGAIN = auto()  # asked for during the look, which may be too old already: another follows
    PUT_OFF = auto()  # the last look failed; a timer is set


@dataclass(slots=True, eq=False)
class _Pod:
    book: Book = _BLANK
    stage: _Stage = _Stage.RESTING
    seen_at: float = _NEVER  # begin of the last look that succeeded, or of the listing that showed it gone
    failures: int = 0
    retry: asyncio.TimerHandle | None = None
    look_at: float = _NEVER  # begin of the look that is under way, or of the last one


@dataclass(slots=True, eq=False)
class _Suspect:
    """A pod that a listing shows changed, and no event has told why."""

    listed_at: datetime  # on the clock that events go by
    changed: bool  # that is certain; else a look has to confirm it


class Pleg:
    """Looks at the runtime, keeps the cache fresh and tells what happened."""

    def __init__(
        self,
        *,
        runtime: WatchedRuntime,
        cache: PodCache,
        emit: Callable[[LifecycleEvent], None],
        clock: Clock,
        moment: Callable[[], float],
        pace: Pace = USUAL_PACE,
        observer: Observer | None = None,
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._emit = emit
        self._clock = clock
        self._moment = moment
        self._pace = pace
        self._observer = observer or Observer()
        self._group: asyncio.TaskGroup | None = None
        self._pods: dict[PodUID, _Pod] = {}
        self._queue: deque[PodUID] = deque()
        self._looks: dict[PodUID, float] = {}  # under way, with their begin; the oldest first
        self._slots: dict[PodUID, float] = {}  # those of them that hold a slot
        self._lease_timer: asyncio.TimerHandle | None = None
        self._relist_wanted = asyncio.Event()
        self._relist_began: float | None = None  # of the one under way
        self._relisted_at = _NEVER  # begin of the last that succeeded
        self._telling_from = _NOT_YET  # since when the event stream can be trusted; may lie ahead
        self._doubted_until = _NEVER
        self._suspects: dict[PodUID, _Suspect] = {}

    async def run(self) -> None:
        """Look, relist and listen until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                group.create_task(self._listen())
                self._fill_slots()
                await self._keep_relisting()
            finally:
                self._group = None
                for pod in self._pods.values():
                    if pod.retry is not None:
                        pod.retry.cancel()
                if self._lease_timer is not None:
                    self._lease_timer.cancel()

    def request(self, uid: PodUID, since: float = _NOT_YET) -> None:
        """Have a pod looked at: now, or at any moment after `since`.

        A look under way that began before may have missed what the caller means: then another follows.
        """
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = _Pod()
        if pod.stage is not _Stage.LOOKING or pod.look_at <= since:
            self._want(uid, pod)

    def health(self) -> str | None:
        """What is wrong with relisting, and who may be the cause; None: it works. One pod's look alone never counts."""
        if self._relisted_at == _NEVER:
            trouble = "no relist has succeeded yet"
        elif (elapsed := self._clock.monotonic() - self._relisted_at) > self._pace.unhealthy_seconds:
            trouble = f"the last good relist began {elapsed:.0f} s ago"
        else:
            return None
        if self._relist_began is not None:
            trouble += f"; one has been under way for {self._clock.monotonic() - self._relist_began:.0f} s"
        slow = [f"{look.pod} for {look.seconds:.0f} s" for look in self.slow_looks()]
        return f"{trouble}; looks that hang: {_some(slow)}" if slow else trouble

    def slow_looks(self) -> tuple[SlowLook, ...]:
        """The looks that have outlived their lease, the oldest first."""
        now, slow = self._clock.monotonic(), []
        for uid, began in self._looks.items():
            if now - began < self._pace.look_lease_seconds:
                break
            slow.append(SlowLook(uid, self._name(uid), now - began))
        return tuple(slow)

    # Looks.

    def _want(self, uid: PodUID, pod: _Pod) -> None:
        match pod.stage:
            case _Stage.LOOKING:
                pod.stage = _Stage.LOOKING_AGAIN
            case _Stage.RESTING | _Stage.PUT_OFF:
                if pod.retry is not None:
                    pod.retry.cancel()
                    pod.retry = None
                self._enqueue(uid, pod)
                self._fill_slots()
            case _Stage.QUEUED | _Stage.LOOKING_AGAIN:
                pass

    def _enqueue(self, uid: PodUID, pod: _Pod) -> None:
        pod.stage = _Stage.QUEUED
        self._queue.append(uid)

    def _fill_slots(self) -> None:
        while self._group is not None and self._queue and self._has_slot():
            uid = self._queue.popleft()
            self._slots[uid] = self._clock.monotonic()
            self._group.create_task(self._look(uid, self._pods[uid]))

    def _has_slot(self) -> bool:
        """Whether a look may begin. Only when none may, the oldest lease is looked at: nobody else pays for a timer."""
        if len(self._slots) < self._pace.look_slots:
            return True
        uid, began = next(iter(self._slots.items()))
        left = began + self._pace.look_lease_seconds - self._clock.monotonic()
        if left <= 0:
            log.warning("the look at pod %s hangs, its slot goes to the next", self._name(uid))
            del self._slots[uid]
            return True
        if self._lease_timer is None:
            self._lease_timer = asyncio.get_running_loop().call_later(left, self._lease_over)
        return False

    def _lease_over(self) -> None:
        self._lease_timer = None
        self._fill_slots()

    async def _look(self, uid: PodUID, pod: _Pod) -> None:
        pod.stage = _Stage.LOOKING
        at = pod.look_at = self._moment()
        began = self._looks[uid] = self._clock.monotonic()
        try:
            self._saw(uid, pod, await self._ask(uid), at)
        except AgentError as error:
            self._failed(uid, pod, error, at)
        except Exception as error:
            log.exception("the look at pod %s failed in an unforeseen way", self._name(uid))
            self._failed(uid, pod, error, at)
        finally:
            del self._looks[uid]
            self._slots.pop(uid, None)
        self._observer.looked(self._clock.monotonic() - began)
        self._rest(uid, pod)
        self._fill_slots()

    async def _ask(self, uid: PodUID) -> PodRecord:
        deadline = asyncio.timeout(self._pace.look_deadline_seconds)
        try:
            async with deadline:
                return await self._runtime.pod_record(uid)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            seconds = self._pace.look_deadline_seconds
            raise CallTimedOut(f"cannot look at pod {self._name(uid)}: no answer within {seconds:g} s") from error

    def _saw(self, uid: PodUID, pod: _Pod, record: PodRecord, at: float) -> None:
        pod.failures = 0
        if at < pod.seen_at:  # a listing begun later has shown the pod to be gone
            return
        listed = _listed(record)
        if not self._store(uid, record, listed, at):
            # A listing begun later confirmed what the cache holds, then another one showed a change. The book must
            # not run ahead of the cache: the next listing would agree with the book and so confirm the old record.
            self._want(uid, pod)
            return
        pod.seen_at = at
        before = pod.book.records.get(uid)
        pod.book, findings = relist_pod(pod.book, uid, listed)
        suspect = self._suspects.get(uid)
        if suspect is not None and not suspect.changed:
            if findings:
                suspect.changed = True
            else:  # the listing that aroused suspicion was wrong
                del self._suspects[uid]
        for finding in findings:
            pod.book, events = settle(pod.book, finding, inspected=True)
            self._tell(worth_telling(events, before))

    def _store(self, uid: PodUID, record: PodRecord, listed: PodListing | None, at: float) -> bool:
        """Give the cache what a look has seen. Returns whether the cache took it."""
        if listed is None:
            return self._cache.drop(uid, at)
        record = current_containers_first(record)
        ips = ips_to_cache(record, self._cache.get(uid))
        return self._cache.set(uid, record if ips == record.ips else replace(record, ips=ips), at)

    def _failed(self, uid: PodUID, pod: _Pod, error: Exception, at: float) -> None:
        if at < pod.seen_at:
            return
        pod.failures += 1
        pod.book = request_reinspection(pod.book, uid)
        level = logging.WARNING if pod.failures == 1 else logging.DEBUG
        log.log(level, "cannot look at pod %s (%d in a row), will look again: %s", self._name(uid), pod.failures, error)
        self._cache.set_error(uid, error, at)

    def _rest(self, uid: PodUID, pod: _Pod) -> None:
        if pod.stage is _Stage.LOOKING_AGAIN:
            self._enqueue(uid, pod)
        elif pod.failures:
            pod.stage = _Stage.PUT_OFF
            pause = self._pace.pause_after(pod.failures)
            pod.retry = asyncio.get_running_loop().call_later(pause, self._want, uid, pod)
        else:
            pod.stage = _Stage.RESTING
            self._forget_if_gone(uid, pod)

    def _forget_if_gone(self, uid: PodUID, pod: _Pod) -> None:
        if pod.stage is _Stage.RESTING and not pod.book.records:
            del self._pods[uid]

    def _tell(self, events: Iterable[LifecycleEvent]) -> None:
        for event in events:
            try:
                self._emit(event)
            except Exception:
                log.exception("cannot hand on %s", event)
                self._observer.discarded()

    # The relist.

    async def _keep_relisting(self) -> None:
        failures = 0
        while True:
            self._relist_wanted.clear()
            if await self._relist():
                failures = 0
                pause = self._pace.relist_seconds if self._trusts_events() else self._pace.poll_seconds
            else:
                failures += 1
                pause = self._pace.pause_after(failures)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._relist_wanted.wait()

    def _trusts_events(self) -> bool:
        return self._clock.monotonic() >= max(self._telling_from, self._doubted_until)

    async def _relist(self) -> bool:
        at, wall = self._moment(), self._clock.now()
        began = self._relist_began = self._clock.monotonic()
        interval = None if self._relisted_at == _NEVER else at - self._relisted_at
        try:
            async with asyncio.timeout(self._pace.relist_deadline_seconds):
                records = await self._runtime.list_pods()
            self._compare(records, at, wall)
        except AgentError as error:
            log.warning("cannot relist, will try again: %s", error)
            return False
        except TimeoutError:
            log.warning("cannot relist, will try again: no answer after %g s", self._clock.monotonic() - began)
            return False
        except Exception:
            log.exception("the relist failed in an unforeseen way, will try again")
            return False
        else:
            self._observer.listed(records, self._clock.now())
            return True
        finally:
            self._relist_began = None
            self._observer.relisted(self._clock.monotonic() - began, interval)

    def _compare(self, records: Iterable[PodRecord], at: float, wall: datetime) -> None:
        """Have a look at every pod that is not as the book says, and let go of those that are gone."""
        here: set[PodUID] = set()
        changed: list[PodUID] = []
        unannounced: dict[PodUID, str] = {}  # with their names
        for record in records:
            uid, listed = PodUID(record.uid), _listed(record)
            if listed is None:
                continue
            here.add(uid)
            pod = self._pods.get(uid)
            if pod is None:
                pod = self._pods[uid] = _Pod()
            elif pod.seen_at > at or is_unchanged(pod.book, listed):
                continue
            if relist_pod(pod.book, uid, listed)[1]:
                changed.append(uid)
                if self._is_unannounced(pod):
                    unannounced[uid] = _name_of(record)
                    self._suspects[uid] = _Suspect(wall, changed=False)
        for uid in self._pods.keys() - here:
            pod = self._pods[uid]
            if pod.seen_at < at:
                if self._is_unannounced(pod):
                    unannounced[uid] = self._name(uid)
                    self._suspects[uid] = _Suspect(wall, changed=True)
                self._let_go(uid, pod, at)
        self._relisted_at = at
        self._cache.all_seen(at, but=changed)
        for uid in changed:
            pod = self._pods[uid]
            if pod.stage is not _Stage.PUT_OFF:  # its turn comes; a relist must not wear out the patience with it
                self._want(uid, pod)
        if unannounced and self._group is not None:
            self._group.create_task(self._judge(unannounced))

    def _let_go(self, uid: PodUID, pod: _Pod, at: float) -> None:
        """Note that a listing does not show a pod any more."""
        book, findings = relist_pod(pod.book, uid, None)
        for finding in findings:
            if not self._cache.drop(uid, at):
                return  # an inspection begun later has failed: the next listing or inspection finds the pod gone
            pod.seen_at = at
            pod.book, events = settle(book, finding, inspected=True)
            self._tell(events)
        if pod.stage is _Stage.PUT_OFF and pod.retry is not None:
            pod.retry.cancel()
            pod.retry = None
            pod.stage = _Stage.RESTING
        self._forget_if_gone(uid, pod)

    def _is_unannounced(self, pod: _Pod) -> bool:
        """Whether nobody has pointed at a pod that changed, although the event stream was open all the time."""
        return pod.stage is _Stage.RESTING and self._telling_from <= max(pod.seen_at, self._relisted_at)

    async def _judge(self, suspects: Mapping[PodUID, str]) -> None:
        """Give events that are only late their time, then count what was missed."""
        await asyncio.sleep(self._pace.late_seconds)
        judged = ((name, self._suspects.pop(uid, None)) for uid, name in suspects.items())
        missed = [name for name, suspect in judged if suspect is not None and suspect.changed]
        if missed:
            log.warning(
                "the runtime's events missed changes that relisting found, in %d pods: %s", len(missed), _some(missed)
            )
            self._observer.missed(len(missed))
            self._doubted_until = self._clock.monotonic() + self._pace.doubt_seconds
            self._relist_wanted.set()

    # Events.

    async def _listen(self) -> None:
        short_lives = 0
        while True:
            opened = self._clock.monotonic()
            self._telling_from = opened + self._pace.trust_seconds
            self._observer.stream_opened()
            reason = await self._stream_end()
            self._telling_from = _NOT_YET
            self._observer.stream_broke()
            self._relist_wanted.set()  # what happened since the break nobody tells
            lived = self._clock.monotonic() - opened
            short_lives = 0 if lived >= self._pace.trust_seconds else short_lives + 1
            if short_lives <= 1:
                log.warning("the runtime's event stream broke, relisting until it is back: %s", reason)
            await asyncio.sleep(self._pace.pause_after(short_lives) if short_lives else 0)

    async def _stream_end(self) -> str:
        """Listen until the stream breaks. Returns why it did."""
        try:
            async for event in self._runtime.events():
                self._heed(event)
        except AgentError as error:
            return str(error)
        except Exception as error:
            log.exception("the runtime's event stream failed in an unforeseen way")
            return str(error)
        return "it ended"

    def _heed(self, event: RuntimeEvent) -> None:
        if not event.uid:
            log.warning("cannot heed an event of container %s: it names no pod", event.container_id)
            return
        suspect = self._suspects.get(event.uid)
        # News of what we do about the finding come at once: they do not tell what was missed.
        if suspect is not None and event.at <= suspect.listed_at:
            del self._suspects[event.uid]
        self._observer.heard(max(0.0, (self._clock.now() - event.at).total_seconds()))
        self.request(event.uid)

    def _name(self, uid: PodUID) -> str:
        return _name_of(self._cache.get(uid))


def _name_of(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}" if record.name else record.uid


def _listed(record: PodRecord) -> PodListing | None:
    """A record as the book wants it; one of nothing at all is a pod that is not there."""
    return listing_of(record) if record.sandboxes or record.containers else None


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
