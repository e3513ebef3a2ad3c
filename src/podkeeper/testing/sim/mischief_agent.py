"""Trouble of the agent itself and of its machine: it dies, is slow, its clock jumps, its disk is full.

An agent is killed at a moment, or at a call: the n-th from now that changes something, before its effect or after it.
Several such calls may be lain in wait for at once.
"""

from dataclasses import dataclass, field
from math import inf, isinf
from random import Random

from podkeeper.testing.sim.life import CrashPoint, Side
from podkeeper.testing.sim.mischief_around import StaleLists, WatchStale, until_last
from podkeeper.testing.sim.mischief_calls import Drawn
from podkeeper.testing.sim.records import Called
from podkeeper.testing.sim.world import World

LONGEST_WAIT_SECONDS = 30.0
BASE_DAWDLE = (0.02, 0.02)  # share and longest: the agent is never quite on time


@dataclass(frozen=True, slots=True)
class Crash:
    """`kill -9`."""

    away_seconds: float
    calls: int = 0  # at which call from now that changes something; 0: at once
    after: bool = False  # after that call's effect, not before it
    within_seconds: float = LONGEST_WAIT_SECONDS  # if no such call comes by then, it dies anyway
    kind: str = field(default="crash", init=False)

    def __str__(self) -> str:
        side = "after" if self.after else "before"
        return f"crash {f'{side} call {self.calls}' if self.calls else 'at once'}, away {self.away_seconds:.1f} s"

    def play(self, world: World) -> None:
        """Kill it, or lie in wait."""
        if self.calls <= 0:
            self.strike(world, "killed")
        else:
            _Ambushes.of(world).lay(self)

    def strike(self, world: World, why: str) -> None:
        """Kill it now, if it lives."""
        if world.is_up:
            world.trouble(self.kind, self.away_seconds, _nothing)
            world.crash(why, self.away_seconds)


class _Ambushes:
    """Where death lies in wait for the agent: any number of crash points at once."""

    def __init__(self, world: World, before: CrashPoint) -> None:
        self._world = world
        self._before = before  # whatever was there
        self._waiting: dict[int, tuple[Crash, int]] = {}  # by number, with how many calls are still to come
        self._laid = 0

    @classmethod
    def of(cls, world: World) -> "_Ambushes":
        """The world's; made when first asked for."""
        if not isinstance(world.crash_point, cls):
            world.crash_point = cls(world, world.crash_point)
        return world.crash_point

    def lay(self, crash: Crash) -> None:
        """One more."""
        self._laid += 1
        self._waiting[self._laid] = crash, crash.calls
        self._world.loop.call_later(crash.within_seconds, self._give_up, self._laid)

    def __call__(self, call: Called, side: Side) -> bool:
        if not self._waiting:
            return self._before(call, side)
        fatal = None
        for number, (crash, left) in tuple(self._waiting.items()):
            if side is (Side.AFTER if crash.after else Side.BEFORE):
                if left > 1:
                    self._waiting[number] = crash, left - 1
                elif fatal is None:
                    fatal = self._waiting.pop(number)[0]
        if fatal is None:
            return self._before(call, side)
        fatal.strike(self._world, f"killed {side.name.lower()} {call.room} {call.operation} {call.subject}")
        return True

    def _give_up(self, number: int) -> None:
        crash, _ = self._waiting.pop(number, (None, 0))
        if crash is not None:
            crash.strike(self._world, "killed: it had nothing to do")


@dataclass(frozen=True, slots=True)
class GracefulRestart:
    """The agent is asked to end, and started again."""

    within_seconds: float
    away_seconds: float
    kind: str = field(default="graceful-restart", init=False)

    def __str__(self) -> str:
        return f"graceful restart, away {self.away_seconds:.1f} s"

    def play(self, world: World) -> None:
        """Ask it."""
        if world.is_up:
            stopping = world.loop.create_task(world.stop_gracefully(self.within_seconds, self.away_seconds))
            # The loop keeps no task alive; the book of troubles does.
            world.trouble(self.kind, self.within_seconds + self.away_seconds, lambda: _nothing(stopping))


@dataclass(frozen=True, slots=True)
class Reboot:
    """The machine starts anew."""

    away_seconds: float
    kind: str = field(default="reboot", init=False)

    def __str__(self) -> str:
        return f"reboot, away {self.away_seconds:.1f} s"

    def play(self, world: World) -> None:
        """Reboot it."""
        world.trouble(self.kind, self.away_seconds, _nothing)
        world.reboot(self.away_seconds)


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock jumps; perhaps somebody puts it right later."""

    by_seconds: float
    seconds: float  # until it is put right; infinite: never
    kind: str = field(default="clock-jump", init=False)

    def __str__(self) -> str:
        until = "" if isinf(self.seconds) else f" for {self.seconds:.0f} s"
        return f"the clock jumps by {self.by_seconds:+.1f} s{until}"

    def play(self, world: World) -> None:
        """Jump."""
        world.clock.jump(self.by_seconds)
        if isinf(self.seconds):
            world.troubles.moment(world.now(), self.kind)
        else:
            world.trouble(self.kind, self.seconds, lambda: world.clock.jump(-self.by_seconds))


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """The journal's disk is full, or slow, for a while."""

    full: bool
    sync_seconds: float
    seconds: float
    kind: str = field(default="disk-full", init=False)

    def __str__(self) -> str:
        how = " and ".join(
            filter(None, ("full" if self.full else "", f"{self.sync_seconds:.1f} s slow" if self.sync_seconds else ""))
        )
        return f"the journal's disk is {how} for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Fill it, or slow it."""
        world.journal.disk_full = self.full
        world.journal.sync_seconds = self.sync_seconds

        def clean_up() -> None:
            world.journal.disk_full = False
            world.journal.sync_seconds = 0.0

        world.trouble(self.kind, self.seconds, until_last(world, self.kind, clean_up))


@dataclass(frozen=True, slots=True)
class Dawdle:
    """A share of the agent's wake-ups comes late; for a while, or from now on."""

    share: float
    longest_seconds: float
    seconds: float = inf
    kind: str = field(default="dawdle", init=False)

    def __str__(self) -> str:
        until = "always" if isinf(self.seconds) else f"for {self.seconds:.0f} s"
        return f"{self.share:.0%} of the wake-ups come up to {self.longest_seconds:g} s late, {until}"

    def play(self, world: World) -> None:
        """Begin to dawdle. What is always so is no trouble, and not booked."""
        world.loop.dawdle(self.share, self.longest_seconds)
        if not isinf(self.seconds):
            hurry = until_last(world, self.kind, lambda: world.loop.dawdle(*BASE_DAWDLE))
            world.trouble(self.kind, self.seconds, hurry)


def _nothing(*kept: object) -> None:
    """There is nothing to put right."""


# What is drawn. Each draws one fault: from a chance, and the seconds until calm.


def crash(random: Random, left: float) -> Drawn:
    """One death, several in a row, or one more as soon as it lives again."""
    match random.choice(("one", "one", "again", "row")):
        case "again":
            first = Crash(_away(random))
            return [(0.0, first), (0.0, _ambush(random, left, random.randint(1, 6), first.away_seconds))]
        case "row":
            moments = [0.0]
            for _ in range(random.randint(1, 4)):
                moments.append(moments[-1] + random.uniform(0.05, 20.0))
            return [(at, _one_crash(random, left - at)) for at in moments if at < left]
    return [(0.0, _one_crash(random, left))]


def graceful_restart(random: Random, left: float) -> Drawn:
    """An update of the agent."""
    return [(0.0, GracefulRestart(random.uniform(1.0, 10.0), _away(random)))]


def reboot(random: Random, left: float) -> Drawn:
    """A reboot."""
    return [(0.0, Reboot(random.uniform(5.0, 120.0)))]


def clock_jump(random: Random, left: float) -> Drawn:
    """A small jump, which may stay, or a large one, which is put right."""
    large = random.random() < 0.3
    size = (
        random.uniform(600.0, 5 * 3600.0)
        if large
        else random.choice((random.uniform(0.5, 30.0), random.uniform(30.0, 600.0)))
    )
    seconds = min(left, random.uniform(1.0, 300.0)) if large or random.random() < 0.5 else inf
    return [(0.0, ClockJump(size * random.choice((-1.0, 1.0)), seconds))]


def disk_full(random: Random, left: float) -> Drawn:
    """The disk is full, slow, or both."""
    full = random.random() < 0.6
    slow = random.uniform(0.05, 20.0) if not full or random.random() < 0.2 else 0.0
    return [(0.0, DiskTrouble(full, slow, min(left, random.uniform(5.0, 300.0))))]


def dawdle(random: Random, left: float) -> Drawn:
    """The agent gets little of the machine."""
    share, longest = random.choice((0.01, 0.05, 0.3)), random.choice((0.001, 0.05, 0.5, 2.0))
    return [(0.0, Dawdle(share, longest, min(left, random.uniform(10.0, 180.0))))]


def stale_lists(random: Random, left: float) -> Drawn:
    """Old lists; worst when somebody must list: so perhaps a crash with it, and a watch that is late to put it right.

    A minute at most: whoever stays behind for longer is believed, as a server that was restored from a backup must be.
    """
    seconds = min(left, random.uniform(5.0, 60.0))
    drawn: Drawn = [(0.0, StaleLists(random.choice((1, 3, 10, 40, 150)), seconds))]
    if random.random() < 0.6:
        if random.random() < 0.7:
            drawn.append((0.0, WatchStale(min(seconds, left / 2), min(left / 2, random.uniform(0.5, 30.0)))))
        drawn.append((0.01, Crash(random.uniform(0.1, max(0.1, min(20.0, seconds / 2))))))
    return drawn


def _one_crash(random: Random, left: float) -> Crash:
    """At once, or at a call; the next few are the likeliest."""
    if random.random() < 0.3:
        return Crash(_away(random))
    return _ambush(random, left, 1 + min(60, int(random.expovariate(1 / 8))))


def _ambush(random: Random, left: float, calls: int, absent_seconds: float = 0.0) -> Crash:
    """Lie in wait for one that is perhaps still to come back; not into the calm."""
    within = min(left, absent_seconds + LONGEST_WAIT_SECONDS)
    return Crash(_away(random), calls, random.random() < 0.5, within)


def _away(random: Random) -> float:
    return random.choice((random.uniform(0.1, 2.0), random.uniform(2.0, 60.0)))
