"""Run scenarios with the invariants about quiescence, readiness and promptness."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.testing.sim.invariants.quiescence import LONG_CALM_SECONDS, Quiescence
from podkeeper.testing.sim.world import World, WorldResult
from tests.sim.sim_node import SimNode

Scenario = Callable[[SimNode], Awaitable[None]]


def run_with_checks(
    scenario: Scenario, *watchers: Callable[[World], object], rest: bool = False, calm: float = LONG_CALM_SECONDS
) -> WorldResult:
    """Run a scenario with some invariants. With `rest`, calm follows, and the node must settle."""
    world = World("rest")
    world.loop.delay_wakeups(0.02, 0.02)
    at_rest = Quiescence(world)
    for watcher in watchers:
        watcher(world)

    async def whole() -> None:
        await scenario(SimNode(world))
        if rest:
            world.end_faults()
            at_rest.start_calm()
            await asyncio.sleep(calm)
            at_rest.check()

    return world.run(whole)


def violated_by(result: WorldResult) -> str:
    return "" if result.violation is None else result.violation.invariant
