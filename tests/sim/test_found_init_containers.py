"""What the simulation found about init containers of a pod that needs a new sandbox."""

import asyncio
from itertools import count

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, Fault, Operation
from tests.sim.stories import Story, container, pod, tell

INIT_CONTAINERS = {
    "init container": (container("first"), Behaviour(after_seconds=2)),
    "sidecar": (container("first", restart="Always"), Behaviour()),
}


async def fail_to_start_again(it: Story, first: Container, behaviour: Behaviour) -> None:
    """Reboot below a pod with an init container. Its records are removed, and no container can be created."""
    uid = it.put(pod("web", container(), init=(first,), first=behaviour))
    await it.until(lambda: it.is_ready("web"), within=10)
    it.runtime.faults.fail(Operation.CREATE_CONTAINER, uid, times=None)
    it.world.troubles.begin(it.world.now(), "runtime-errors", uid)
    it.world.reboot(away_seconds=5)
    await it.until(lambda: it.status("web", "first").state.waiting is not None, within=60)


@pytest.mark.parametrize(("first", "behaviour"), INIT_CONTAINERS.values(), ids=INIT_CONTAINERS.keys())
@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart of the agent"])
def test_the_last_status_has_the_exit_status_of_a_removed_init_container(
    first: Container, behaviour: Behaviour, restarted: bool
) -> None:
    """Seed 364: the exit status was replaced by an assumed one (I7).

    That was "Completed" for an init container (the regular container of the old sandbox made the pod look initialized),
    and 137 for a sidecar.
    """

    async def story(it: Story) -> None:
        await fail_to_start_again(it, first, behaviour)
        await asyncio.sleep(60)
        if restarted:
            await it.restart_agent()
            await asyncio.sleep(60)
        changes = it.changes()
        it.delete("web")
        await it.until(lambda: it.is_gone("web"), within=60)
        last = next(change.new for change in reversed(changes) if change.new is not None)
        (status,) = last.status.init_container_statuses or ()
        (life,) = it.lives(PodUID(last.metadata.uid or ""), "first")
        assert status.state.terminated is not None
        told = (status.state.terminated.container_id, status.state.terminated.exit_code)
        assert told == (f"fake://{life.id}", life.exit_code)

    tell(story)


def test_an_init_container_that_cannot_start_again_is_published_as_waiting_all_the_time() -> None:
    """It was published as completed by every other sync, because of the regular container of the old sandbox."""

    async def story(it: Story) -> None:
        await fail_to_start_again(it, *INIT_CONTAINERS["init container"])
        changes = it.changes()
        await asyncio.sleep(120)
        shown = [status for each in changes if each.new for status in each.new.status.init_container_statuses or ()]
        assert all(status.state.waiting is not None for status in shown)
        last = it.status("web", "first").last_state.terminated
        assert last is not None
        assert (last.container_id, last.exit_code) == (f"fake://{it.lives(it.uid('web'), 'first')[0].id}", 0)

    tell(story)


@pytest.mark.parametrize("refused", [0, 1])
def test_all_init_containers_run_again_in_a_new_sandbox_although_one_could_not_be_removed(refused: int) -> None:
    """Seed 508: the exit of a sidecar in the old sandbox counted as progress in the new one (I7).

    The init container before it did not run again. Its status alternated between Completed and CreateContainerError.
    """

    async def story(it: Story) -> None:
        init = (container("first"), container("second", restart="Always"))
        uid = it.put(pod("web", container(), init=init, first=Behaviour(after_seconds=2)))
        await it.until(lambda: it.is_ready("web"), within=10)
        removals = count()

        def refuse(operation: str, about: str) -> Fault | None:
            hit = operation == Operation.REMOVE_CONTAINER and next(removals) == refused
            return Fault(error=RuntimeUnavailable) if hit else None

        it.runtime.faults.add_policy(refuse)
        it.runtime.faults.fail(Operation.CREATE_CONTAINER, uid)
        it.world.troubles.begin(it.world.now(), "runtime-errors", uid)
        it.world.reboot(away_seconds=5)
        await it.until(lambda: it.status("web").restart_count == 1 and it.is_ready("web"), within=120)
        assert [len(it.lives(uid, name)) for name in ("first", "second", "app")] == [2, 2, 2]
        assert it.status("web", "first").state.terminated is not None

    tell(story)
