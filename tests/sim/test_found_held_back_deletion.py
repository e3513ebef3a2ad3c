"""Pods that are deleted while one of their calls takes long, and the loop holds the deletion back."""

import asyncio

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.fake import Operation
from tests.sim.sim_node import SimNode, pod, run_scenario


@pytest.mark.parametrize(
    ("slow", "created"), [(Operation.PULL_IMAGE, 0), (Operation.CREATE_CONTAINER, 1)], ids=["pull", "create"]
)
def test_a_pod_whose_deletion_is_delayed_starts_no_container_after_a_slow_call(slow: Operation, created: int) -> None:
    """The loop handles no deletion while the runtime is unhealthy, but the call of the sync returned (I12)."""

    async def scenario(node: SimNode) -> None:
        node.world.fault_log.begin(node.world.now(), "runtime-down")
        node.runtime.faults.hang(slow, seconds=60)
        uid = node.put(pod("web"))
        await asyncio.sleep(20)
        unhealthy = node.runtime.faults.fail(Operation.HEALTH, times=None, error=RuntimeUnavailable)
        await asyncio.sleep(10)
        node.delete("web")
        await asyncio.sleep(60)
        node.runtime.faults.remove(unhealthy)
        await node.until(lambda: node.is_gone("web"), within=60)
        assert len(node.runs_of(uid)) == created
        assert all(run.started is None for run in node.runs_of(uid))

    run_scenario(scenario)
