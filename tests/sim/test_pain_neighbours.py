"""Pains 2, 10 and 11: one slow pod, bursts, and housekeeping do not delay other pods."""

import asyncio
from collections.abc import Callable
from statistics import median

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import AT_ONCE, SimNode, pod, run_scenario

OTHERS = [f"web-{index:02}" for index in range(8)]
Plant = Callable[[SimNode, PodUID], Fault]

# 2: "PLEG is not healthy": one slow pod or runtime call takes the node down.

HANGS: dict[str, Plant] = {
    "its inspections hang": lambda node, uid: node.runtime.faults.hang("pod_record", uid, times=None),
    "its stop hangs": lambda node, uid: node.runtime.faults.hang("stop_container", uid, times=None),
    "the stop of its sandbox hangs": lambda node, uid: node.runtime.faults.hang("stop_sandbox", uid, times=None),
    "its probes hang": lambda node, uid: node.runtime.faults.hang("exec_sync", uid, times=None),
    "its volume does not unmount": lambda node, uid: node.world.volumes.faults.hang("unmount", uid, times=None),
}


@pytest.mark.parametrize("plant", HANGS.values(), ids=HANGS.keys())
def test_hanging_calls_of_one_pod_do_not_delay_the_node(plant: Plant) -> None:
    """Pain 2: k/k 45419, 95750, 93886; for ten minutes other pods start and stop as usual."""

    async def scenario(node: SimNode) -> None:
        culprit = node.put(
            pod("culprit", container(readiness=probe()), grace=2, behaviours={"app": Behaviour(term_seconds=None)})
        )
        await node.until(lambda: node.is_ready("culprit"), within=15)
        plant(node, culprit)
        node.world.fault_log.begin(node.world.now(), "of the scenario", culprit)
        node.delete("culprit")
        for _ in range(4):
            node.put(*(pod(name) for name in OTHERS))
            assert await node.until(lambda: node.is_ready(*OTHERS), within=60) <= AT_ONCE + 0.1
            for name in OTHERS:
                node.delete(name)
            assert await node.until(lambda: node.is_gone(*OTHERS), within=60) <= AT_ONCE + 0.1
            await asyncio.sleep(120)
            assert node.agent.health() == ()

    run_scenario(scenario)


NAMED: dict[str, tuple[Plant, str]] = {
    "a start": (lambda node, uid: node.runtime.faults.hang("start_container", uid), "start_container"),
    "a sandbox": (lambda node, uid: node.runtime.faults.hang("run_sandbox", uid), "run_podsandbox"),
    "an inspection": (lambda node, uid: node.runtime.faults.hang("pod_record", uid, times=None), "podsandbox_status"),
}


@pytest.mark.parametrize("plant, operation", NAMED.values(), ids=NAMED.keys())
def test_the_hanging_call_is_reported(plant: Plant, operation: str) -> None:
    """Pain 2: k/k 45419; the agent reports which call of which pod hangs."""

    async def scenario(node: SimNode) -> None:
        culprit = node.put(pod("culprit"))
        plant(node, culprit)
        node.put(*(pod(name) for name in OTHERS))
        await asyncio.sleep(30)
        slow = node.agent.engine.runtime.slow_calls()
        found = {(call.operation, call.subject) for call in slow}
        assert found <= {(operation, "default/culprit"), (operation, culprit)}
        assert slow
        assert slow[0].seconds >= 20
        assert node.agent.health() == ()

    run_scenario(scenario)


def test_a_hanging_list_is_reported_and_pods_still_start_and_stop() -> None:
    """Pain 2: k/k 95750; the list of all pods hangs, other calls do not."""

    async def scenario(node: SimNode) -> None:
        await asyncio.sleep(10)
        node.runtime.faults.hang("list_pods", times=None)
        await asyncio.sleep(300)
        (fault,) = node.agent.health()
        assert "relist" in fault
        node.put(*(pod(name) for name in OTHERS))
        assert await node.until(lambda: node.is_ready(*OTHERS), within=60) <= AT_ONCE + 0.1
        for name in OTHERS:
            node.delete(name)
        assert await node.until(lambda: node.is_gone(*OTHERS), within=60) <= AT_ONCE + 0.1
        node.runtime.faults.clear()
        await node.until(lambda: node.agent.health() == (), within=400)

    run_scenario(scenario)


# 10: bursts start slowly.

BURST = [f"burst-{index:03}" for index in range(100)]
SLOTS = 8
CALLS = 3  # sandbox, create, start


def test_a_burst_is_started_as_a_stream() -> None:
    """Pain 10: k/k 39113, 27385; a hundred pods at once, each runtime call takes a second."""

    def prepare(world: World) -> None:
        world.runtime.delays.update(run_sandbox=1.0, create_container=1.0, start_container=1.0)

    async def scenario(node: SimNode) -> None:
        uids = [node.put(pod(name)) for name in BURST]
        await node.until(lambda: node.is_ready(*BURST), within=120)
        started = sorted(run.started or 0.0 for uid in uids for run in node.runs_of(uid))
        total = len(BURST) * CALLS / SLOTS
        assert started[-1] <= total * 1.1 + AT_ONCE * CALLS
        assert 0.4 <= median(started) / started[-1] <= 0.6
        assert started[0] <= 2 * CALLS

    run_scenario(scenario, prepare=prepare)


def test_ready_statuses_are_sent_first() -> None:
    """Pain 10: k/k 39113; with a slow API, Ready statuses overtake those of many waiting pods."""
    ready, waiting = BURST[:5], BURST[5:]

    async def scenario(node: SimNode) -> None:
        node.put(*(pod(name, container(readiness=probe(period=1, initial_delay_seconds=5))) for name in ready))
        await asyncio.sleep(4)
        node.api.delays.update(get=2.0, patch_status=2.0)
        node.runtime.missing_images.add("absent:v1")
        node.put(*(pod(name, container(image="absent:v1")) for name in waiting))
        await node.until(lambda: node.is_ready(*ready), within=60)
        # The probes succeed after about 6 s. Then the sends in flight end, and their own follow.
        assert node.world.now() <= 6 + 2 * 4 + AT_ONCE
        await node.until(lambda: all(node.seen(name).status.conditions for name in waiting), within=120)

    run_scenario(scenario)


# 11: housekeeping blocks new pods.

STUCK: dict[str, Callable[[SimNode, PodUID], object]] = {
    "directories cannot be listed": lambda node, uid: node.world.volumes.faults.hang("directories", times=None),
    "cgroups cannot be listed": lambda node, uid: node.world.cgroups.faults.hang("list_pods", times=None),
    "a volume does not unmount": lambda node, uid: node.world.volumes.faults.hang("unmount", uid, times=None),
    "a directory cannot be removed": lambda node, uid: node.world.volumes.faults.hang(
        "remove_directory", uid, times=None
    ),
    "a cgroup cannot be removed": lambda node, uid: node.world.cgroups.faults.hang("remove", uid, times=None),
    "the runtime cannot be listed": lambda node, uid: node.runtime.faults.hang("list_pods", times=None),
}


@pytest.mark.parametrize("plant", STUCK.values(), ids=STUCK.keys())
def test_hanging_housekeeping_delays_no_pod(plant: Callable[[SimNode, PodUID], object]) -> None:
    """Pain 11: k/k 89936; leftovers of an orphaned pod cannot be removed, and other pods start at once."""

    async def scenario(node: SimNode) -> None:
        orphan = node.put(pod("orphan"))
        await node.until(lambda: node.is_ready("orphan"), within=3)
        plant(node, orphan)
        node.world.crash(downtime_seconds=2)
        node.runtime.kill_sandbox(orphan)
        node.delete("orphan", grace=0)
        await asyncio.sleep(4)
        for index in range(12):
            uid = node.put(pod(f"web-{index}"))
            assert await node.until(lambda uid=uid: node.runs(uid), within=10) <= AT_ONCE  # type: ignore[misc]  # bound now
            await asyncio.sleep(0.7)

    run_scenario(scenario)
