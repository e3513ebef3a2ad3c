"""What the simulation found about removals that begin some time after housekeeping has decided on them."""

import asyncio

import pytest

from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, container, pod

PLACE = "/etc/podkeeper/web.yaml"


@pytest.mark.parametrize("seed", [8, 140, 150, 197])  # the removal begins late
def test_a_static_pod_that_is_added_again_keeps_its_directory(seed: int) -> None:
    """Seed 732: a manifest changed and changed back, and the directory was removed while the pod ran (I21)."""
    world = World(seed)
    watch(world)

    async def story() -> None:
        it = Story(world)
        first, second = (pod("web", container(image=image), grace=1) for image in ("app:v1", "app:v2"))
        uid = it.write(PLACE, first)
        await it.until(lambda: it.runs(uid), within=5)
        successor = it.write(PLACE, second)
        await it.until(lambda: it.runs(successor), within=5)
        it.world.troubles.begin(it.world.now(), "dawdle")
        it.world.loop.dawdle(0.1, 1.0)
        it.agent.loop.tidy_soon()
        await asyncio.sleep(0.4)
        it.world.loop.dawdle(0.0, 0.0)
        it.write(PLACE, first)
        await it.until(lambda: it.runs(uid), within=15)
        await asyncio.sleep(2)

    verdict = world.play(story)
    assert verdict.violation is None, verdict.violation
