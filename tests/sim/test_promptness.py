"""I8, I14: delays without an excuse are reported, and nothing else."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container
from podkeeper.testing.sim.invariants.promptness import Promptness
from tests.sim.checked_runs import Scenario, run_with_checks, violated_by
from tests.sim.sim_node import SimNode, pod


def hang(node: SimNode, uid: PodUID, seconds: float) -> None:
    """Let the calls of one pod hang from now on."""
    for operation in ("run_sandbox", "create_container", "start_container", "stop_container", "pod_record"):
        node.runtime.faults.hang(operation, uid, times=None)
    node.world.begin_fault("hung-calls", seconds, node.runtime.faults.clear, uid)


def slow(node: SimNode, operation: str, seconds: float = 12.0) -> None:
    """Slow down an operation without logging a fault."""
    node.runtime.delays[operation] = seconds


async def a_pod_starts_late(node: SimNode) -> None:
    slow(node, "run_sandbox")
    node.put(pod("late"))
    await asyncio.sleep(20)


async def a_pod_starts_late_beside_one_that_hangs(node: SimNode) -> None:
    hang(node, node.uid("web"), 100)
    await a_pod_starts_late(node)


async def a_pod_leaves_late(node: SimNode) -> None:
    slow(node, "stop_sandbox", 60)
    node.delete("web")
    await asyncio.sleep(70)


async def a_container_starts_again_late(node: SimNode) -> None:
    slow(node, "create_container")
    node.runtime.end_container(node.uid("web"), "app", 1)
    await asyncio.sleep(20)


async def a_static_pod_waits_for_the_api(node: SimNode) -> None:
    node.world.begin_fault("api-down", 60, lambda: None)
    slow(node, "run_sandbox")
    node.write("/late.yaml", pod("late"))
    await asyncio.sleep(20)


async def a_static_pod_waits_for_the_api_to_run_again(node: SimNode) -> None:
    node.world.begin_fault("api-down", 60, lambda: None)
    slow(node, "create_container")
    (static,) = node.world.files.pods()
    node.runtime.end_container(PodUID(static.metadata.uid or ""), "app", 1)
    await asyncio.sleep(20)


async def a_successor_starts_late(node: SimNode) -> None:
    slow(node, "create_container")
    node.write("/static.yaml", pod("static", container(image="app:v2")))
    await asyncio.sleep(30)


LATE = {
    "a pod starts late":                            (a_pod_starts_late, "I8"),
    "late because of another pod's hung calls":     (a_pod_starts_late_beside_one_that_hangs, "I8"),
    "a deleted pod leaves late":                    (a_pod_leaves_late, "I8"),
    "a container starts again late":                (a_container_starts_again_late, "I8"),
    "a successor starts late":                      (a_successor_starts_late, "I8"),
    "a static pod waits for the API":               (a_static_pod_waits_for_the_api, "I14"),
    "a static pod that crashed waits for the API":  (a_static_pod_waits_for_the_api_to_run_again, "I14"),
}  # fmt: skip


async def some_pods(node: SimNode) -> None:
    node.put(pod("web"), pod("beside"))
    node.write("/static.yaml", pod("static", behaviours={"app": Behaviour(term_seconds=4)}))
    await asyncio.sleep(30)


@pytest.mark.parametrize("late, invariant", LATE.values(), ids=LATE.keys())
def test_a_delay_without_an_excuse_is_reported(late: Scenario, invariant: str) -> None:
    async def scenario(node: SimNode) -> None:
        await some_pods(node)
        await late(node)

    assert violated_by(run_with_checks(scenario, Promptness)) == invariant


def test_a_pod_with_a_fault_of_its_own_is_excused() -> None:
    async def scenario(node: SimNode) -> None:
        await some_pods(node)
        hang(node, node.uid("web"), 200)
        node.delete("web")
        await asyncio.sleep(100)
        node.world.crash()
        node.put(pod("unnoticed"))
        await asyncio.sleep(100)

    assert run_with_checks(scenario, Promptness).violation is None


def test_hung_calls_of_one_pod_delay_no_other() -> None:
    async def scenario(node: SimNode) -> None:
        await some_pods(node)
        hang(node, node.uid("web"), 400)
        node.runtime.end_container(node.uid("web"), "app", 1)
        node.put(pod("new", init=(container("first"),), behaviours={"first": Behaviour(after_seconds=1)}))
        await asyncio.sleep(10)
        node.runtime.end_container(node.uid("beside"), "app", 1)
        node.delete("new")
        await asyncio.sleep(60)

    result = run_with_checks(scenario, Promptness)
    assert result.violation is None
    assert result.checks["I8"] >= 3


def test_static_pods_start_change_and_recover_without_the_api() -> None:
    async def scenario(node: SimNode) -> None:
        await some_pods(node)
        node.api.go_down()
        node.world.begin_fault("api-down", 300, node.api.come_up)
        await asyncio.sleep(20)
        new = node.write("/new.yaml", pod("new"))
        await asyncio.sleep(10)
        node.runtime.end_container(new, "app", 1)
        node.write("/static.yaml", pod("static", container(image="app:v2")))
        await asyncio.sleep(100)

    result = run_with_checks(scenario, Promptness)
    assert result.violation is None
    assert result.checks["I14"] >= 3


def test_a_lost_event_delays_a_restart_by_one_relist_at_most() -> None:
    async def scenario(node: SimNode) -> None:
        await some_pods(node)
        node.runtime.filter_events(lambda event: ())
        node.world.begin_fault("lost-events", 5, lambda: node.runtime.filter_events(None))
        node.runtime.end_container(node.uid("web"), "app", 1)
        await asyncio.sleep(100)
        assert len(node.runs_of(node.uid("web"))) == 2

    result = run_with_checks(scenario, Promptness)
    assert result.violation is None
    assert result.checks["I8"] >= 1
