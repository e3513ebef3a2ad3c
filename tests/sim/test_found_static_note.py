"""What the simulation found about a static pod whose mirror knows more than the note of its status."""

import asyncio
from collections.abc import Callable

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, container, each_ready_bit, exec_probe, pod, tell

NAME = "web-n1"


def _fill_disk(it: Story) -> None:
    it.world.journal.disk_full = True
    it.world.troubles.begin(it.world.now(), "disk-full")


async def _lose_containers(it: Story, uid: PodUID) -> None:
    """Remove everything of a pod from the runtime: its attempts begin at 0 again, the restart count does not."""
    for sandbox in it.sandboxes(uid):
        await it.runtime.remove_sandbox(sandbox)


def _is_restarted(it: Story) -> bool:
    """Whether the mirror shows the container that replaced the lost one."""
    status = it.status(NAME)
    return status.restart_count == 1 and status.state.running is not None


def _mirror_comes_first(it: Story) -> None:
    it.runtime.delays["list_pods"] = it.runtime.delays["pod_record"] = 2.0
    it.world.troubles.begin(it.world.now(), "slow-calls")


def _sync_comes_first(it: Story) -> None:
    it.api.delays["list"] = 5.0
    it.world.troubles.begin(it.world.now(), "api-errors")


@pytest.mark.parametrize("order", [_mirror_comes_first, _sync_comes_first])
@pytest.mark.parametrize("noted", [True, False], ids=["restart noted", "restart not noted"])
def test_a_static_pod_keeps_its_restart_count_if_its_note_is_behind_its_mirror(
    noted: bool, order: Callable[[Story], None]
) -> None:
    """Seed 87: the disk refused the note that the pod was ready, and the next agent dropped the older note.

    It then counted the restarts by the runtime's attempts, and the count in the mirror fell from 1 to 0.
    """

    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=False)
        uid = it.write("/etc/podkeeper/web.yaml", pod("web", container(ready=exec_probe(delay=20))))
        await it.until(lambda: it.is_ready(NAME), within=30)
        if not noted:
            _fill_disk(it)
        await _lose_containers(it, uid)
        await it.until(lambda: _is_restarted(it), within=20)
        await asyncio.sleep(2)
        _fill_disk(it)
        await it.until(lambda: it.is_ready(NAME), within=60)
        assert [life.attempt for life in it.lives(uid)] == [0, 0]
        changes = it.changes()
        order(it)
        it.world.crash()
        it.world.journal.disk_full = False
        await asyncio.sleep(60)
        assert _is_restarted(it)
        assert it.is_ready(NAME)
        if noted:
            assert each_ready_bit(changes) == []

    tell(story)


def test_a_static_pod_that_is_added_again_while_it_terminates_goes_on_counting_its_restarts() -> None:
    async def story(it: Story) -> None:
        place, manifest = "/etc/podkeeper/web.yaml", pod("web", grace=20, app=Behaviour(term_seconds=None))
        uid = it.write(place, manifest)
        await it.until(lambda: it.is_ready(NAME), within=5)
        await _lose_containers(it, uid)
        await it.until(lambda: _is_restarted(it), within=30)
        it.api.go_down()  # otherwise the first status after the drop takes the count from the mirror
        it.world.troubles.begin(it.world.now(), "api-down")
        it.world.files.erase(place)
        await asyncio.sleep(10)  # housekeeping drops the statuses of pods that are over
        it.write(place, manifest)
        await it.until(lambda: len(it.lives(uid)) == 3, within=60)
        it.api.come_up()
        await it.until(lambda: it.status(NAME).restart_count == 2 and it.is_ready(NAME), within=60)

    tell(story, watched=False)
