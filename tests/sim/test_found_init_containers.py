"""Regressions from the simulation: init containers of a pod that needs a new sandbox."""

import asyncio
from itertools import count

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, Fault, Operation
from podkeeper.testing.build import container
from tests.sim.sim_node import SimNode, pod, run_scenario

INIT_CONTAINERS = {
    "init container": (container("first"), Behaviour(after_seconds=2)),
    "sidecar": (container("first", sidecar=True), Behaviour()),
}


async def fail_to_start_again(node: SimNode, first: Container, behaviour: Behaviour) -> None:
    """Reboot below a pod with an init container. Its records are removed, and no container can be created."""
    uid = node.put(pod("web", container(), init=(first,), behaviours={"first": behaviour}))
    await node.until(lambda: node.is_ready("web"), within=10)
    node.runtime.faults.fail(Operation.CREATE_CONTAINER, uid, times=None)
    node.world.fault_log.begin(node.world.now(), "runtime-errors", uid)
    node.world.reboot(downtime_seconds=5)
    await node.until(lambda: node.status("web", "first").state.waiting is not None, within=60)


@pytest.mark.parametrize(("first", "behaviour"), INIT_CONTAINERS.values(), ids=INIT_CONTAINERS.keys())
@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart of the agent"])
def test_the_last_status_has_the_exit_status_of_a_removed_init_container(
    first: Container, behaviour: Behaviour, restarted: bool
) -> None:
    """Seed 364: the exit status was replaced by an assumed one (I7).

    That was "Completed" for an init container (the regular container of the old sandbox made the pod seem initialized),
    and 137 for a sidecar.
    """

    async def scenario(node: SimNode) -> None:
        await fail_to_start_again(node, first, behaviour)
        await asyncio.sleep(60)
        if restarted:
            await node.restart_agent()
            await asyncio.sleep(60)
        changes = node.changes()
        node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=60)
        last = next(change.new for change in reversed(changes) if change.new is not None)
        (status,) = last.status.init_container_statuses or ()
        (run,) = node.runs_of(PodUID(last.metadata.uid or ""), "first")
        assert status.state.terminated is not None
        published = (status.state.terminated.container_id, status.state.terminated.exit_code)
        assert published == (f"fake://{run.id}", run.exit_code)

    run_scenario(scenario)


def test_an_init_container_that_cannot_start_again_is_published_as_waiting_all_the_time() -> None:
    """It was published as completed by every other sync, because of the regular container of the old sandbox."""

    async def scenario(node: SimNode) -> None:
        await fail_to_start_again(node, *INIT_CONTAINERS["init container"])
        changes = node.changes()
        await asyncio.sleep(120)
        shown = [status for each in changes if each.new for status in each.new.status.init_container_statuses or ()]
        assert all(status.state.waiting is not None for status in shown)
        last = node.status("web", "first").last_state.terminated
        assert last is not None
        assert (last.container_id, last.exit_code) == (f"fake://{node.runs_of(node.uid('web'), 'first')[0].id}", 0)

    run_scenario(scenario)


@pytest.mark.parametrize("refused", [0, 1])
def test_all_init_containers_run_again_in_a_new_sandbox_although_one_could_not_be_removed(refused: int) -> None:
    """Seed 508: the exit of a sidecar in the old sandbox counted as progress in the new one (I7).

    The init container before it did not run again. Its status alternated between Completed and CreateContainerError.
    """

    async def scenario(node: SimNode) -> None:
        init = (container("first"), container("second", sidecar=True))
        uid = node.put(pod("web", container(), init=init, behaviours={"first": Behaviour(after_seconds=2)}))
        await node.until(lambda: node.is_ready("web"), within=10)
        removals = count()

        def refuse(operation: str, about: str) -> Fault | None:
            hit = operation == Operation.REMOVE_CONTAINER and next(removals) == refused
            return Fault(error=RuntimeUnavailable) if hit else None

        node.runtime.faults.add_policy(refuse)
        node.runtime.faults.fail(Operation.CREATE_CONTAINER, uid)
        node.world.fault_log.begin(node.world.now(), "runtime-errors", uid)
        node.world.reboot(downtime_seconds=5)
        await node.until(lambda: node.status("web").restart_count == 1 and node.is_ready("web"), within=120)
        assert [len(node.runs_of(uid, name)) for name in ("first", "second", "app")] == [2, 2, 2]
        assert node.status("web", "first").state.terminated is not None

    run_scenario(scenario)
