"""Faults of whole services.

The runtime and its events, the API and its watches, volumes, manifests.

Two windows of one kind may overlap. The newest one is in force, and the last one that closes restores the service.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.testing.sim.faults_calls import Drawn, pods_on_node, volume_call_faults
from podkeeper.testing.sim.world import World


def undo_after_last(world: World, kind: str, undo: Callable[[], None], uid: PodUID | None = None) -> Callable[[], None]:
    """Return an undo function that does nothing while another fault of this kind (and of this pod) is active."""

    def undo_if_last() -> None:
        if sum(fault.kind == kind and fault.uid == uid for fault in world.fault_log.active()) <= 1:
            undo()

    return undo_if_last


# The runtime.


@dataclass(frozen=True, slots=True)
class RuntimeDown:
    """The runtime does not answer. Its containers keep running, and some end meanwhile."""

    seconds: float
    ends: tuple[tuple[float, int, int], ...] = ()  # seconds until the end, index of the container, exit code
    kind: str = field(default="runtime-down", init=False)

    def __str__(self) -> str:
        return f"the runtime is down for {self.seconds:.0f} s, {len(self.ends)} containers end meanwhile"

    def run(self, world: World) -> None:
        world.runtime.go_down()
        fault = world.begin_fault(self.kind, self.seconds, undo_after_last(world, self.kind, world.runtime.come_up))

        def end_one(which: int, exit_code: int) -> None:
            live = sorted((uid, record.name) for uid, record in world.runtime.live_containers())
            if live and fault in world.fault_log.active():
                world.runtime.end_container(*live[which % len(live)], exit_code)

        for after, which, exit_code in self.ends:
            world.loop.call_later(after, end_one, which, exit_code)


class EventFault(Enum):
    """What happens to an event."""

    LOST = "lost"
    REPEATED = "repeated"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class EventFaultWindow:
    """A share of the runtime's events is lost, repeated or late for some time."""

    fault: EventFault
    share: float
    seconds: float
    seed: int
    latest_seconds: float = 0.0

    @property
    def kind(self) -> str:
        """The kind, named after what happens to the events."""
        return f"{self.fault.value}-events"

    def __str__(self) -> str:
        late = f" by up to {self.latest_seconds:.1f} s" if self.latest_seconds else ""
        return f"{self.share:.0%} of the events are {self.fault.value}{late} for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        """Install the event filter."""
        random, over = Random(self.seed), world.now() + self.seconds

        def delay() -> float:
            # Late events arrive before the window closes, because afterwards the invariants accept no delay.
            return min(random.uniform(0.0, self.latest_seconds), max(0.0, over - world.now()))

        def deliver(event: RuntimeEvent) -> tuple[tuple[float, RuntimeEvent], ...]:
            if random.random() >= self.share:
                return ((0.0, event),)
            match self.fault:
                case EventFault.LOST:
                    return ()
                case EventFault.REPEATED:
                    return (0.0, event), (delay(), event)
                case EventFault.LATE:
                    return ((delay(), event),)

        world.runtime.add_event_filter(deliver)
        world.begin_fault(self.kind, self.seconds, lambda: world.runtime.remove_event_filter(deliver))


@dataclass(frozen=True, slots=True)
class BrokenEvents:
    """The runtime's event stream breaks or ends."""

    cleanly: bool
    kind: str = field(default="broken-events", init=False)

    def __str__(self) -> str:
        return "the event stream ends" if self.cleanly else "the event stream breaks"

    def run(self, world: World) -> None:
        world.fault_log.instant(world.now(), self.kind)
        if self.cleanly:
            world.runtime.end_events()
        else:
            world.runtime.break_events()


@dataclass(frozen=True, slots=True)
class BusyVolumes:
    """The volumes of one pod are in use for some time."""

    victim: int
    seconds: float
    kind: str = field(default="volume-trouble", init=False)

    def __str__(self) -> str:
        return f"volume-trouble: pod {self.victim}'s volumes are in use for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        pods = pods_on_node(world)
        if pods:
            uid = pods[self.victim % len(pods)][0]
            world.volumes.in_use.add(uid)
            release = undo_after_last(world, self.kind, lambda: world.volumes.in_use.discard(uid), uid)
            world.begin_fault(self.kind, self.seconds, release, uid)


# The API.


@dataclass(frozen=True, slots=True)
class ApiDown:
    """The API does not answer."""

    seconds: float
    kind: str = field(default="api-down", init=False)

    def __str__(self) -> str:
        return f"the API is down for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        world.api.go_down()
        world.begin_fault(self.kind, self.seconds, undo_after_last(world, self.kind, world.api.come_up))


@dataclass(frozen=True, slots=True)
class WatchGone:
    """The API drops its old versions. Watches fail with 410 Gone and must list again."""

    kind: str = field(default="watch-gone", init=False)

    def __str__(self) -> str:
        return "watches are Gone (410)"

    def run(self, world: World) -> None:
        world.fault_log.instant(world.now(), self.kind)
        world.api.expire()


@dataclass(frozen=True, slots=True)
class WatchStale:
    """Watches are late or deliver nothing for some time."""

    seconds: float
    delay_seconds: float  # 0: nothing is delivered
    kind: str = field(default="watch-stale", init=False)

    def __str__(self) -> str:
        how = f"{self.delay_seconds:.1f} s late" if self.delay_seconds else "stalled"
        return f"watches are {how} for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        """Slow them down. The fault lasts until the last late event has arrived."""
        window = object()  # a key of its own, because another window may have the same delay
        world.watch_delays[window] = self.delay_seconds
        _set_watch_pace(world)

        def close() -> None:
            if world.watch_delays.pop(window, None) is not None:
                _set_watch_pace(world)

        world.loop.call_later(self.seconds, close)
        world.begin_fault(self.kind, self.seconds + self.delay_seconds, close)


def _set_watch_pace(world: World) -> None:
    delays = [*world.watch_delays.values()]
    world.api.set_watch_pace(delay_seconds=delays[-1] if delays else 0.0, stalled=bool(delays) and delays[-1] <= 0)


@dataclass(frozen=True, slots=True)
class WatchBroken:
    """All watches break or end."""

    cleanly: bool
    kind: str = field(default="watch-broken", init=False)

    def __str__(self) -> str:
        return "all watches end" if self.cleanly else "all watches break"

    def run(self, world: World) -> None:
        world.fault_log.instant(world.now(), self.kind)
        if self.cleanly:
            world.api.end_watches()
        else:
            world.api.break_watches()


@dataclass(frozen=True, slots=True)
class StaleLists:
    """Lists are answered from a cache that was last updated some changes ago."""

    back: int  # number of changes
    seconds: float
    kind: str = field(default="stale-lists", init=False)

    def __str__(self) -> str:
        return f"lists are {self.back} changes old for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        world.api.lists_as_of = max(1, world.api.version - self.back)

        def unfreeze() -> None:
            world.api.lists_as_of = None

        world.begin_fault(self.kind, self.seconds, undo_after_last(world, self.kind, unfreeze))


# Static sources.


@dataclass(frozen=True, slots=True)
class UnreadableSources:
    """Manifests cannot be read for some time."""

    files: bool
    web: bool
    seconds: float
    kind: str = field(default="unreadable-sources", init=False)

    def __str__(self) -> str:
        which = " and ".join(name for name, chosen in (("files", self.files), ("web", self.web)) if chosen)
        return f"{which} unreadable for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        if self.files:
            world.files.fail()
        if self.web:
            world.web.fail()

        def recover() -> None:
            world.files.recover()
            world.web.recover()

        world.begin_fault(self.kind, self.seconds, undo_after_last(world, self.kind, recover))


# Drawing. Each function draws one fault. `left` is the time until the next calm phase.


def runtime_down(random: Random, left: float) -> Drawn:
    """Draw a runtime that does not answer."""
    seconds = min(left, random.choice((random.uniform(0.5, 5.0), random.uniform(5.0, 180.0))))
    ends = tuple(
        (random.uniform(0.0, seconds), random.randrange(1000), random.choice((0, 1, 137)))
        for _ in range(random.choice((0, 0, 1, 2)))
    )
    return [(0.0, RuntimeDown(seconds, ends))]


def lost_events(random: Random, left: float) -> Drawn:
    share = random.choice((0.2, 0.5, 1.0))
    return [
        (0.0, EventFaultWindow(EventFault.LOST, share, min(left, random.uniform(5.0, 180.0)), random.getrandbits(32)))
    ]


def repeated_events(random: Random, left: float) -> Drawn:
    """Draw repeated events. The second one may be late."""
    seconds, latest = min(left, random.uniform(5.0, 180.0)), random.choice((0.0, 1.0, 30.0))
    return [
        (0.0, EventFaultWindow(EventFault.REPEATED, random.choice((0.3, 1.0)), seconds, random.getrandbits(32), latest))
    ]


def late_events(random: Random, left: float) -> Drawn:
    """Draw late events, which therefore change their order."""
    seconds, latest = min(left, random.uniform(5.0, 180.0)), random.choice((0.05, 1.0, 10.0, 60.0))
    return [
        (
            0.0,
            EventFaultWindow(EventFault.LATE, random.choice((0.3, 0.7, 1.0)), seconds, random.getrandbits(32), latest),
        )
    ]


def broken_events(random: Random, left: float) -> Drawn:
    """Draw one or several breaks of the event stream."""
    return [(at, BrokenEvents(random.random() < 0.5)) for at in _repeated_times(random)]


def volume_faults(random: Random, left: float) -> Drawn:
    """Draw volumes that are in use, or volume calls that fail."""
    if random.random() < 0.3:
        return [(0.0, BusyVolumes(random.randrange(1000), min(left, random.uniform(5.0, 240.0))))]
    return volume_call_faults(random, left)


def api_down(random: Random, left: float) -> Drawn:
    """Draw an API that does not answer."""
    seconds = random.choice((random.uniform(0.5, 10.0), random.uniform(10.0, 120.0), random.uniform(120.0, 400.0)))
    return [(0.0, ApiDown(min(left, seconds)))]


def watch_gone(random: Random, left: float) -> Drawn:
    """Draw one or two losses of the API's old versions."""
    return (
        [(0.0, WatchGone())] if random.random() < 0.7 else [(0.0, WatchGone()), (random.uniform(0.0, 5.0), WatchGone())]
    )


def watch_stale(random: Random, left: float) -> Drawn:
    """Draw watches that are late or stalled."""
    seconds = random.uniform(5.0, 240.0)
    delay = random.choice((0.0, random.uniform(0.1, 5.0), random.uniform(5.0, 120.0)))
    return [(0.0, WatchStale(min(seconds, max(0.0, left - delay)), delay))]


def watch_broken(random: Random, left: float) -> Drawn:
    """Draw one or several breaks of all watches."""
    return [(at, WatchBroken(random.random() < 0.5)) for at in _repeated_times(random)]


def unreadable_sources(random: Random, left: float) -> Drawn:
    """Draw unreadable manifests."""
    files = random.random() < 0.7
    return [(0.0, UnreadableSources(files, not files or random.random() < 0.5, min(left, random.uniform(5.0, 300.0))))]


def _repeated_times(random: Random) -> list[float]:
    times = [0.0]
    for _ in range(random.choice((0, 0, 1, 4))):
        times.append(times[-1] + random.uniform(0.01, 15.0))
    return times
