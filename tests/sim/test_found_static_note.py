"""Regressions from the simulation: a static pod whose mirror is newer than the checkpoint of its status."""

import asyncio
from collections.abc import Callable

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, published_changes, run_scenario

NAME = "web-n1"


def _fill_disk(node: SimNode) -> None:
    node.world.journal.disk_full = True
    node.world.fault_log.begin(node.world.now(), "disk-full")


async def _lose_containers(node: SimNode, uid: PodUID) -> None:
    """Remove everything of a pod from the runtime: its attempts begin at 0 again, the restart count does not."""
    for sandbox in node.sandboxes(uid):
        await node.runtime.remove_sandbox(sandbox)


def _is_restarted(node: SimNode) -> bool:
    """Whether the mirror shows the container that replaced the lost one."""
    status = node.status(NAME)
    return status.restart_count == 1 and status.state.running is not None


def _mirror_comes_first(node: SimNode) -> None:
    node.runtime.delays["list_pods"] = node.runtime.delays["pod_record"] = 2.0
    node.world.fault_log.begin(node.world.now(), "slow-calls")


def _sync_comes_first(node: SimNode) -> None:
    node.api.delays["list"] = 5.0
    node.world.fault_log.begin(node.world.now(), "api-errors")


@pytest.mark.parametrize("order", [_mirror_comes_first, _sync_comes_first])
@pytest.mark.parametrize("noted", [True, False], ids=["restart noted", "restart not noted"])
def test_a_static_pod_keeps_its_restart_count_if_the_journal_is_behind_its_mirror(
    noted: bool, order: Callable[[SimNode], None]
) -> None:
    """Seed 87: the disk refused the note that the pod was ready, and the next agent dropped the older note.

    It then counted the restarts by the runtime's attempts, and the count in the mirror fell from 1 to 0.
    """

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=False)
        uid = node.write("/etc/podkeeper/web.yaml", pod("web", container(readiness=probe(initial_delay_seconds=20))))
        await node.until(lambda: node.is_ready(NAME), within=30)
        if not noted:
            _fill_disk(node)
        await _lose_containers(node, uid)
        await node.until(lambda: _is_restarted(node), within=20)
        await asyncio.sleep(2)
        _fill_disk(node)
        await node.until(lambda: node.is_ready(NAME), within=60)
        assert [run.attempt for run in node.runs_of(uid)] == [0, 0]
        changes = node.changes()
        order(node)
        node.world.crash()
        node.world.journal.disk_full = False
        await asyncio.sleep(60)
        assert _is_restarted(node)
        assert node.is_ready(NAME)
        if noted:
            assert published_changes(changes) == []

    run_scenario(scenario)


def test_a_static_pod_added_again_while_it_terminates_keeps_its_restart_count() -> None:
    async def scenario(node: SimNode) -> None:
        place, manifest = (
            "/etc/podkeeper/web.yaml",
            pod("web", grace=20, behaviours={"app": Behaviour(term_seconds=None)}),
        )
        uid = node.write(place, manifest)
        await node.until(lambda: node.is_ready(NAME), within=5)
        await _lose_containers(node, uid)
        await node.until(lambda: _is_restarted(node), within=30)
        node.api.go_down()  # otherwise the first status after the drop takes the count from the mirror
        node.world.fault_log.begin(node.world.now(), "api-down")
        node.world.files.erase(place)
        await asyncio.sleep(10)  # housekeeping drops the statuses of pods that are over
        node.write(place, manifest)
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=60)
        node.api.come_up()
        await node.until(lambda: node.status(NAME).restart_count == 2 and node.is_ready(NAME), within=60)

    run_scenario(scenario, watched=False)
