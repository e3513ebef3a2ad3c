"""Pod history: the state of each pod, its waiting reason and its last events.

Any module may `add` an event. Only `explain` reads them, so no decision depends on the history.

    Moved(syncing -> terminating (deleted))           a state change: events after it are counted from 1 again
    SyncStarted(sync, update)                  x 72   a repeated event is counted, not stored again
    RetryScheduled(71.4 s)                            only the latest one counts

A timeline holds the last 50 events. The timelines of the last 1000 pods without a worker (ended or never started) are
kept, so that `explain` can still show why a pod was removed.

Times are kept on the monotonic clock and shown as wall time. So they stay correct if the wall clock is set. At
10,000 pods memory matters: timelines are columns instead of objects, and equal events of many pods are stored once.
The kubelet has no counterpart.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from podkeeper.model.history import (
    UNKNOWN_STATE,
    EventRecorded,
    HistoryEvent,
    Moved,
    PodRejected,
    PodState,
    RetryScheduled,
    StatusChanged,
    SyncEnded,
    SyncError,
)
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.ports.clock import Clock

LONGEST_TIMELINE: Final = 50
MAX_PODS_WITHOUT_WORKER: Final = 1000
_COMPARED: Final = 6  # search this many last events for an equal one; one sync adds at most five
_MOST_SHARED: Final = 2048
_LONGEST_MESSAGE: Final = 256


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An event in a timeline, and how often it occurred."""

    at: datetime
    event: HistoryEvent
    times: int = 1
    last_at: datetime | None = None  # None: it occurred once


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The state of a pod, and how it got there."""

    uid: PodUID
    asked_at: datetime
    state: PodState = UNKNOWN_STATE
    since: datetime | None = None
    waiting_for: str = ""
    next_retry: datetime | None = None
    timeline: tuple[TimelineEntry, ...] = ()


class _Timeline:
    """The events of one pod, oldest first, in columns of equal length."""

    __slots__ = ("counts", "events", "firsts", "lasts", "retry_at", "since", "state", "waiting_for")

    def __init__(self) -> None:
        self.state = UNKNOWN_STATE
        self.since: float | None = None
        self.waiting_for = ""
        self.retry_at: float | None = None
        self.firsts = array("d")
        self.lasts = array("d")
        self.counts = array("L")
        self.events: list[HistoryEvent] = []

    def add(self, event: HistoryEvent, at: float) -> None:
        """Count an event that occurred since the last state change, or append a new one."""
        events = self.events
        size = len(events)
        is_retry = isinstance(event, RetryScheduled)
        for index in range(size - 1, max(-1, size - 1 - _COMPARED), -1):
            known = events[index]
            if isinstance(known, Moved):
                break
            # Equal events of all pods are one object, so the comparison by identity nearly always decides.
            if known is event or known == event or (is_retry and isinstance(known, RetryScheduled)):
                self.counts[index] += 1
                self.lasts[index] = at
                events[index] = event
                return
        if size == LONGEST_TIMELINE:
            del self.firsts[0], self.lasts[0], self.counts[0], events[0]
        self.firsts.append(at)
        self.lasts.append(at)
        self.counts.append(1)
        events.append(event)

    def rows(self) -> Iterator[tuple[float, float, int, HistoryEvent]]:
        return zip(self.firsts, self.lasts, self.counts, self.events, strict=True)


class PodHistory:
    """The timelines of all pods."""

    __slots__ = ("_clock", "_live", "_max_pods_without_worker", "_others", "_shared", "_subscribers")

    def __init__(self, *, clock: Clock, max_pods_without_worker: int = MAX_PODS_WITHOUT_WORKER) -> None:
        self._clock = clock
        self._max_pods_without_worker = max_pods_without_worker
        self._live: dict[PodUID, _Timeline] = {}  # pods that have a worker
        self._others: OrderedDict[PodUID, _Timeline] = OrderedDict()  # all others; the last changed one last
        self._shared: dict[HistoryEvent, HistoryEvent] = {}
        self._subscribers: list[Callable[[PodUID], None]] = []

    def subscribe(self, subscriber: Callable[[PodUID], None]) -> None:
        """Call the subscriber with the UID of each pod whose worker changes its state."""
        self._subscribers.append(subscriber)

    def add(self, uid: PodUID, event: HistoryEvent) -> None:
        """Add an event of a pod.

        After a failed sync, the pod waits until the error is gone: until the next sync or a state change. A scheduled
        retry stays until it is due, a sync ends or the state changes.
        """
        timeline = self._live.get(uid) or self._other(uid)
        now = self._clock.monotonic()
        timeline.add(self._share(_shortened(event)), now)
        match event:
            case Moved(after=state):
                self._move(uid, timeline, state, now)
            case SyncEnded():
                timeline.waiting_for, timeline.retry_at = "", None
            case SyncError(message=message):
                timeline.waiting_for, timeline.retry_at = message, None
            case RetryScheduled(delay_seconds=seconds):
                timeline.retry_at = now + seconds
            case _:
                pass

    def status_changed(self, uid: PodUID, status: PodStatus) -> None:
        """Add a `StatusChanged` for a published status."""
        ready = any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())
        self.add(uid, StatusChanged(status.phase or "", ready))

    def explain(self, uid: PodUID) -> Explanation:
        """Return a pod's state and timeline. The state of a pod without any event is unknown."""
        now, wall = self._clock.monotonic(), self._clock.now()
        timeline = self._live.get(uid) or self._others.get(uid)
        if timeline is None:
            return Explanation(uid=uid, asked_at=wall)

        def shown(instant: float) -> datetime:
            return wall + timedelta(seconds=instant - now)

        retry_at = timeline.retry_at
        return Explanation(
            uid=uid,
            asked_at=wall,
            state=timeline.state,
            since=None if timeline.since is None else shown(timeline.since),
            waiting_for=timeline.waiting_for,
            next_retry=None if retry_at is None or retry_at <= now else shown(retry_at),
            timeline=tuple(
                TimelineEntry(shown(first), event, count, shown(last) if count > 1 else None)
                for first, last, count, event in timeline.rows()
            ),
        )

    def _move(self, uid: PodUID, timeline: _Timeline, state: PodState, now: float) -> None:
        if state == UNKNOWN_STATE:
            # The worker has forgotten the pod. Keep the state in which it ended.
            if self._live.pop(uid, None) is not None:
                self._others[uid] = timeline
                self._trim()
        else:
            timeline.state, timeline.since = state, now
            if self._others.pop(uid, None) is not None:
                self._live[uid] = timeline
        timeline.waiting_for, timeline.retry_at = "", None
        for subscriber in self._subscribers:
            subscriber(uid)

    def _other(self, uid: PodUID) -> _Timeline:
        """Return the timeline of a pod without a worker. Create it if necessary."""
        timeline = self._others.get(uid)
        if timeline is None:
            timeline = self._others[uid] = _Timeline()
            self._trim()
        else:
            self._others.move_to_end(uid)
        return timeline

    def _trim(self) -> None:
        while len(self._others) > self._max_pods_without_worker:
            self._others.popitem(last=False)

    def _share(self, event: HistoryEvent) -> HistoryEvent:
        """Return an equal event that other timelines already hold, to save memory."""
        if isinstance(event, RetryScheduled):
            return event  # each delay is different because of its jitter
        shared = self._shared.get(event)
        if shared is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()  # events that still occur are stored again
            shared = self._shared[event] = event
        return shared


def _shortened(event: HistoryEvent) -> HistoryEvent:
    if isinstance(event, SyncError | EventRecorded | PodRejected) and len(event.message) > _LONGEST_MESSAGE:
        return replace(event, message=event.message[:_LONGEST_MESSAGE])
    return event
