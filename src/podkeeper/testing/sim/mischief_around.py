"""Trouble with whom the agent talks to, as a whole: the runtime and its news, the API and its watches, the files.

Two windows of one kind may overlap. The newest then says how things are, and the last to close puts them right; so what
is in force is always booked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.testing.sim.mischief_calls import Drawn, pods_there, volume_call_trouble
from podkeeper.testing.sim.world import World


def until_last(world: World, kind: str, undo: Callable[[], None], uid: PodUID | None = None) -> Callable[[], None]:
    """An `undo` that does its work only when no other trouble of its kind (and of this pod) goes on."""

    def undo_if_last() -> None:
        if sum(trouble.kind == kind and trouble.uid == uid for trouble in world.troubles.active()) <= 1:
            undo()

    return undo_if_last


# The runtime.


@dataclass(frozen=True, slots=True)
class RuntimeDown:
    """The runtime answers nobody; its containers live on, and some end meanwhile."""

    seconds: float
    ends: tuple[tuple[float, int, int], ...] = ()  # after so many seconds, which container, its exit code
    kind: str = field(default="runtime-down", init=False)

    def __str__(self) -> str:
        return f"the runtime is down for {self.seconds:.0f} s, {len(self.ends)} containers end meanwhile"

    def play(self, world: World) -> None:
        """Take it down."""
        world.runtime.go_down()
        trouble = world.trouble(self.kind, self.seconds, until_last(world, self.kind, world.runtime.come_up))

        def end_one(which: int, exit_code: int) -> None:
            live = sorted((uid, record.name) for uid, record in world.runtime.live_containers())
            if live and trouble in world.troubles.active():
                world.runtime.end_container(*live[which % len(live)], exit_code)

        for after, which, exit_code in self.ends:
            world.loop.call_later(after, end_one, which, exit_code)


class News(Enum):
    """What becomes of news."""

    LOST = "lost"
    REPEATED = "repeated"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class EventTrouble:
    """A share of the runtime's news is lost, repeated or late for a while."""

    news: News
    share: float
    seconds: float
    seed: int
    latest_seconds: float = 0.0

    @property
    def kind(self) -> str:
        """By what becomes of the news."""
        return f"{self.news.value}-events"

    def __str__(self) -> str:
        late = f" by up to {self.latest_seconds:.1f} s" if self.latest_seconds else ""
        return f"{self.share:.0%} of the events are {self.news.value}{late} for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Begin to filter."""
        random, over = Random(self.seed), world.now() + self.seconds

        def delay() -> float:  # what is late comes before the trouble is over: nobody is blamed for it later
            return min(random.uniform(0.0, self.latest_seconds), max(0.0, over - world.now()))

        def unreliable(event: RuntimeEvent) -> tuple[tuple[float, RuntimeEvent], ...]:
            if random.random() >= self.share:
                return ((0.0, event),)
            match self.news:
                case News.LOST:
                    return ()
                case News.REPEATED:
                    return (0.0, event), (delay(), event)
                case News.LATE:
                    return ((delay(), event),)

        world.runtime.add_event_filter(unreliable)
        world.trouble(self.kind, self.seconds, lambda: world.runtime.remove_event_filter(unreliable))


@dataclass(frozen=True, slots=True)
class BrokenEvents:
    """The runtime's event stream breaks, or ends."""

    politely: bool
    kind: str = field(default="broken-events", init=False)

    def __str__(self) -> str:
        return "the event stream ends" if self.politely else "the event stream breaks"

    def play(self, world: World) -> None:
        """Cut it."""
        world.troubles.moment(world.now(), self.kind)
        if self.politely:
            world.runtime.end_events()
        else:
            world.runtime.break_events()


@dataclass(frozen=True, slots=True)
class BusyVolumes:
    """Somebody holds one pod's volumes open for a while."""

    victim: int
    seconds: float
    kind: str = field(default="volume-trouble", init=False)

    def __str__(self) -> str:
        return f"volume-trouble: pod {self.victim}'s volumes are in use for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Hold them."""
        pods = pods_there(world)
        if pods:
            uid = pods[self.victim % len(pods)][0]
            world.volumes.in_use.add(uid)
            let_go = until_last(world, self.kind, lambda: world.volumes.in_use.discard(uid), uid)
            world.trouble(self.kind, self.seconds, let_go, uid)


# The API.


@dataclass(frozen=True, slots=True)
class ApiDown:
    """The API answers nobody."""

    seconds: float
    kind: str = field(default="api-down", init=False)

    def __str__(self) -> str:
        return f"the API is down for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Take it down."""
        world.api.go_down()
        world.trouble(self.kind, self.seconds, until_last(world, self.kind, world.api.come_up))


@dataclass(frozen=True, slots=True)
class WatchGone:
    """The API forgets its history: who watches must list again."""

    kind: str = field(default="watch-gone", init=False)

    def __str__(self) -> str:
        return "the API forgets its history: 410"

    def play(self, world: World) -> None:
        """Forget it."""
        world.troubles.moment(world.now(), self.kind)
        world.api.expire()


@dataclass(frozen=True, slots=True)
class WatchStale:
    """Watches are late, or say nothing at all, for a while."""

    seconds: float
    delay_seconds: float  # 0: nothing comes
    kind: str = field(default="watch-stale", init=False)

    def __str__(self) -> str:
        how = f"{self.delay_seconds:.1f} s late" if self.delay_seconds else "stalled"
        return f"watches are {how} for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Slow them; what was told late is still on its way for a while after that."""
        window = object()  # others may be as late
        world.watch_delays[window] = self.delay_seconds
        _set_watch_pace(world)

        def close() -> None:
            if world.watch_delays.pop(window, None) is not None:
                _set_watch_pace(world)

        world.loop.call_later(self.seconds, close)
        world.trouble(self.kind, self.seconds + self.delay_seconds, close)


def _set_watch_pace(world: World) -> None:
    delays = [*world.watch_delays.values()]
    world.api.set_watch_pace(delay_seconds=delays[-1] if delays else 0.0, stalled=bool(delays) and delays[-1] <= 0)


@dataclass(frozen=True, slots=True)
class WatchBroken:
    """Every watch breaks, or ends."""

    politely: bool
    kind: str = field(default="watch-broken", init=False)

    def __str__(self) -> str:
        return "all watches end" if self.politely else "all watches break"

    def play(self, world: World) -> None:
        """Cut them."""
        world.troubles.moment(world.now(), self.kind)
        if self.politely:
            world.api.end_watches()
        else:
            world.api.break_watches()


@dataclass(frozen=True, slots=True)
class StaleLists:
    """Lists are answered from a cache that stopped some changes ago."""

    back: int  # changes
    seconds: float
    kind: str = field(default="stale-lists", init=False)

    def __str__(self) -> str:
        return f"lists are {self.back} changes old for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Stop the cache."""
        world.api.lists_as_of = max(1, world.api.version - self.back)

        def go_on() -> None:
            world.api.lists_as_of = None

        world.trouble(self.kind, self.seconds, until_last(world, self.kind, go_on))


# The static sources.


@dataclass(frozen=True, slots=True)
class UnreadableSources:
    """Manifests cannot be read for a while."""

    files: bool
    web: bool
    seconds: float
    kind: str = field(default="unreadable-sources", init=False)

    def __str__(self) -> str:
        which = " and ".join(name for name, chosen in (("files", self.files), ("web", self.web)) if chosen)
        return f"{which} unreadable for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Hide them."""
        if self.files:
            world.files.fail()
        if self.web:
            world.web.fail()

        def recover() -> None:
            world.files.recover()
            world.web.recover()

        world.trouble(self.kind, self.seconds, until_last(world, self.kind, recover))


# What is drawn. Each draws one fault: from a chance, and the seconds until calm.


def runtime_down(random: Random, left: float) -> Drawn:
    """The runtime is away."""
    seconds = min(left, random.choice((random.uniform(0.5, 5.0), random.uniform(5.0, 180.0))))
    ends = tuple(
        (random.uniform(0.0, seconds), random.randrange(1000), random.choice((0, 1, 137)))
        for _ in range(random.choice((0, 0, 1, 2)))
    )
    return [(0.0, RuntimeDown(seconds, ends))]


def lost_events(random: Random, left: float) -> Drawn:
    """News is lost."""
    share = random.choice((0.2, 0.5, 1.0))
    return [(0.0, EventTrouble(News.LOST, share, min(left, random.uniform(5.0, 180.0)), random.getrandbits(32)))]


def repeated_events(random: Random, left: float) -> Drawn:
    """News is told twice, the second time perhaps late."""
    seconds, latest = min(left, random.uniform(5.0, 180.0)), random.choice((0.0, 1.0, 30.0))
    return [(0.0, EventTrouble(News.REPEATED, random.choice((0.3, 1.0)), seconds, random.getrandbits(32), latest))]


def late_events(random: Random, left: float) -> Drawn:
    """News is late, and so comes in another order."""
    seconds, latest = min(left, random.uniform(5.0, 180.0)), random.choice((0.05, 1.0, 10.0, 60.0))
    return [(0.0, EventTrouble(News.LATE, random.choice((0.3, 0.7, 1.0)), seconds, random.getrandbits(32), latest))]


def broken_events(random: Random, left: float) -> Drawn:
    """The event stream is cut, perhaps again and again."""
    return [(at, BrokenEvents(random.random() < 0.5)) for at in _again_and_again(random)]


def volume_trouble(random: Random, left: float) -> Drawn:
    """Volumes are busy, or calls about them go wrong."""
    if random.random() < 0.3:
        return [(0.0, BusyVolumes(random.randrange(1000), min(left, random.uniform(5.0, 240.0))))]
    return volume_call_trouble(random, left)


def api_down(random: Random, left: float) -> Drawn:
    """The API is away."""
    seconds = random.choice((random.uniform(0.5, 10.0), random.uniform(10.0, 120.0), random.uniform(120.0, 400.0)))
    return [(0.0, ApiDown(min(left, seconds)))]


def watch_gone(random: Random, left: float) -> Drawn:
    """The API forgets its history, perhaps twice."""
    return (
        [(0.0, WatchGone())] if random.random() < 0.7 else [(0.0, WatchGone()), (random.uniform(0.0, 5.0), WatchGone())]
    )


def watch_stale(random: Random, left: float) -> Drawn:
    """Watches are late or stalled."""
    seconds = random.uniform(5.0, 240.0)
    delay = random.choice((0.0, random.uniform(0.1, 5.0), random.uniform(5.0, 120.0)))
    return [(0.0, WatchStale(min(seconds, max(0.0, left - delay)), delay))]


def watch_broken(random: Random, left: float) -> Drawn:
    """Watches are cut, perhaps again and again."""
    return [(at, WatchBroken(random.random() < 0.5)) for at in _again_and_again(random)]


def unreadable_sources(random: Random, left: float) -> Drawn:
    """Manifests cannot be read."""
    files = random.random() < 0.7
    return [(0.0, UnreadableSources(files, not files or random.random() < 0.5, min(left, random.uniform(5.0, 300.0))))]


def _again_and_again(random: Random) -> list[float]:
    moments = [0.0]
    for _ in range(random.choice((0, 0, 1, 4))):
        moments.append(moments[-1] + random.uniform(0.01, 15.0))
    return moments
