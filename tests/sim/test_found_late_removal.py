"""Regressions from the simulation: removals that begin some time after housekeeping has decided on them."""

import asyncio

import pytest

from podkeeper.testing.build import container
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import SimNode, pod

PLACE = "/etc/podkeeper/web.yaml"


@pytest.mark.parametrize("seed", [8, 140, 150, 197])  # the removal begins late
def test_a_static_pod_that_is_added_again_keeps_its_directory(seed: int) -> None:
    """Seed 732: a manifest changed and changed back, and the directory was removed while the pod ran (I21)."""
    world = World(seed)
    watch(world)

    async def scenario() -> None:
        node = SimNode(world)
        first, second = (pod("web", container(image=image), grace=1) for image in ("app:v1", "app:v2"))
        uid = node.write(PLACE, first)
        await node.until(lambda: node.runs(uid), within=5)
        successor = node.write(PLACE, second)
        await node.until(lambda: node.runs(successor), within=5)
        node.world.fault_log.begin(node.world.now(), "late-wakeups")
        node.world.loop.delay_wakeups(0.1, 1.0)
        node.agent.request_housekeeping()
        await asyncio.sleep(0.4)
        node.world.loop.delay_wakeups(0.0, 0.0)
        node.write(PLACE, first)
        await node.until(lambda: node.runs(uid), within=15)
        await asyncio.sleep(2)

    result = world.run(scenario)
    assert result.violation is None, result.violation
