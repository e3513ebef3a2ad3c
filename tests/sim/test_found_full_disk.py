"""What the simulation found about exits that a full disk could not note."""

import asyncio

import pytest

from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, pod, tell


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


def test_a_pod_that_starts_from_its_note_alone_keeps_the_dates_that_the_api_has() -> None:
    """Seed 82: the crash lost the note of the status, and the API was away when the agent came back.

    The first status of the new agent replaced the start time and the dates of all conditions.
    """

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        before = it.seen("web").status
        await asyncio.sleep(60)
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        it.world.crash(away_seconds=1.0)
        it.world.journal.drop(f"status/{uid}")
        await it.world.journal.sync()
        await asyncio.sleep(10)  # the agent goes on with the pod that it noted
        it.api.come_up()
        await asyncio.sleep(30)
        after = it.seen("web").status
        assert (after.start_time, after.conditions) == (before.start_time, before.conditions)

    tell(story)
