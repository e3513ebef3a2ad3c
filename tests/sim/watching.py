"""Plays under the eyes of the invariants about rest, readiness and promptness."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.testing.sim.invariants.rest import LONG_CALM_SECONDS, Rest
from podkeeper.testing.sim.world import Verdict, World
from tests.sim.stories import Story

Misdeed = Callable[[Story], Awaitable[None]]


def play(
    story: Misdeed, *watchers: Callable[[World], object], rest: bool = False, calm: float = LONG_CALM_SECONDS
) -> Verdict:
    """Play a story under the eyes of some watchers; with `rest`, calm follows and the node must come to rest."""
    world = World("rest")
    world.loop.dawdle(0.02, 0.02)
    at_rest = Rest(world)
    for watcher in watchers:
        watcher(world)

    async def whole() -> None:
        await story(Story(world))
        if rest:
            world.calm()
            at_rest.calm_began()
            await asyncio.sleep(calm)
            at_rest.check()

    return world.play(whole)


def broken(verdict: Verdict) -> str:
    return "" if verdict.violation is None else verdict.violation.invariant
