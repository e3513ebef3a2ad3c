"""Pods that are deleted while one of their calls takes long, and the loop holds the deletion back."""

import asyncio

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.fake import Operation
from tests.sim.stories import Story, pod, tell


@pytest.mark.parametrize(
    ("slow", "created"), [(Operation.PULL_IMAGE, 0), (Operation.CREATE_CONTAINER, 1)], ids=["pull", "create"]
)
def test_a_pod_whose_deletion_the_loop_holds_back_starts_no_container_after_a_slow_call(
    slow: Operation, created: int
) -> None:
    """The loop handles no deletion while the runtime is unhealthy, but the call of the sync returned (I12)."""

    async def story(it: Story) -> None:
        it.world.troubles.begin(it.world.now(), "runtime-down")
        it.runtime.faults.hang(slow, seconds=60)
        uid = it.put(pod("web"))
        await asyncio.sleep(20)
        unhealthy = it.runtime.faults.fail(Operation.HEALTH, times=None, error=RuntimeUnavailable)
        await asyncio.sleep(10)
        it.delete("web")
        await asyncio.sleep(60)
        it.runtime.faults.remove(unhealthy)
        await it.until(lambda: it.is_gone("web"), within=60)
        assert len(it.lives(uid)) == created
        assert all(life.started is None for life in it.lives(uid))

    tell(story)
