"""What the simulation found about exits that a full disk could not note."""

import asyncio

import pytest

from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, pod


@pytest.mark.parametrize("seed", range(16, 20))
def test_a_container_is_kept_until_its_exit_code_is_saved(seed: int) -> None:
    """Seed 300007: the disk was full, and the container was removed before the API had its exit code.

    The loop handled the event of the exit late, when the pod was finished and everything of it could be removed.
    """
    world = World(seed)
    watch(world)

    async def story() -> None:
        it = Story(world)
        uid = it.put(pod("web", grace=30))
        await it.until(lambda: it.is_ready("web"), within=5)
        world.journal.disk_full, world.journal.sync_seconds = True, 15.0
        world.troubles.begin(world.now(), "disk-full")
        await asyncio.sleep(20)
        world.api.delays["patch_status"] = 10.0
        world.troubles.begin(world.now(), "api-errors")
        world.loop.dawdle(0.02, 0.02)  # with seed 17 the loop is late in the right moment
        world.troubles.begin(world.now(), "dawdle")
        it.delete("web")
        await it.until(lambda: not it.runs(uid), within=5)
        await asyncio.sleep(3)
        world.loop.dawdle(0.0, 0.0)
        world.api.delays.clear()
        world.journal.disk_full, world.journal.sync_seconds = False, 0.0
        await it.restart_agent()  # with neither note nor published exit code: only the runtime knows it
        await it.until(lambda: it.is_gone("web"), within=60)

    verdict = world.play(story)
    assert verdict.violation is None, verdict.violation
