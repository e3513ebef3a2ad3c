"""Regressions from the simulation: cgroups that cannot be created, or are created slowly."""

import asyncio

import pytest

from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.records import CallStarted
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import SimNode, pod, run_scenario


def test_a_new_agent_restarts_a_container_as_soon_as_cgroups_can_be_created() -> None:
    """Seed 300004: I8 was reported, although the new agent could not create the pod's cgroup yet."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=700, exit_code=1)}))
        await node.until(lambda: node.is_ready("web"), within=5)
        await asyncio.sleep(650)
        fault = node.world.fault_log.begin(node.world.now(), "cgroup-trouble")
        node.world.cgroups.faults.fail("ensure", times=1000)
        await node.restart_agent()
        await node.until(lambda: not node.runs(uid), within=100)
        await asyncio.sleep(30)
        assert not node.runs(uid)
        node.world.cgroups.faults.clear()
        node.world.fault_log.end(node.world.now(), fault)
        await node.until(lambda: node.runs(uid), within=60)

    run_scenario(scenario)


def test_cgroup_faults_do_not_delay_a_restart_in_a_prepared_pod() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=20, exit_code=1)}))
        await node.until(lambda: node.is_ready("web"), within=5)
        node.world.fault_log.begin(node.world.now(), "cgroup-trouble")
        node.world.cgroups.faults.fail("ensure", times=1000)
        await node.until(lambda: len(node.runs_of(uid)) == 2 and node.runs(uid), within=30)

    run_scenario(scenario)


def test_the_cleanup_of_a_pod_past_its_deadline_has_its_own_backoff() -> None:
    """Seed 258: with each retry of any other pod, and every second, its failing clean-up was tried again (I22)."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("late", deadline=5))
        await node.until(lambda: node.is_ready("late"), within=5)
        node.world.fault_log.begin(node.world.now(), "cgroup-trouble")
        node.world.cgroups.faults.fail("ensure", times=None)
        node.world.cgroups.faults.fail("remove", times=None)
        unmounts: list[float] = []
        node.world.bus.subscribe(
            CallStarted,
            lambda call: unmounts.append(call.at) if (call.operation, call.uid) == ("unmount", uid) else None,
        )
        node.put(*(pod(f"other{number}") for number in range(12)))
        await asyncio.sleep(60)
        assert node.phase("late") == "Failed"
        assert 1 < len(unmounts) < 15

    run_scenario(scenario)


def test_a_removed_pod_is_cleaned_up_although_the_api_has_never_answered() -> None:
    """Seed 469: the clean-up had failed once, and its retry was dropped: no source named the pod any more.

    Housekeeping would have repeated it, but it waits until all sources are ready.
    """

    async def scenario(node: SimNode) -> None:
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        await node.restart_agent()
        uid = node.write("/web.yaml", pod("web"))
        await node.until(lambda: node.runs(uid), within=5)
        node.world.cgroups.faults.fail("remove", times=1)
        node.world.fault_log.begin(node.world.now(), "cgroup-trouble")
        node.world.files.erase("/web.yaml")
        await node.until(lambda: node.agent.engine.workers.should_pod_be_finished(uid), within=60)
        assert uid not in await node.world.cgroups.list_pods()

    run_scenario(scenario)


@pytest.mark.parametrize("seed", [38, 228, 332])  # the end of the first call is detected late
def test_a_cgroup_that_was_just_created_is_not_created_again(seed: int) -> None:
    """Seed 88: the second call was slow, and the restart of a container waited for it (I8)."""
    world = World(seed)
    watch(world)
    ensured: list[CallStarted] = []
    world.bus.subscribe(CallStarted, lambda call: ensured.append(call) if call.operation == "ensure" else None)

    async def scenario() -> None:
        world.loop.delay_wakeups(0.1, 0.02)
        world.fault_log.begin(0.0, "late-wakeups")
        SimNode(world).put(pod("web"))
        await asyncio.sleep(3)

    result = world.run(scenario)
    assert result.violation is None, result.violation
    assert len(ensured) == 1
