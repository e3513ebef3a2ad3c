"""Regressions from the simulation: exits that a full disk could not note."""

import asyncio

import pytest

from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import SimNode, pod, run_scenario


@pytest.mark.parametrize("seed", range(16, 20))
def test_a_container_is_kept_until_its_exit_code_is_stored(seed: int) -> None:
    """Seed 300007: the disk was full, and the container was removed before the API had its exit code.

    The loop handled the exit event late, when the pod was finished and everything of it could be removed.
    """
    world = World(seed)
    watch(world)

    async def scenario() -> None:
        node = SimNode(world)
        uid = node.put(pod("web", grace=30))
        await node.until(lambda: node.is_ready("web"), within=5)
        world.journal.disk_full, world.journal.sync_seconds = True, 15.0
        world.fault_log.begin(world.now(), "disk-full")
        await asyncio.sleep(20)
        world.api.delays["patch_status"] = 10.0
        world.fault_log.begin(world.now(), "api-errors")
        world.loop.delay_wakeups(0.02, 0.02)  # with seed 17 the loop is late in the right moment
        world.fault_log.begin(world.now(), "late-wakeups")
        node.delete("web")
        await node.until(lambda: not node.runs(uid), within=5)
        await asyncio.sleep(3)
        world.loop.delay_wakeups(0.0, 0.0)
        world.api.delays.clear()
        world.journal.disk_full, world.journal.sync_seconds = False, 0.0
        await node.restart_agent()  # without a record or a published exit code: only the runtime has it
        await node.until(lambda: node.is_gone("web"), within=60)

    result = world.run(scenario)
    assert result.violation is None, result.violation


def test_a_pod_that_starts_from_the_journal_keeps_the_times_in_the_api() -> None:
    """Seed 82: the crash lost the stored status, and the API was down when the agent restarted.

    The first status of the new agent replaced the start time and the dates of all conditions.
    """

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        before = node.seen("web").status
        await asyncio.sleep(60)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        node.world.crash(downtime_seconds=1.0)
        node.world.journal.drop(f"status/{uid}")
        await node.world.journal.sync()
        await asyncio.sleep(10)  # the agent continues with the stored pod
        node.api.come_up()
        await asyncio.sleep(30)
        after = node.seen("web").status
        assert (after.start_time, after.conditions) == (before.start_time, before.conditions)

    run_scenario(scenario)
