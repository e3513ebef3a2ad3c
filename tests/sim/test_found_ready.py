"""Regressions from the simulation: readiness."""

import asyncio

import pytest

from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.faults_agent import ClockJump, DiskFault
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, published_changes, run_scenario

SLOW_PROBE = Behaviour(exec=(ExecStep(takes_seconds=0.1),))
"""A container whose probes are slow enough for a restart to see it unready."""


@pytest.mark.parametrize("jump", ["ahead when it started, then put right", "put back before the restart"])
def test_a_clock_jump_and_a_restart_make_no_pod_unready(jump: str) -> None:
    """By the wall clock the container had started after the agent, so it counted as new and unready."""

    async def scenario(node: SimNode) -> None:
        if jump.startswith("ahead"):
            ClockJump(3600.0, 60.0).run(node.world)
        node.put(pod("web", container(readiness=probe(period=20)), behaviours={"app": SLOW_PROBE}))
        await asyncio.sleep(61)
        assert node.is_ready("web")
        if jump.startswith("put back"):
            node.world.clock.jump(-3600)
        changes = node.changes()
        await node.restart_agent()
        await asyncio.sleep(60)
        assert node.is_ready("web")
        assert published_changes(changes) == []

    run_scenario(scenario)


def test_a_container_that_starts_in_the_second_of_a_restart_stays_ready() -> None:
    """Times have whole seconds, so a container of the same second counted as started by the new agent."""

    async def scenario(node: SimNode) -> None:
        await asyncio.sleep(10.1)
        node.put(pod("web", container(readiness=probe(period=20)), behaviours={"app": SLOW_PROBE}))
        await node.until(lambda: node.is_ready("web"), within=0.3)
        changes = node.changes()
        await node.restart_agent(downtime_seconds=0.1)
        await asyncio.sleep(60)
        assert published_changes(changes) == []

    run_scenario(scenario)


def test_a_pod_stays_ready_if_the_disk_stored_only_its_start() -> None:
    """The API was newer than the journal, but within the same second: the journal won, and the pod was unready."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=False)
        await asyncio.sleep(20.1)
        node.put(pod("web", container(readiness=probe(period=20)), behaviours={"app": SLOW_PROBE}))
        await asyncio.sleep(0.05)
        assert not node.status("web").ready
        DiskFault(full=True, sync_seconds=0.0, seconds=2).run(node.world)
        await asyncio.sleep(1)
        assert node.is_ready("web")
        changes = node.changes()
        await node.restart_agent()
        await asyncio.sleep(60)
        assert published_changes(changes) == []

    run_scenario(scenario)


def test_a_ready_container_beside_an_unready_one_stays_ready_if_the_disk_did_not_store_it() -> None:
    """Seed 34: neither phase nor conditions had changed, so the checkpoint did not seem older than the API."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=False)
        never = Behaviour(exec=(ExecStep(exit_code=1),))
        probes = [container(each, readiness=probe(period=20)) for each in ("app", "slow")]
        node.put(pod("web", *probes, behaviours={"app": SLOW_PROBE, "slow": never}))
        await asyncio.sleep(0.05)
        assert not node.status("web").ready
        DiskFault(full=True, sync_seconds=0.0, seconds=30).run(node.world)
        ClockJump(-3600.0, 60.0).run(node.world)
        await asyncio.sleep(25)
        assert node.status("web").ready
        changes = node.changes()
        await node.restart_agent()
        await asyncio.sleep(60)
        assert [shown for shown in changes if not _is_ready(shown)] == []

    run_scenario(scenario)


def _is_ready(change: PodChanged) -> bool:
    """Whether a change shows the container `app` as ready."""
    statuses = () if change.new is None else change.new.status.container_statuses or ()
    return any(each.ready for each in statuses if each.name == "app")


def test_a_container_whose_start_seemed_to_fail_becomes_ready_by_its_probe() -> None:
    async def scenario(node: SimNode) -> None:
        run = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=30)))
        node.runtime.faults.lose_answer(Operation.START_CONTAINER)
        uid = node.put(pod("web", container(readiness=probe(period=5)), behaviours={"app": run}))
        await asyncio.sleep(20)
        assert not node.is_ready("web")
        await asyncio.sleep(20)
        assert node.is_ready("web")
        assert len(node.runs_of(uid)) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("inspection_hangs", [False, True], ids=["inspected at once", "inspected late"])
@pytest.mark.parametrize("noted_after", [1.0, 5.0, 25.0], ids=["not begun", "not started", "not ready"])
def test_an_old_status_of_a_full_disk_is_not_published_after_a_restart(
    noted_after: float, inspection_hangs: bool
) -> None:
    """The API was newer than the journal: a ready container was published as not started, or even as Pending."""
    started = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=15)))
    ready = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=35)))

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=False)
        node.runtime.delays[Operation.RUN_SANDBOX] = 2
        side = container("side", startup=probe(period=5, failures=20), sidecar=True)
        uid = node.put(
            pod("web", container(readiness=probe(period=20)), init=(side,), behaviours={"side": started, "app": ready})
        )
        await asyncio.sleep(noted_after)
        DiskFault(full=True, sync_seconds=0.0, seconds=300).run(node.world)
        await node.until(lambda: node.is_ready("web"), within=90)
        if inspection_hangs:
            node.runtime.faults.hang(Operation.POD_RECORD, seconds=40)
            node.world.fault_log.begin(node.world.now(), "hung-calls", uid)
        changes = node.changes()
        await node.restart_agent()
        await asyncio.sleep(60)
        assert published_changes(changes) == []
        assert node.status("web", "side").started

    run_scenario(scenario)


def test_a_ready_container_stays_ready_after_a_restart_while_another_one_is_in_crash_loop_back_off() -> None:
    """Seed 289: the note of the pod was dropped as older than the API, although both were the same.

    The list was too old to use, so the pod came from a note without a status, and the first status was sent before the
    container had been probed.
    """

    async def scenario(node: SimNode) -> None:
        lists_as_of = node.api.version
        crashing = Behaviour(after_seconds=5, exit_code=1)
        node.put(
            pod(
                "web",
                container(readiness=probe(period=60)),
                container("side"),
                behaviours={"app": SLOW_PROBE, "side": crashing},
            )
        )
        await asyncio.sleep(100)
        await node.until(lambda: node.status("web", "side").state.waiting is not None, within=60)
        assert node.status("web").ready
        changes = node.changes()
        node.api.lists_as_of = lists_as_of
        node.world.fault_log.begin(node.world.now(), "stale-lists")
        node.runtime.go_down()
        node.world.fault_log.begin(node.world.now(), "runtime-down")
        await node.restart_agent()
        await asyncio.sleep(15)
        node.runtime.come_up()
        await asyncio.sleep(15)
        node.api.lists_as_of = None
        await asyncio.sleep(90)
        assert all(("app", True, True) in after.containers for _, _, after in published_changes(changes))

    run_scenario(scenario)
