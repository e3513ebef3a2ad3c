"""Sieve's three perturbations, one by one over a tale: crashes, stale views, missed news.

    original = undisturbed(tale)
    for perturbation in crashes(original): ...        # the agent dies before and after each of its writes
    for perturbation in time_travels(original): ...   # and sees the API as it once was; `stale_relists`: without dying
    for perturbation in missed_news(original): ...    # runtime news and watches get lost, late, doubled, out of order

Each is a frozen value that names what goes wrong, and where, by number; `telling` tells the tale with it. The ancestor
is Sieve (OSDI 2022), which does this to controllers.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from podkeeper.model.errors import Gone
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import EventFilter
from podkeeper.testing.sim.life import Side
from podkeeper.testing.sim.records import Asked, Called, LifeBegan, PodChanged
from podkeeper.testing.sim.telling import Original, Point
from podkeeper.testing.sim.world import Fate, World

# Crashes between any two writes.


@dataclass(frozen=True, slots=True)
class Crash:
    """The agent dies at a point."""

    point: Point
    fate: Fate

    def __str__(self) -> str:
        fate = self.fate
        calls = "" if fate.calls_go_on is None else f", calls under way {'go on' if fate.calls_go_on else 'are lost'}"
        notes = "" if fate.notes_kept is None else f", unsynced notes {'kept' if fate.notes_kept else 'lost'}"
        point = f"point {self.point.number}, {self.point.side.name.lower()} {self.point.call}"
        return f"crash at {point}: away {fate.away_seconds:g} s{calls}{notes}"

    def install(self, world: World) -> None:
        """Count the points; the agent dies at the right one."""
        _die_at(world, self.point, self.fate)


def crashes(original: Original, away_seconds: Iterable[float] = (1.0, 60.0)) -> Iterator[Crash]:
    """A crash at every point, in every way that can make a difference there."""
    for point, away in product(original.points, away_seconds):
        for calls_go_on, notes_kept in product(
            (True, False) if point.others_under_way else (True,), (True, False) if point.unsynced else (True,)
        ):
            yield Crash(point, Fate(away_seconds=away, calls_go_on=calls_go_on, notes_kept=notes_kept))


def _die_at(world: World, point: Point, fate: Fate) -> None:
    passed = 0

    def is_here(call: Called, side: Side) -> bool:
        nonlocal passed
        passed += 1
        return passed == point.number + 1

    world.fate = fate
    world.crash_point = is_here


# Stale views.


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """The agent dies at a point, and the next one's first view of the API is an old one."""

    point: Point
    version: int
    lag_seconds: float  # so long the API stays behind; 0: only the first list is old

    def __str__(self) -> str:
        behind = f"for {self.lag_seconds:g} s" if self.lag_seconds else "at first"
        point = f"point {self.point.number}, {self.point.side.name.lower()} {self.point.call}"
        return f"crash at {point}, then the API is {behind} as of version {self.version} of {self.point.version}"

    def install(self, world: World) -> None:
        """The agent's next life begins in the past."""

        def go_back(it: LifeBegan) -> None:
            if it.life == 2:
                _show_past(world, self.version, self.lag_seconds)

        _die_at(world, self.point, Fate(calls_go_on=True, notes_kept=False))
        world.bus.subscribe(LifeBegan, go_back)


@dataclass(frozen=True, slots=True)
class StaleRelist:
    """The watch breaks with a change of a pod, and cannot go on; the list that must come then is an old one."""

    change: int
    version: int
    lag_seconds: float

    def __str__(self) -> str:
        behind = f"for {self.lag_seconds:g} s" if self.lag_seconds else "once"
        return f"watch gone with change {self.change}, then lists are {behind} as of version {self.version}"

    def install(self, world: World) -> None:
        """Break it there."""

        def break_off() -> None:
            _lose_watch(world, gone=True)
            _show_past(world, self.version, self.lag_seconds)

        _at_change(world, self.change, break_off)


def time_travels(original: Original, lags: Iterable[float] = (0.0, 30.0)) -> Iterator[TimeTravel]:
    """After each write that gave the API a new version, and after each last write before the next: every older view."""
    for point, lag in product(_moments(original.points), lags):
        for version in original.versions:
            if version < point.version:
                yield TimeTravel(point, version, lag)


def stale_relists(original: Original, lags: Iterable[float] = (0.0, 30.0)) -> Iterator[StaleRelist]:
    """At each change of a pod: every older view."""
    for change, lag in product(range(1, len(original.versions)), lags):
        for version in original.versions[:change]:
            yield StaleRelist(change, version, lag)


def _moments(points: Iterable[Point]) -> list[Point]:
    """For each version of the API the first and the last point at which it was the newest."""
    first: dict[int, Point] = {}
    last: dict[int, Point] = {}
    for point in points:
        first.setdefault(point.version, point)
        last[point.version] = point
    return sorted({*first.values(), *last.values()}, key=lambda point: point.number)


def _show_past(world: World, version: int, lag_seconds: float) -> None:
    """Let lists be answered as of a version, and watches say nothing; for so long, or (0) for one list."""
    api = world.api
    api.lists_as_of = version

    def catch_up() -> None:
        api.lists_as_of = None
        api.set_watch_pace()

    def after_one(it: Asked) -> None:
        if it.operation == "list" and it.room == "api" and api.lists_as_of == version:
            catch_up()

    if lag_seconds:
        api.set_watch_pace(stalled=True)
        world.trouble("stale-lists", lag_seconds, catch_up)
    else:
        world.troubles.moment(world.now(), "stale-lists")
        world.bus.subscribe(Asked, after_one)


# Missed news.


class News(Enum):
    """What may happen to a piece of runtime news."""

    LOST = "is lost"
    LOST_WITH_NEXT = "is lost with the next"
    DOUBLED = "comes twice"
    SWAPPED = "comes after the next"
    LATE_1 = "comes 1 s late"
    LATE_10 = "comes 10 s late"


@dataclass(frozen=True, slots=True)
class RuntimeNews:
    """Something happens to one piece of runtime news."""

    number: int  # from 0
    what: News

    def __str__(self) -> str:
        return f"runtime news {self.number} {self.what.value}"

    def install(self, world: World) -> None:
        """Count the news; the right piece has its accident."""
        world.runtime.filter_events(_accident(world, self.number, self.what))


def _accident(world: World, number: int, what: News) -> EventFilter:
    seen = -1
    kept: list[RuntimeEvent] = []

    def passed_on(event: RuntimeEvent) -> Iterable[tuple[float, RuntimeEvent]]:
        nonlocal seen
        seen += 1
        if seen == number:
            world.troubles.moment(world.now(), "lost-events")
        match what, seen - number:
            case (News.LOST | News.LOST_WITH_NEXT, 0) | (News.LOST_WITH_NEXT, 1):
                return ()
            case News.DOUBLED, 0:
                return (0.0, event), (0.0, event)
            case News.SWAPPED, 0:
                kept.append(event)
                return ()
            case News.SWAPPED, 1:
                return (0.0, event), (0.0, kept[0])
            case News.LATE_1, 0:
                return ((1.0, event),)
            case News.LATE_10, 0:
                return ((10.0, event),)
            case _:
                return ((0.0, event),)

    return passed_on


class Watching(Enum):
    """What may happen to a watch when a pod changes."""

    BROKEN = "breaks"
    GONE = "breaks, and cannot go on from there"
    LATE_1 = "tells it 1 s late"
    LATE_10 = "tells it 10 s late"


@dataclass(frozen=True, slots=True)
class WatchNews:
    """Something happens to the watch just when a pod changes: it does not tell of it, or late."""

    change: int  # from 1
    what: Watching

    def __str__(self) -> str:
        return f"with change {self.change} the watch {self.what.value}"

    def install(self, world: World) -> None:
        """Count the changes; the watch has its accident at the right one."""
        match self.what:
            case Watching.BROKEN:
                _at_change(world, self.change, lambda: _lose_watch(world, gone=False))
            case Watching.GONE:
                _at_change(world, self.change, lambda: _lose_watch(world, gone=True))
            case Watching.LATE_1:
                _at_change(world, self.change, lambda: _be_late(world, 1.0))
            case Watching.LATE_10:
                _at_change(world, self.change, lambda: _be_late(world, 10.0))


def missed_news(original: Original) -> Iterator[RuntimeNews | WatchNews]:
    """Every accident to every piece of news."""
    for number, news in product(range(original.news), News):
        if number + 1 < original.news or news not in (News.LOST_WITH_NEXT, News.SWAPPED):
            yield RuntimeNews(number, news)
    for change, watching in product(range(1, len(original.versions)), Watching):
        yield WatchNews(change, watching)


def _at_change(world: World, number: int, act: Callable[[], None]) -> None:
    """Do something just before the watchers are told of a pod's change; the first has number 1."""
    seen = 0

    def count(it: PodChanged) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            act()

    world.bus.subscribe(PodChanged, count)


def _lose_watch(world: World, *, gone: bool) -> None:
    world.troubles.moment(world.now(), "watch-gone" if gone else "watch-broken")
    if gone:
        world.api.faults.fail("watch", "Pod", error=Gone)
    world.api.break_watches()


def _be_late(world: World, seconds: float) -> None:
    world.trouble("watch-stale", seconds, lambda: None)
    world.api.set_watch_pace(delay_seconds=seconds)
    world.loop.call_soon(world.api.set_watch_pace)
