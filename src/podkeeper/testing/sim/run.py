"""Run one schedule: draw it from a plan, run its actions, check the invariants.

    result = run_schedule(schedule_of(SimPlan(seed=7, hours=6)))

The actions of a segment run at their times. Then all faults end, and at the end of the segment the node must have
settled. The run ends early at the first violation. The same plan gives the same trace, bit for bit, in any process with
fixed string hashing (PYTHONHASHSEED=0).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from podkeeper.testing.sim.faults import FAULTS, fault_actions
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.invariants.quiescence import Quiescence
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import ActionStarted
from podkeeper.testing.sim.schedule import Schedule, numbered, segments_of
from podkeeper.testing.sim.trace import Trace
from podkeeper.testing.sim.workload import WORKLOADS, answer_probes, workload_actions
from podkeeper.testing.sim.world import Violation, World

SAMPLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPlan:
    """The parameters of a run."""

    seed: int
    hours: float = 6.0
    faults: tuple[str, ...] = tuple(FAULTS)
    workload: tuple[str, ...] = tuple(WORKLOADS)
    profile: Profile = field(default_factory=Profile)
    only: frozenset[int] | None = None  # the actions to keep; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run."""

    violation: Violation | None
    trace: Trace
    seconds: float  # virtual
    checks: Counter[str]  # how often each invariant was really checked
    fault_counts: Counter[str]  # how often each kind of fault happened
    agents: int  # agent processes that were started
    pods_alive: float  # average number of pods with a running container
    actions: int


def schedule_of(plan: SimPlan) -> Schedule:
    """Draw the schedule of a plan."""
    segments = segments_of(plan.hours)
    actions = workload_actions(Random(f"{plan.seed}/workload"), segments, plan.profile, plan.workload)
    # The string determines the random numbers. Another one would change what every seed does.
    actions += fault_actions(Random(f"{plan.seed}/mischief"), segments, plan.profile, plan.faults)
    schedule = Schedule(plan.seed, segments, numbered(actions))
    return schedule if plan.only is None else schedule.only(plan.only)


def run_schedule(schedule: Schedule, *, also: Callable[[World], object] | None = None) -> RunResult:
    """Run a schedule. `also` can install more invariants or subscribers."""
    world = World(schedule.seed)
    answer_probes(world)
    probes = watch(world)
    if also is not None:
        also(world)
    alive: list[int] = []
    result = world.run(lambda: _run_actions(world, schedule, Quiescence(world, probes), alive))
    return RunResult(
        violation=result.violation,
        trace=result.trace,
        seconds=result.seconds,
        checks=result.checks,
        fault_counts=result.fault_counts,
        agents=result.agents,
        pods_alive=sum(alive) / len(alive) if alive else 0.0,
        actions=len(schedule.actions),
    )


async def _run_actions(world: World, schedule: Schedule, quiescence: Quiescence, alive: list[int]) -> None:
    sampling = world.loop.create_task(_sample(world, alive))
    actions = iter(schedule.actions)
    timed = next(actions, None)
    for segment in schedule.segments:
        while timed is not None and timed.at < segment.ends:
            await _until(world, timed.at)
            world.bus.publish(ActionStarted(world.now(), timed.number, str(timed.action)))
            timed.action.run(world)
            timed = next(actions, None)
        await _until(world, segment.calm_from)
        # Before the calm phase: the limits of `Quiescence` count from the end of the last fault.
        world.end_faults()
        quiescence.start_calm()
        await _until(world, segment.ends)
        quiescence.check()
    sampling.cancel()


async def _until(world: World, at: float) -> None:
    if at > world.now():
        await asyncio.sleep(at - world.now())


async def _sample(world: World, alive: list[int]) -> None:
    """Count the pods with a running container, once a minute."""
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        alive.append(len({run.uid for run in world.truth.all_running()}))
