"""Playing a history: the plan says which, the world lives through it, the invariants watch.

    outcome = play(history_of(Plan(seed=7, hours=6)))

A chapter's deeds are done at their moments; then all trouble ends, and at the chapter's end the node must have come to
rest. The play ends early at the first broken promise. The same plan gives the same trace, to the last bit, in any
process whose string hashing is fixed (PYTHONHASHSEED=0).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from podkeeper.testing.sim.history import History, chapters_of, numbered
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.invariants.rest import Rest
from podkeeper.testing.sim.mischief import FAULTS, mischief_deeds
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import Played
from podkeeper.testing.sim.trace import Trace
from podkeeper.testing.sim.workload import WORKLOADS, answer_probes, workload_deeds
from podkeeper.testing.sim.world import Violation, World

SAMPLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which history to play."""

    seed: int
    hours: float = 6.0
    faults: tuple[str, ...] = tuple(FAULTS)
    workload: tuple[str, ...] = tuple(WORKLOADS)
    profile: Profile = field(default_factory=Profile)
    only: frozenset[int] | None = None  # the acts to keep; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    violation: Violation | None
    trace: Trace
    seconds: float  # virtual ones
    checks: Counter[str]  # how often each invariant was really put to the test
    troubles: Counter[str]  # how often each kind of trouble happened
    lives: int  # of the agent
    pods_alive: float  # with a running container, on average
    acts: int


def history_of(plan: Plan) -> History:
    """Draw the history of a plan."""
    chapters = chapters_of(plan.hours)
    deeds = workload_deeds(Random(f"{plan.seed}/workload"), chapters, plan.profile, plan.workload)
    deeds += mischief_deeds(Random(f"{plan.seed}/mischief"), chapters, plan.profile, plan.faults)
    history = History(plan.seed, chapters, numbered(deeds))
    return history if plan.only is None else history.only(plan.only)


def play(history: History, *, also: Callable[[World], object] | None = None) -> Outcome:
    """Live through a history. `also` may install more invariants, or look on."""
    world = World(history.seed)
    answer_probes(world)
    book = watch(world)
    if also is not None:
        also(world)
    alive: list[int] = []
    verdict = world.play(lambda: _story(world, history, Rest(world, book), alive))
    return Outcome(
        violation=verdict.violation,
        trace=verdict.trace,
        seconds=verdict.seconds,
        checks=verdict.checks,
        troubles=verdict.troubles,
        lives=verdict.lives,
        pods_alive=sum(alive) / len(alive) if alive else 0.0,
        acts=len(history.acts),
    )


async def _story(world: World, history: History, rest: Rest, alive: list[int]) -> None:
    sampling = world.loop.create_task(_sample(world, alive))
    acts = iter(history.acts)
    act = next(acts, None)
    for chapter in history.chapters:
        while act is not None and act.at < chapter.ends:
            await _until(world, act.at)
            world.bus.tell(Played(world.now(), act.number, str(act.deed)))
            act.deed.play(world)
            act = next(acts, None)
        await _until(world, chapter.calm_from)
        world.calm()
        rest.calm_began()
        await _until(world, chapter.ends)
        rest.check()
    sampling.cancel()


async def _until(world: World, at: float) -> None:
    if at > world.now():
        await asyncio.sleep(at - world.now())


async def _sample(world: World, alive: list[int]) -> None:
    """Count the pods that live, now and then."""
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        alive.append(len({life.uid for life in world.truth.all_running()}))
