"""Pains 1, 13, 17 and 18: termination, grace periods, timed-out calls, orphaned volumes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, exec_hook
from podkeeper.testing.sim.agent_process import Side
from podkeeper.testing.sim.records import CallStarted
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import AT_ONCE, SimNode, pod, run_scenario

GRACE = 10
STUBBORN = Behaviour(term_seconds=None)


# 1: pod stuck Terminating forever.


async def _agent_crashes_repeatedly(node: SimNode, uid: PodUID) -> None:
    for away in (0.5, 2.0, 7.0):
        await asyncio.sleep(1)
        node.world.crash(downtime_seconds=away)
        await asyncio.sleep(away)


async def _api_is_down(node: SimNode, uid: PodUID) -> None:
    node.api.go_down()
    await asyncio.sleep(120)
    node.api.come_up()


async def _api_and_agent_are_down(node: SimNode, uid: PodUID) -> None:
    node.api.go_down()
    await asyncio.sleep(3)
    node.world.crash(downtime_seconds=30)
    await asyncio.sleep(60)
    node.api.come_up()


async def _a_volume_is_busy(node: SimNode, uid: PodUID) -> None:
    node.world.volumes.in_use.add(uid)
    await asyncio.sleep(90)
    node.world.volumes.in_use.clear()


async def _an_unmount_hangs(node: SimNode, uid: PodUID) -> None:
    node.world.volumes.faults.hang("unmount", uid)
    await asyncio.sleep(90)
    node.world.volumes.faults.clear()


async def _a_cgroup_cannot_be_removed(node: SimNode, uid: PodUID) -> None:
    node.world.cgroups.faults.fail("remove", uid, times=5)
    await asyncio.sleep(60)


async def _the_stop_hangs(node: SimNode, uid: PodUID) -> None:
    node.runtime.faults.hang("stop_container", uid)
    await asyncio.sleep(90)
    node.runtime.faults.clear()


async def _the_stop_is_refused(node: SimNode, uid: PodUID) -> None:
    node.runtime.faults.fail("stop_container", uid, times=5)
    await asyncio.sleep(60)


async def _the_container_vanishes(node: SimNode, uid: PodUID) -> None:
    (run,) = node.runs_of(uid)
    await node.runtime.remove_container(run.id)


async def _the_sandbox_vanishes(node: SimNode, uid: PodUID) -> None:
    (sandbox,) = node.sandboxes(uid)
    await node.runtime.remove_sandbox(sandbox)


async def _everything_vanishes_while_the_agent_is_down(node: SimNode, uid: PodUID) -> None:
    (sandbox,) = node.sandboxes(uid)
    node.world.crash(downtime_seconds=5)
    await node.runtime.remove_sandbox(sandbox)
    await asyncio.sleep(6)


async def _the_runtime_is_down(node: SimNode, uid: PodUID) -> None:
    node.runtime.go_down()
    await asyncio.sleep(60)
    node.runtime.come_up()


async def _the_machine_restarts(node: SimNode, uid: PodUID) -> None:
    node.world.reboot()
    await asyncio.sleep(31)


STUCK = {
    "the agent crashes repeatedly": _agent_crashes_repeatedly,
    "the API is down": _api_is_down,
    "the API and the agent are down": _api_and_agent_are_down,
    "a volume is busy": _a_volume_is_busy,
    "an unmount hangs": _an_unmount_hangs,
    "a cgroup cannot be removed": _a_cgroup_cannot_be_removed,
    "the stop of a container hangs": _the_stop_hangs,
    "the stop of a container is refused": _the_stop_is_refused,
    "the container is gone from the runtime": _the_container_vanishes,
    "the sandbox is gone from the runtime": _the_sandbox_vanishes,
    "everything is gone when the agent restarts": _everything_vanishes_while_the_agent_is_down,
    "the runtime is down": _the_runtime_is_down,
    "the machine restarts": _the_machine_restarts,
}
VANISHING = (_the_container_vanishes, _the_sandbox_vanishes, _everything_vanishes_while_the_agent_is_down)


@pytest.mark.parametrize("fault", STUCK.values(), ids=STUCK.keys())
def test_no_deleted_pod_stays_terminating_forever(fault: Callable[[SimNode, PodUID], Awaitable[None]]) -> None:
    """Pain 1: k/k 51835, 106734, 116954."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", grace=GRACE, behaviours={"app": STUBBORN}))
        await node.until(lambda: node.is_ready("web"), within=3)
        node.delete("web")
        node.world.fault_log.begin(node.world.now(), "of the scenario", uid)  # excuses its grace period and exits
        await fault(node, uid)
        # The fault is over: the rest of the grace period, and the longest backoff.
        await node.until(lambda: node.is_gone("web"), within=GRACE + 60)
        await asyncio.sleep(40)
        assert not node.runs(uid)
        assert node.world.volumes.mounted_pods() == frozenset()
        assert await node.world.cgroups.list_pods() == frozenset()

    run_scenario(scenario, watched=fault not in VANISHING)


ENDING = (
    *("runtime.stop_container", "runtime.stop_sandbox", "volumes.unmount", "cgroups.remove"),
    *("journal.sync", "api.patch_status", "api.delete"),
)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("call", ENDING)
def test_a_crash_during_termination_leaves_no_pod_terminating(call: str, side: Side) -> None:
    """Pain 1: k/k 51835, 106734; the agent is killed before and after each call of a termination."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", grace=GRACE))
        await node.until(lambda: node.is_ready("web"), within=3)
        deaths = 0

        def dies_here(made: CallStarted, at: Side) -> bool:
            nonlocal deaths
            is_it = deaths == 0 and at is side and f"{made.port}.{made.operation}" == call
            deaths += is_it
            return is_it

        node.world.crash_point = dies_here
        node.delete("web")
        await node.until(lambda: node.is_gone("web") and node.world.is_up, within=GRACE + 30)
        await asyncio.sleep(40)
        assert (deaths, node.runs(uid)) == (1, False)
        assert node.world.volumes.mounted_pods() == frozenset()
        assert await node.world.cgroups.list_pods() == frozenset()

    run_scenario(scenario)


# 13: grace counted twice with preStop; a forced delete waits.

HOOKS = {
    "a hook that ends in time": ExecStep(takes_seconds=4),
    "a hook that never ends": ExecStep(takes_seconds=9999),
    "a hook that fails": ExecStep(exit_code=1),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_hook_and_signals_together_fit_into_the_grace_period(hook: ExecStep) -> None:
    """Pain 13: k/k 115817, 117373; the container ignores the signal."""

    async def scenario(node: SimNode) -> None:
        run = Behaviour(term_seconds=None, exec=(hook,))
        uid = node.put(pod("web", container(pre_stop=exec_hook("drain")), grace=GRACE, behaviours={"app": run}))
        await node.until(lambda: node.is_ready("web"), within=3)
        node.delete("web")
        begun = node.world.now()
        await node.until(lambda: not node.runs(uid), within=2 * GRACE)
        seconds = (node.runs_of(uid)[0].ended or 0) - begun
        # As in the kubelet, a hook that uses the whole grace period leaves two seconds for the signal.
        assert GRACE - 0.1 <= seconds <= GRACE + 2 + AT_ONCE
        await node.until(lambda: node.is_gone("web"), within=1)

    run_scenario(scenario)


SHORTENED = {
    "while the container is stopped": container(),
    "while the hook runs": container(pre_stop=exec_hook("drain")),
}


@pytest.mark.parametrize("shape", SHORTENED.values(), ids=SHORTENED.keys())
def test_a_shortened_grace_period_takes_effect_at_once(shape: object) -> None:
    """Pain 13: k/k 113717, 117373; deleted with ten minutes, then with two seconds."""

    async def scenario(node: SimNode) -> None:
        run = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=9999),))
        assert isinstance(shape, type(container()))
        uid = node.put(pod("web", shape, grace=600, behaviours={"app": run}))
        await node.until(lambda: node.runs(uid), within=3)
        node.delete("web")
        await asyncio.sleep(20)
        assert node.runs(uid)
        node.delete("web", grace=2)
        assert await node.until(lambda: not node.runs(uid), within=60) <= 4 + AT_ONCE
        await node.until(lambda: node.is_gone("web"), within=1)

    run_scenario(scenario)


FORCED = {"a pod that runs": False, "a pod that is ending for ten minutes": True}


@pytest.mark.parametrize("ends", FORCED.values(), ids=FORCED.keys())
def test_a_forced_deletion_removes_the_pod_at_once(ends: bool) -> None:
    """Pain 13: k/k 113717, 120449; its name is free at once, and its containers stop soon after."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", grace=600, behaviours={"app": STUBBORN}))
        await node.until(lambda: node.is_ready("web"), within=3)
        if ends:
            node.delete("web")
            await asyncio.sleep(5)
        node.delete("web", grace=0)
        assert node.is_gone("web")
        successor = node.put(pod("web"))
        assert await node.until(lambda: node.runs(successor), within=10) <= AT_ONCE
        assert await node.until(lambda: not node.runs(uid), within=60) <= 2 + AT_ONCE

    run_scenario(scenario)


# 17: a timed-out create leaves "name is reserved" forever.

MAKING = ("run_sandbox", "create_container", "start_container", "pull_image")


@pytest.mark.parametrize("late_seconds", [0.0, 200.0], ids=["the answer is lost", "the answer is late"])
@pytest.mark.parametrize("operation", MAKING)
def test_the_result_of_a_timed_out_call_is_adopted_or_removed(operation: str, late_seconds: float) -> None:
    """Pain 17: containerd 4604; twice in a row the call takes effect without an answer."""

    async def scenario(node: SimNode) -> None:
        node.runtime.faults.lose_answer(operation, times=2, seconds=late_seconds)
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=60 + 2 * late_seconds)
        await asyncio.sleep(300)
        assert node.is_ready("web")
        assert len(node.sandboxes(uid)) == 1
        assert len([run for run in node.runs_of(uid) if run.running]) == 1
        assert len([run for run in node.runs_of(uid) if run.started is not None]) == 1

    run_scenario(scenario)


# 18: orphaned volumes logged every 2 s, never cleaned.


def _left_behind(node: SimNode, uid: PodUID) -> bool:
    return uid in node.world.volumes.mounted_pods()


def test_volumes_of_a_pod_that_was_removed_while_no_agent_ran_are_cleaned_up() -> None:
    """Pain 18: k/k 60987, 134075."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=3)
        node.world.crash(downtime_seconds=60)
        node.runtime.kill_sandbox(uid)
        node.delete("web", grace=0)
        await asyncio.sleep(60)
        await node.until(lambda: not _left_behind(node, uid), within=10)
        await asyncio.sleep(5)
        assert await node.world.volumes.directories() == frozenset()

    run_scenario(scenario)


def test_a_volume_in_use_is_never_removed_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Pain 18: k/k 60987, 134075; a volume of an orphaned pod is in use for ten minutes."""
    removals: list[str] = []

    def prepare(world: World) -> None:
        world.bus.subscribe(
            CallStarted, lambda made: removals.append(made.uid) if made.operation == "remove_directory" else None
        )

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=3)
        node.world.volumes.in_use.add(uid)
        node.world.crash(downtime_seconds=5)
        node.runtime.kill_sandbox(uid)
        node.delete("web", grace=0)
        caplog.clear()
        await asyncio.sleep(600)
        assert _left_behind(node, uid)
        assert removals == []
        warnings = [each for each in caplog.records if each.levelno >= logging.WARNING and uid in (each.args or ())]
        assert len(warnings) == 1
        node.world.volumes.in_use.clear()
        await node.until(lambda: not _left_behind(node, uid), within=40)
        await node.until(lambda: uid in removals, within=40)

    run_scenario(scenario, prepare=prepare)
