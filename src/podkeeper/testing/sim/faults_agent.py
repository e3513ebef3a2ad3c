"""Faults of the agent and its machine.

Crashes, restarts, clock jumps, a full disk, late wake-ups.

The agent is killed at a time or at a call: the n-th write from now, before or after its effect. Several such calls can
be pending at once.
"""

from dataclasses import dataclass, field
from math import inf, isinf
from random import Random

from podkeeper.testing.sim.agent_process import CrashPoint, Side
from podkeeper.testing.sim.faults_calls import Drawn
from podkeeper.testing.sim.faults_services import StaleLists, WatchStale, undo_after_last
from podkeeper.testing.sim.records import CallStarted
from podkeeper.testing.sim.world import World

# An idle agent makes few writes. Without a limit, the crash could come much later than drawn.
LONGEST_WAIT_SECONDS = 30.0
BASE_LATE_WAKEUPS = (0.02, 0.02)  # share and longest delay: a few wake-ups are always late


@dataclass(frozen=True, slots=True)
class AgentCrash:
    """Kill the agent (`kill -9`)."""

    downtime_seconds: float
    calls: int = 0  # at the n-th write from now; 0: at once
    after: bool = False  # after the effect of that write, not before it
    within_seconds: float = LONGEST_WAIT_SECONDS  # kill it after this time if there was no such call
    kind: str = field(default="crash", init=False)

    def __str__(self) -> str:
        side = "after" if self.after else "before"
        return (
            f"crash {f'{side} call {self.calls}' if self.calls else 'at once'}, down for {self.downtime_seconds:.1f} s"
        )

    def run(self, world: World) -> None:
        """Kill it now, or at the given call."""
        if self.calls <= 0:
            self.kill(world, "killed")
        else:
            _CrashTriggers.of(world).add(self)

    def kill(self, world: World, why: str) -> None:
        """Kill it now, if it is alive."""
        if world.is_up:
            world.begin_fault(self.kind, self.downtime_seconds, _no_undo)
            world.crash(why, self.downtime_seconds)


class _CrashTriggers:
    """Pending crashes at future calls."""

    def __init__(self, world: World, before: CrashPoint) -> None:
        self._world = world
        self._before = before  # the crash point that was set before
        self._waiting: dict[int, tuple[AgentCrash, int]] = {}  # by number, with the number of calls to wait for
        self._added = 0

    @classmethod
    def of(cls, world: World) -> "_CrashTriggers":
        """Return the instance of a world. The first call creates it."""
        if not isinstance(world.crash_point, cls):
            world.crash_point = cls(world, world.crash_point)
        return world.crash_point

    def add(self, crash: AgentCrash) -> None:
        """Add a pending crash."""
        self._added += 1
        self._waiting[self._added] = crash, crash.calls
        self._world.loop.call_later(crash.within_seconds, self._give_up, self._added)

    def __call__(self, call: CallStarted, side: Side) -> bool:
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
        fatal.kill(self._world, f"killed {side.name.lower()} {call.port} {call.operation} {call.subject}")
        return True

    def _give_up(self, number: int) -> None:
        crash, _ = self._waiting.pop(number, (None, 0))
        if crash is not None:
            crash.kill(self._world, "killed after the time limit")


@dataclass(frozen=True, slots=True)
class GracefulRestart:
    """Stop the agent gracefully and start it again."""

    within_seconds: float
    downtime_seconds: float
    kind: str = field(default="graceful-restart", init=False)

    def __str__(self) -> str:
        return f"graceful restart, down for {self.downtime_seconds:.1f} s"

    def run(self, world: World) -> None:
        if world.is_up:
            stopping = world.loop.create_task(world.stop_gracefully(self.within_seconds, self.downtime_seconds))
            # The loop holds only weak references to tasks. The undo function keeps this one alive.
            world.begin_fault(self.kind, self.within_seconds + self.downtime_seconds, lambda: _no_undo(stopping))


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot the machine."""

    downtime_seconds: float
    kind: str = field(default="reboot", init=False)

    def __str__(self) -> str:
        return f"reboot, down for {self.downtime_seconds:.1f} s"

    def run(self, world: World) -> None:
        world.begin_fault(self.kind, self.downtime_seconds, _no_undo)
        world.reboot(self.downtime_seconds)


@dataclass(frozen=True, slots=True)
class ClockJump:
    """Let the wall clock jump, and maybe correct it later."""

    by_seconds: float
    seconds: float  # until it is corrected; infinite: never
    kind: str = field(default="clock-jump", init=False)

    def __str__(self) -> str:
        until = "" if isinf(self.seconds) else f" for {self.seconds:.0f} s"
        return f"the clock jumps by {self.by_seconds:+.1f} s{until}"

    def run(self, world: World) -> None:
        world.clock.jump(self.by_seconds)
        if isinf(self.seconds):
            world.fault_log.instant(world.now(), self.kind)
        else:
            world.begin_fault(self.kind, self.seconds, lambda: world.clock.jump(-self.by_seconds))


@dataclass(frozen=True, slots=True)
class DiskFault:
    """The journal's disk is full or slow for some time."""

    full: bool
    sync_seconds: float
    seconds: float
    kind: str = field(default="disk-full", init=False)

    def __str__(self) -> str:
        how = " and ".join(
            filter(None, ("full" if self.full else "", f"{self.sync_seconds:.1f} s slow" if self.sync_seconds else ""))
        )
        return f"the journal's disk is {how} for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        world.journal.disk_full = self.full
        world.journal.sync_seconds = self.sync_seconds

        def clean_up() -> None:
            world.journal.disk_full = False
            world.journal.sync_seconds = 0.0

        world.begin_fault(self.kind, self.seconds, undo_after_last(world, self.kind, clean_up))


@dataclass(frozen=True, slots=True)
class LateWakeups:
    """A share of the agent's wake-ups is late, for some time or from now on."""

    share: float
    longest_seconds: float
    seconds: float = inf
    kind: str = field(default="late-wakeups", init=False)

    def __str__(self) -> str:
        until = "always" if isinf(self.seconds) else f"for {self.seconds:.0f} s"
        return f"{self.share:.0%} of the wake-ups come up to {self.longest_seconds:g} s late, {until}"

    def run(self, world: World) -> None:
        """Start to delay wake-ups. A permanent delay is not a fault and is not logged."""
        world.loop.delay_wakeups(self.share, self.longest_seconds)
        if not isinf(self.seconds):
            hurry = undo_after_last(world, self.kind, lambda: world.loop.delay_wakeups(*BASE_LATE_WAKEUPS))
            world.begin_fault(self.kind, self.seconds, hurry)


def _no_undo(*kept: object) -> None:
    """The `undo` of faults that need none."""


# Drawing. Each function draws one fault. `left` is the time until the next calm phase.


def crash(random: Random, left: float) -> Drawn:
    """Draw one crash, several in a row, or a second one soon after the restart."""
    match random.choice(("one", "one", "again", "row")):
        case "again":
            first = AgentCrash(_downtime(random))
            return [(0.0, first), (0.0, _crash_at_call(random, left, random.randint(1, 6), first.downtime_seconds))]
        case "row":
            moments = [0.0]
            for _ in range(random.randint(1, 4)):
                moments.append(moments[-1] + random.uniform(0.05, 20.0))
            return [(at, _one_crash(random, left - at)) for at in moments if at < left]
    return [(0.0, _one_crash(random, left))]


def graceful_restart(random: Random, left: float) -> Drawn:
    """Draw a graceful restart, as for an update of the agent."""
    return [(0.0, GracefulRestart(random.uniform(1.0, 10.0), _downtime(random)))]


def reboot(random: Random, left: float) -> Drawn:
    return [(0.0, Reboot(random.uniform(5.0, 120.0)))]


def clock_jump(random: Random, left: float) -> Drawn:
    """Draw a small jump, which may stay, or a large one, which is corrected."""
    large = random.random() < 0.3
    size = (
        random.uniform(600.0, 5 * 3600.0)
        if large
        else random.choice((random.uniform(0.5, 30.0), random.uniform(30.0, 600.0)))
    )
    seconds = min(left, random.uniform(1.0, 300.0)) if large or random.random() < 0.5 else inf
    return [(0.0, ClockJump(size * random.choice((-1.0, 1.0)), seconds))]


def disk_full(random: Random, left: float) -> Drawn:
    """Draw a disk that is full, slow, or both."""
    full = random.random() < 0.6
    slow = random.uniform(0.05, 20.0) if not full or random.random() < 0.2 else 0.0
    return [(0.0, DiskFault(full, slow, min(left, random.uniform(5.0, 300.0))))]


def late_wakeups(random: Random, left: float) -> Drawn:
    """Draw a busy machine on which wake-ups are late."""
    share, longest = random.choice((0.01, 0.05, 0.3)), random.choice((0.001, 0.05, 0.5, 2.0))
    return [(0.0, LateWakeups(share, longest, min(left, random.uniform(10.0, 180.0))))]


def stale_lists(random: Random, left: float) -> Drawn:
    """Draw stale lists. A crash forces the agent to list, and a late watch delays the correction. Both may be added.

    The lists are old for a minute at most. If lists stay old for longer, the agent accepts them by design, because the
    API server may have been restored from a backup.
    """
    seconds = min(left, random.uniform(5.0, 60.0))
    drawn: Drawn = [(0.0, StaleLists(random.choice((1, 3, 10, 40, 150)), seconds))]
    if random.random() < 0.6:
        if random.random() < 0.7:
            drawn.append((0.0, WatchStale(min(seconds, left / 2), min(left / 2, random.uniform(0.5, 30.0)))))
        drawn.append((0.01, AgentCrash(random.uniform(0.1, max(0.1, min(20.0, seconds / 2))))))
    return drawn


def _one_crash(random: Random, left: float) -> AgentCrash:
    """Draw a crash at once or at a call. The next few calls are the most likely ones."""
    if random.random() < 0.3:
        return AgentCrash(_downtime(random))
    return _crash_at_call(random, left, 1 + min(60, int(random.expovariate(1 / 8))))


def _crash_at_call(random: Random, left: float, calls: int, downtime_seconds: float = 0.0) -> AgentCrash:
    """Draw a crash at a call of an agent that may not have restarted yet. It never happens in a calm phase."""
    within = min(left, downtime_seconds + LONGEST_WAIT_SECONDS)
    return AgentCrash(_downtime(random), calls, random.random() < 0.5, within)


def _downtime(random: Random) -> float:
    return random.choice((random.uniform(0.1, 2.0), random.uniform(2.0, 60.0)))
