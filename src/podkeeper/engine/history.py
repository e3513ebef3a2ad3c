"""What befell each pod, so that it can explain itself: its state, since when, what it waits for, how it came there.

Every room may `note` something; nobody reads it but `explain`. A pod's timeline is bounded, and so is the number of
pods that are over (or never came to a worker) and are still remembered: one can ask for a while why a pod went.

    moved           syncing -> terminating (deleted)        a change of state: what follows is told afresh
    pass begun      sync (update)                  x 72     the same again is counted, not written again
    next pass       in 71.4 s                               only the latest counts

Times are kept on the monotonic clock and shown as wall time: after a correction of the wall clock they show right. At
10,000 pods memory is what counts here: columns instead of objects, and texts that many pods share are kept once.
The reference has no such thing.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from podkeeper.model.messages import PodUID
from podkeeper.ports.clock import Clock

MOVED: Final = "moved"
PASS_ENDED: Final = "pass ended"
FAILED: Final = "failed: "  # how the detail of a pass that failed begins
"""The note of a change of state; its detail reads `from -> to`."""

NEXT_PASS: Final = "next pass"
"""The note of when a pod is looked after again; only the latest counts."""

UNKNOWN: Final = "unknown"
"""The state of a pod that no worker has."""

LONGEST_TIMELINE: Final = 50
MOST_REMEMBERED: Final = 1000
_ARROW: Final = " -> "
_LOOK_BACK: Final = 6  # a pass leaves up to five notes: begun, ended, next, and what it did
_MOST_SHARED: Final = 2048
_LONGEST_DETAIL: Final = 256


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that befell a pod, once or several times."""

    at: datetime
    what: str
    detail: str = ""
    times: int = 1
    last_at: datetime | None = None  # None: it happened once


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a pod is, and how it came there."""

    uid: PodUID
    asked_at: datetime
    state: str = UNKNOWN
    since: datetime | None = None
    waiting_for: str = ""
    next_retry: datetime | None = None
    timeline: tuple[Entry, ...] = ()


class _Timeline:
    """One pod's notes, oldest first, in columns of equal length."""

    __slots__ = ("counts", "details", "firsts", "lasts", "retry_at", "since", "state", "waiting_for", "whats")

    def __init__(self) -> None:
        self.state = UNKNOWN
        self.since: float | None = None
        self.waiting_for = ""
        self.retry_at: float | None = None
        self.firsts = array("d")
        self.lasts = array("d")
        self.counts = array("L")
        self.whats: list[str] = []
        self.details: list[str] = []

    def add(self, what: str, detail: str, at: float) -> None:
        """Count a note that was made before since the last change of state, or write a new one."""
        whats, details = self.whats, self.details
        size = len(whats)
        for index in range(size - 1, max(-1, size - 1 - _LOOK_BACK), -1):
            if whats[index] == MOVED:
                break
            if whats[index] == what and (what == NEXT_PASS or details[index] == detail):
                self.counts[index] += 1
                self.lasts[index] = at
                details[index] = detail
                return
        if size == LONGEST_TIMELINE:
            del self.firsts[0], self.lasts[0], self.counts[0], whats[0], details[0]
        self.firsts.append(at)
        self.lasts.append(at)
        self.counts.append(1)
        whats.append(what)
        details.append(detail)

    def rows(self) -> Iterator[tuple[float, float, int, str, str]]:
        return zip(self.firsts, self.lasts, self.counts, self.whats, self.details, strict=True)


class History:
    """The timelines of all pods."""

    __slots__ = ("_clock", "_live", "_most_remembered", "_others", "_shared")

    def __init__(self, *, clock: Clock, most_remembered: int = MOST_REMEMBERED) -> None:
        self._clock = clock
        self._most_remembered = most_remembered
        self._live: dict[PodUID, _Timeline] = {}  # pods that a worker has
        self._others: OrderedDict[PodUID, _Timeline] = OrderedDict()  # over, or not begun; the last noted last
        self._shared: dict[str, str] = {}

    def note(
        self,
        uid: PodUID,
        what: str,
        detail: str = "",
        *,
        waiting_for: str | None = None,
        retry_at: datetime | None = None,
    ) -> None:
        """Note what befell a pod.

        `waiting_for` stays until another note says otherwise ("": for nothing any more) or the pod moves; `retry_at`
        until it has passed. A pass that failed leaves the pod waiting for what it failed of to go away.
        """
        if what == PASS_ENDED and waiting_for is None:
            waiting_for = detail.removeprefix(FAILED) if detail.startswith(FAILED) else ""
        timeline = self._live.get(uid) or self._other(uid)
        now = self._clock.monotonic()
        timeline.add(self._share(what), self._share(detail[:_LONGEST_DETAIL]), now)
        if what == MOVED:
            self._move(uid, timeline, detail.rpartition(_ARROW)[2], now)
        if waiting_for is not None:
            timeline.waiting_for = self._share(waiting_for)
            timeline.retry_at = None
        if retry_at is not None:
            timeline.retry_at = now + (retry_at - self._clock.now()).total_seconds()

    def will_retry(self, uid: PodUID, after_seconds: float) -> None:
        """Remember when a pod is looked after again, without a note."""
        (self._live.get(uid) or self._other(uid)).retry_at = self._clock.monotonic() + after_seconds

    def explain(self, uid: PodUID) -> Explanation:
        """How a pod is and how it came there; of a pod never heard of, that it is unknown."""
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
                Entry(shown(first), what, detail, count, shown(last) if count > 1 else None)
                for first, last, count, what, detail in timeline.rows()
            ),
        )

    def _move(self, uid: PodUID, timeline: _Timeline, state: str, now: float) -> None:
        if state == UNKNOWN:
            # The worker has forgotten the pod: what is remembered is how it ended.
            if self._live.pop(uid, None) is not None:
                self._others[uid] = timeline
                self._trim()
        else:
            timeline.state, timeline.since = self._share(state), now
            if self._others.pop(uid, None) is not None:
                self._live[uid] = timeline
        timeline.waiting_for, timeline.retry_at = "", None

    def _other(self, uid: PodUID) -> _Timeline:
        """The timeline of a pod that no worker has, begun if need be."""
        timeline = self._others.get(uid)
        if timeline is None:
            timeline = self._others[uid] = _Timeline()
            self._trim()
        else:
            self._others.move_to_end(uid)
        return timeline

    def _trim(self) -> None:
        while len(self._others) > self._most_remembered:
            self._others.popitem(last=False)

    def _share(self, text: str) -> str:
        """The same text, as one object for all who note it."""
        shared = self._shared.get(text)
        if shared is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()  # what is in use comes back with its next note
            shared = self._shared[text] = text
        return shared


def timeline_lines(explanation: Explanation) -> list[str]:
    """An explanation as lines for the terminal."""
    asked_at = explanation.asked_at
    since = "" if explanation.since is None else f" for {_span(asked_at - explanation.since)}"
    lines = [f"{explanation.state}{since}"]
    if explanation.waiting_for:
        lines.append(f"waiting for {explanation.waiting_for}")
    if explanation.next_retry is not None:
        lines.append(f"next try in {_span(explanation.next_retry - asked_at)}")
    if explanation.timeline:
        width = max(len(entry.what) for entry in explanation.timeline)
        lines += ["", *(_line(entry, width) for entry in explanation.timeline)]
    return lines


def _line(entry: Entry, width: int) -> str:
    again = "" if entry.last_at is None else f"  ({entry.times} times, last {entry.last_at:%H:%M:%S})"
    return f"{entry.at:%Y-%m-%d %H:%M:%S}  {entry.what:{width}}  {entry.detail}".rstrip() + again


def _span(length: timedelta) -> str:
    """A span of time, in the two largest units that matter."""
    seconds = max(0, round(length.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
