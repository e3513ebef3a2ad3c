"""Sieve's three perturbations of a scenario, enumerated.

The perturbations are crashes, stale views and missed events.

    baseline = baseline_of(scenario)
    for perturbation in crashes(baseline): ...        # the agent crashes before or after one of its writes
    for perturbation in time_travels(baseline): ...   # and then receives an old version of the API
    for perturbation in stale_relists(baseline): ...  # the same without a crash
    for perturbation in missed_events(baseline): ...  # an event or a watch is lost, late, repeated, out of order

Each perturbation is a frozen value that identifies its place by number. `perturbed_run` runs a scenario with it. The
method comes from Sieve (OSDI 2022), which tests controllers in this way.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from podkeeper.model.errors import Gone
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import EventFilter
from podkeeper.testing.sim.agent_process import Side
from podkeeper.testing.sim.perturbed_run import Baseline, CrashSite
from podkeeper.testing.sim.records import AgentStarted, CallStarted, PodChanged, ReadEnded
from podkeeper.testing.sim.world import CrashOptions, World

# Crashes between any two writes.


@dataclass(frozen=True, slots=True)
class CrashAt:
    """The agent crashes at one point."""

    point: CrashSite
    options: CrashOptions

    def __str__(self) -> str:
        options = self.options
        calls = (
            ""
            if options.calls_continue is None
            else f", calls in flight {'continue' if options.calls_continue else 'are lost'}"
        )
        journal = (
            "" if options.keep_unsynced is None else f", unsynced writes {'kept' if options.keep_unsynced else 'lost'}"
        )
        point = f"point {self.point.number}, {self.point.side.name.lower()} {self.point.call}"
        return f"crash at {point}: away {options.downtime_seconds:g} s{calls}{journal}"

    def install(self, world: World) -> None:
        """Count the crash points, and crash at the right one."""
        _crash_at(world, self.point, self.options)


def crashes(baseline: Baseline, downtime_seconds: Iterable[float] = (1.0, 60.0)) -> Iterator[CrashAt]:
    """Yield a crash at every point, with all options that make a difference there."""
    for point, away in product(baseline.points, downtime_seconds):
        for calls_continue, keep_unsynced in product(
            (True, False) if point.others_in_flight else (True,), (True, False) if point.unsynced else (True,)
        ):
            yield CrashAt(
                point, CrashOptions(downtime_seconds=away, calls_continue=calls_continue, keep_unsynced=keep_unsynced)
            )


def _crash_at(world: World, point: CrashSite, options: CrashOptions) -> None:
    count = 0

    def crashes_here(call: CallStarted, side: Side) -> bool:
        nonlocal count
        count += 1
        return count == point.number + 1

    world.crash_options = options
    world.crash_point = crashes_here


# Stale views.


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """The agent crashes at one point, and the next agent first receives an old version of the API."""

    point: CrashSite
    version: int
    lag_seconds: float  # how long the API stays behind; 0: only the first list is old

    def __str__(self) -> str:
        behind = f"for {self.lag_seconds:g} s" if self.lag_seconds else "at first"
        point = f"point {self.point.number}, {self.point.side.name.lower()} {self.point.call}"
        return f"crash at {point}, then the API is {behind} as of version {self.version} of {self.point.version}"

    def install(self, world: World) -> None:
        """Crash the agent, and let the second one start with the old version."""

        def show_old_version(it: AgentStarted) -> None:
            if it.agent == 2:
                _show_old_version(world, self.version, self.lag_seconds)

        _crash_at(world, self.point, CrashOptions(calls_continue=True, keep_unsynced=False))
        world.bus.subscribe(AgentStarted, show_old_version)


@dataclass(frozen=True, slots=True)
class StaleRelist:
    """The watch is Gone at a change of a pod, and the list that follows is old."""

    change: int
    version: int
    lag_seconds: float

    def __str__(self) -> str:
        behind = f"for {self.lag_seconds:g} s" if self.lag_seconds else "once"
        return f"watch gone with change {self.change}, then lists are {behind} as of version {self.version}"

    def install(self, world: World) -> None:
        """Break the watch at that change."""

        def lose_watch() -> None:
            _lose_watch(world, gone=True)
            _show_old_version(world, self.version, self.lag_seconds)

        _at_change(world, self.change, lose_watch)


def time_travels(baseline: Baseline, lags: Iterable[float] = (0.0, 30.0)) -> Iterator[TimeTravel]:
    """Yield every older version at the first and the last crash point of each version of the API."""
    for point, lag in product(_first_and_last(baseline.points), lags):
        for version in baseline.versions:
            if version < point.version:
                yield TimeTravel(point, version, lag)


def stale_relists(baseline: Baseline, lags: Iterable[float] = (0.0, 30.0)) -> Iterator[StaleRelist]:
    """Yield every older version at each change of a pod."""
    for change, lag in product(range(1, len(baseline.versions)), lags):
        for version in baseline.versions[:change]:
            yield StaleRelist(change, version, lag)


def _first_and_last(points: Iterable[CrashSite]) -> list[CrashSite]:
    """Return the first and the last crash point of each version of the API."""
    first: dict[int, CrashSite] = {}
    last: dict[int, CrashSite] = {}
    for point in points:
        first.setdefault(point.version, point)
        last[point.version] = point
    return sorted({*first.values(), *last.values()}, key=lambda point: point.number)


def _show_old_version(world: World, version: int, lag_seconds: float) -> None:
    """Answer lists as of a version and stall watches for `lag_seconds`. 0: only one list is old."""
    api = world.api
    api.lists_as_of = version

    def show_current() -> None:
        api.lists_as_of = None
        api.set_watch_pace()

    def show_current_after_list(it: ReadEnded) -> None:
        if it.operation == "list" and it.port == "api" and api.lists_as_of == version:
            show_current()

    if lag_seconds:
        api.set_watch_pace(stalled=True)
        world.begin_fault("stale-lists", lag_seconds, show_current)
    else:
        world.fault_log.instant(world.now(), "stale-lists")
        world.bus.subscribe(ReadEnded, show_current_after_list)


# Missed events.


class EventPerturbation(Enum):
    """What can happen to a runtime event."""

    LOST = "is lost"
    LOST_WITH_NEXT = "is lost with the next"
    DOUBLED = "comes twice"
    SWAPPED = "comes after the next"
    LATE_1 = "comes 1 s late"
    LATE_10 = "comes 10 s late"


@dataclass(frozen=True, slots=True)
class PerturbedEvent:
    """One runtime event is lost, repeated, swapped or late."""

    number: int  # from 0
    what: EventPerturbation

    def __str__(self) -> str:
        return f"runtime event {self.number} {self.what.value}"

    def install(self, world: World) -> None:
        """Count the events, and disturb the right one."""
        world.runtime.filter_events(_event_filter(world, self.number, self.what))


def _event_filter(world: World, number: int, what: EventPerturbation) -> EventFilter:
    seen = -1
    held_back: list[RuntimeEvent] = []

    def deliver(event: RuntimeEvent) -> Iterable[tuple[float, RuntimeEvent]]:
        nonlocal seen
        seen += 1
        if seen == number:
            world.fault_log.instant(world.now(), "lost-events")
        match what, seen - number:
            case (EventPerturbation.LOST | EventPerturbation.LOST_WITH_NEXT, 0) | (EventPerturbation.LOST_WITH_NEXT, 1):
                return ()
            case EventPerturbation.DOUBLED, 0:
                return (0.0, event), (0.0, event)
            case EventPerturbation.SWAPPED, 0:
                held_back.append(event)
                return ()
            case EventPerturbation.SWAPPED, 1:
                return (0.0, event), (0.0, held_back[0])
            case EventPerturbation.LATE_1, 0:
                return ((1.0, event),)
            case EventPerturbation.LATE_10, 0:
                return ((10.0, event),)
            case _:
                return ((0.0, event),)

    return deliver


class WatchPerturbation(Enum):
    """What can happen to a watch at a change of a pod."""

    BROKEN = "breaks"
    GONE = "breaks and is Gone"
    LATE_1 = "delivers it 1 s late"
    LATE_10 = "delivers it 10 s late"


@dataclass(frozen=True, slots=True)
class PerturbedWatch:
    """A watch loses or delays one change of a pod."""

    change: int  # from 1
    what: WatchPerturbation

    def __str__(self) -> str:
        return f"at change {self.change} the watch {self.what.value}"

    def install(self, world: World) -> None:
        """Count the changes, and disturb the watch at the right one."""
        match self.what:
            case WatchPerturbation.BROKEN:
                _at_change(world, self.change, lambda: _lose_watch(world, gone=False))
            case WatchPerturbation.GONE:
                _at_change(world, self.change, lambda: _lose_watch(world, gone=True))
            case WatchPerturbation.LATE_1:
                _at_change(world, self.change, lambda: _delay_watch(world, 1.0))
            case WatchPerturbation.LATE_10:
                _at_change(world, self.change, lambda: _delay_watch(world, 10.0))


def missed_events(baseline: Baseline) -> Iterator[PerturbedEvent | PerturbedWatch]:
    """Yield every perturbation of every event and every change."""
    for number, perturbation in product(range(baseline.events), EventPerturbation):
        if number + 1 < baseline.events or perturbation not in (
            EventPerturbation.LOST_WITH_NEXT,
            EventPerturbation.SWAPPED,
        ):
            yield PerturbedEvent(number, perturbation)
    for change, watch_change in product(range(1, len(baseline.versions)), WatchPerturbation):
        yield PerturbedWatch(change, watch_change)


def _at_change(world: World, number: int, callback: Callable[[], None]) -> None:
    """Call `callback` just before the watches receive the n-th change of a pod, counted from 1."""
    seen = 0

    def count(it: PodChanged) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            callback()

    world.bus.subscribe(PodChanged, count)


def _lose_watch(world: World, *, gone: bool) -> None:
    world.fault_log.instant(world.now(), "watch-gone" if gone else "watch-broken")
    if gone:
        world.api.faults.fail("watch", "Pod", error=Gone)
    world.api.break_watches()


def _delay_watch(world: World, seconds: float) -> None:
    world.begin_fault("watch-stale", seconds, lambda: None)
    world.api.set_watch_pace(delay_seconds=seconds)
    world.loop.call_soon(world.api.set_watch_pace)
