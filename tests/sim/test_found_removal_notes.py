"""Regressions from the simulation: the notes of pods that the API has deleted."""

import asyncio

import pytest

from podkeeper.model.k8s.core import EphemeralContainer
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.actions import AddEphemeralContainer, Evict
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, run_scenario

DEBUGGER = EphemeralContainer(name="debugger", image="debug:v1")


@pytest.mark.parametrize("stale_lists", [False, True], ids=["the API is down", "lists are stale"])
@pytest.mark.parametrize("grace", [0, 5], ids=["removed by force", "deleted"])
def test_a_pod_whose_end_was_stored_does_not_start_from_an_older_journal_entry(stale_lists: bool, grace: int) -> None:
    """Seed 74: a crash kept the noted API version of a pod's removal, but also the note of the pod.

    The next agent refused a list that was older than this version, and started the pod from its note. So a debugger
    ran a second time (I7).
    """

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        await asyncio.sleep(30)
        before = node.api.version
        node.world.journal.sync_seconds, node.world.crash_options = 0.5, CrashOptions(keep_unsynced=False)
        node.delete("web", grace=grace)
        await node.until(lambda: not node.runs(uid), within=10)
        if stale_lists:
            node.api.lists_as_of = before
            node.world.fault_log.begin(node.world.now(), "stale-lists")
        else:
            node.api.go_down()
            node.world.fault_log.begin(node.world.now(), "api-down")
        node.world.crash(downtime_seconds=1.0)  # the disk does not have the notes of the last half second
        await asyncio.sleep(20)
        assert len(node.runs_of(uid)) == 1
        node.api.lists_as_of = None
        node.api.come_up()
        await node.until(lambda: node.is_gone("web"), within=60)

    run_scenario(scenario)


def test_a_pod_deleted_by_the_agent_does_not_start_again_while_its_source_still_reports_it() -> None:
    """Seed 579: the status was dropped with the object. The next agent started the pod from its note (I12)."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        await node.restart_agent()
        await node.until(lambda: node.agent.engine.manager.pod_by_uid(uid) is not None, within=10)
        Evict("evictions", "web", 2).run(node.world)
        await node.until(lambda: not node.runs(uid), within=10)
        node.delete("web", grace=1)
        node.api.faults.fail("list", times=1000)
        node.api.come_up()
        await node.until(lambda: node.is_gone("web"), within=90)
        await asyncio.sleep(5)
        node.api.go_down()
        await node.restart_agent()
        await asyncio.sleep(30)
        assert len(node.runs_of(uid)) == 1
        node.api.faults.clear()
        node.api.come_up()
        await node.until(lambda: node.agent.engine.manager.pod_by_uid(uid) is None, within=90)
        await node.until(lambda: node.agent.engine.statuses.get_pod_status(uid) is None, within=10)

    run_scenario(scenario)


def test_a_pod_whose_removal_left_no_trace_is_terminated_again_after_a_fresh_list() -> None:
    """The disk refused all writes, and the containers were removed. The invariant was too strict (I7)."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"debugger": Behaviour(after_seconds=5)}))
        await node.until(lambda: node.is_ready("web"), within=5)
        AddEphemeralContainer("debuggers", "web", DEBUGGER).run(node.world)
        await asyncio.sleep(30)
        node.world.journal.disk_full, node.world.crash_options = True, CrashOptions(keep_unsynced=False)
        node.world.fault_log.begin(node.world.now(), "disk-full")
        node.api.lists_as_of = node.api.version
        node.world.fault_log.begin(node.world.now(), "stale-lists")
        node.delete("web", grace=0)
        await node.until(lambda: all(run.removed is not None for run in node.runs_of(uid)), within=10)
        node.api.set_watch_pace(delay_seconds=10)
        node.world.fault_log.begin(node.world.now(), "watch-stale")
        node.world.crash()
        await node.until(lambda: node.runs(uid), within=5)
        node.world.journal.disk_full, node.api.lists_as_of = False, None
        node.api.set_watch_pace()
        await node.until(lambda: not node.runs(uid), within=60)

    run_scenario(scenario)
