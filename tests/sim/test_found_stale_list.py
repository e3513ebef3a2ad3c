"""Regressions from the simulation: lists that are older than the pods of the node."""

import asyncio

import pytest

from podkeeper.model.k8s.core import EphemeralContainer, Pod
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.actions import AddEphemeralContainer
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, run_scenario


def lose_all_notes_and_show_old_lists(node: SimNode, lists_as_of: int, *, watch_delay_seconds: float) -> None:
    """The disk is full, so a crash loses every note. Lists come from a cache that lags, and watches are late."""
    node.world.journal.disk_full, node.world.crash_options = True, CrashOptions(keep_unsynced=False)
    node.world.fault_log.begin(node.world.now(), "disk-full")
    node.api.lists_as_of = lists_as_of
    node.api.set_watch_pace(delay_seconds=watch_delay_seconds)
    node.world.fault_log.begin(node.world.now(), "stale-lists")
    node.world.fault_log.begin(node.world.now(), "watch-stale")


def shows_debugger(node: SimNode) -> bool:
    return any(each.state.running is not None for each in node.seen("web").status.ephemeral_container_statuses or ())


def recover(node: SimNode) -> None:
    node.world.journal.disk_full, node.api.lists_as_of = False, None
    node.api.set_watch_pace()


async def start_job_missing_from_old_lists(node: SimNode, job: Pod) -> PodUID:
    """Start a job that is missing from the lists that the next agent receives. All notes about it are lost."""
    await asyncio.sleep(5)
    lose_all_notes_and_show_old_lists(node, node.api.version, watch_delay_seconds=20)
    uid = node.put(job)
    await node.until(lambda: node.is_ready("job"), within=30)
    return uid


async def expect_one_failed_run(node: SimNode, uid: PodUID) -> None:
    """The job becomes Failed with the exit code of its only run."""
    await node.until(lambda: node.phase("job") == "Failed", within=90)
    await asyncio.sleep(60)
    assert [run.exit_code for run in node.runs_of(uid)] == [3]


@pytest.mark.parametrize("policy", ["Never", "Always"])
def test_a_running_pod_that_an_old_list_lacks_is_not_stopped(policy: str) -> None:
    """The pod was killed as an orphan; when the watch reported it, a job that runs once ran again (I7)."""

    async def scenario(node: SimNode) -> None:
        uid = await start_job_missing_from_old_lists(node, pod("job", policy=policy))
        node.world.crash()
        await asyncio.sleep(15)
        recover(node)
        await asyncio.sleep(90)
        assert node.is_ready("job")
        assert [run.ended for run in node.runs_of(uid)] == [None]

    run_scenario(scenario)


def test_a_job_that_ended_during_downtime_does_not_run_again_after_a_stale_list() -> None:
    """Its dead container was removed as orphaned, and it was the only proof that the job had run."""

    async def scenario(node: SimNode) -> None:
        uid = await start_job_missing_from_old_lists(
            node, pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=30, exit_code=3)})
        )
        node.world.crash(downtime_seconds=30)
        await asyncio.sleep(50)
        recover(node)
        await expect_one_failed_run(node, uid)

    run_scenario(scenario)


@pytest.mark.parametrize("seconds", [1.5, 10])
def test_a_job_that_ends_while_an_old_list_lacks_it_is_not_run_again(seconds: float) -> None:
    """Seed 774: the agent removed the container at its exit. A crash loop lost its backoff (I16)."""

    async def scenario(node: SimNode) -> None:
        uid = await start_job_missing_from_old_lists(node, pod("job", policy="Never"))
        node.world.crash(downtime_seconds=1)
        await asyncio.sleep(seconds)
        node.runtime.end_container(uid, "app", 3)
        await asyncio.sleep(15)
        recover(node)
        await expect_one_failed_run(node, uid)

    run_scenario(scenario)


def test_a_pod_that_the_api_no_longer_has_is_stopped_as_soon_as_the_api_answers() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        node.world.crash(downtime_seconds=5)
        node.delete("web", grace=0)
        await asyncio.sleep(5)
        node.api.faults.fail("get", times=3)
        node.world.fault_log.begin(node.world.now(), "api-errors")
        await node.until(lambda: not node.runs(uid), within=20)
        await node.until(lambda: not node.sandboxes(uid), within=20)

    run_scenario(scenario)


def test_a_pod_is_terminated_after_a_fresh_list_if_its_removal_was_not_stored() -> None:
    """The invariant was too strict: the disk had not stored the removal (I12)."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        await asyncio.sleep(30)
        node.world.journal.sync_seconds, node.world.crash_options = 20.0, CrashOptions(keep_unsynced=False)
        node.world.fault_log.begin(node.world.now(), "disk-full")
        node.api.lists_as_of = node.api.version
        node.world.fault_log.begin(node.world.now(), "stale-lists")
        node.delete("web", grace=0)
        await node.until(lambda: not node.runs(uid), within=10)
        node.world.crash()
        await asyncio.sleep(20)
        node.world.journal.sync_seconds, node.api.lists_as_of = 0.0, None
        await asyncio.sleep(120)
        assert not node.runs(uid)

    run_scenario(scenario)


def test_a_pod_that_ends_while_an_old_list_lacks_its_debugger_is_published_as_terminal() -> None:
    """Its last status had no debugger and was held back forever, because a finished pod has no further syncs."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("web", policy="Never", behaviours={"app": Behaviour(after_seconds=30, exit_code=3)}))
        await node.until(lambda: node.is_ready("web"), within=5)
        lose_all_notes_and_show_old_lists(node, node.api.version, watch_delay_seconds=20)
        AddEphemeralContainer("debuggers", "web", EphemeralContainer(name="debugger", image="debug:v1")).run(node.world)
        await node.until(lambda: shows_debugger(node), within=30)
        node.world.crash()
        node.api.set_watch_pace(stalled=True)
        await asyncio.sleep(40)
        recover(node)
        await node.until(lambda: node.phase("web") == "Failed", within=60)
        node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=60)

    run_scenario(scenario)


def test_a_debugger_that_an_old_list_lacks_stays_published() -> None:
    """Seed 450: the note of the pod was older than its debugger, too, and the status made from it was sent (I18)."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        lose_all_notes_and_show_old_lists(node, node.api.version, watch_delay_seconds=20)
        AddEphemeralContainer("debuggers", "web", EphemeralContainer(name="debugger", image="debug:v1")).run(node.world)
        await node.until(lambda: shows_debugger(node), within=30)
        node.world.crash()
        await asyncio.sleep(15)
        assert shows_debugger(node)
        recover(node)
        await asyncio.sleep(60)
        assert shows_debugger(node)

    run_scenario(scenario)
