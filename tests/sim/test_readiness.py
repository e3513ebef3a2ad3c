"""I7: changes of readiness without a reason are reported, and true changes are not."""

import asyncio

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.faults_services import EventFault, EventFaultWindow
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probe_states import ProbeTracker
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World
from tests.sim.checked_runs import run_with_checks, violated_by
from tests.sim.sim_node import SimNode, pod


def readiness(world: World) -> Readiness:
    """Check readiness only."""
    return Readiness(world, ProbeTracker(world, TrackedPods(world)))


def publish(node: SimNode, name: str, *, ready: bool, containers: tuple[str, ...] = ()) -> None:
    """Let the agent publish a readiness without a reason, also of some containers."""

    async def patch() -> None:
        condition = {"type": "Ready", "status": str(ready)}
        statuses = [{"name": each, "ready": ready} for each in containers]
        patch = {"status": {"conditions": [condition], "containerStatuses": statuses}}
        await node.api.patch_status(Pod, name, patch, "default")

    node.world.in_agent(patch())


@pytest.mark.parametrize("ready", [True, False])
def test_a_change_of_readiness_without_a_reason_is_reported(ready: bool) -> None:
    steps = (ExecStep(exit_code=0 if not ready else 1),)

    async def scenario(node: SimNode) -> None:
        node.put(pod("web", container(readiness=probe(failures=1)), behaviours={"app": Behaviour(exec=steps)}))
        await asyncio.sleep(60)
        assert node.is_ready("web") is not ready
        publish(node, "web", ready=ready)
        await asyncio.sleep(1)

    assert violated_by(run_with_checks(scenario, readiness)) == "I7"


def test_a_true_change_of_readiness_may_be_published() -> None:
    flapping = Behaviour(exec=tuple(ExecStep(from_seconds=60.0 * n, exit_code=n % 2) for n in range(10)))

    async def scenario(node: SimNode) -> None:
        node.put(
            pod(
                "web",
                container(readiness=probe(period=5)),
                container("slow", startup=probe()),
                behaviours={"app": flapping},
            )
        )
        node.put(pod("crash", behaviours={"app": Behaviour(after_seconds=40)}))
        changes = node.changes()
        for _ in range(5):
            await asyncio.sleep(110)
            await node.restart_agent(downtime_seconds=15)
        assert len([each for each in changes if each.by and ready_bit(each.old) is not ready_bit(each.new)]) > 8

    result = run_with_checks(scenario, readiness)
    assert result.violation is None
    assert result.checks["I7"] > 20


def ready_bit(found: Pod | None) -> bool:
    conditions = () if found is None else found.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


@pytest.mark.parametrize("api_is_away", [False, True])
def test_a_static_pod_stays_ready_when_the_agent_is_restarted(api_is_away: bool) -> None:
    async def scenario(node: SimNode) -> None:
        node.write("/static.yaml", pod("static", container(readiness=probe(period=20))))
        await asyncio.sleep(60)
        assert node.is_ready("static-n1")
        if api_is_away:
            node.api.go_down()
            node.world.begin_fault("api-down", 30, node.api.come_up)
        changes: list[PodChanged] = node.changes()
        await node.restart_agent()
        await asyncio.sleep(120)
        assert node.is_ready("static-n1")
        assert [each for each in changes if not ready_bit(each.new)] == []

    assert run_with_checks(scenario, readiness).violation is None


def test_a_pod_stays_ready_if_the_disk_did_not_store_it() -> None:
    async def scenario(node: SimNode) -> None:
        node.put(
            pod(
                "web",
                container(readiness=probe(period=20)),
                behaviours={"app": Behaviour(exec=(NOT_YET, ExecStep(from_seconds=30)))},
            )
        )
        await asyncio.sleep(20)
        node.world.journal.disk_full = True
        await asyncio.sleep(40)
        assert node.is_ready("web")
        await node.restart_agent()
        changes = node.changes()
        await asyncio.sleep(30)
        assert [each for each in changes if not ready_bit(each.new)] == []

    assert run_with_checks(scenario, readiness).violation is None


NOT_YET = ExecStep(exit_code=1)


def test_a_restarted_container_does_not_inherit_the_started_flag() -> None:
    slow_start = Behaviour(exec=(NOT_YET, ExecStep(from_seconds=30)))
    probes = container(readiness=probe(period=1), startup=probe(period=7, failures=20))

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", probes, behaviours={"app": slow_start}))
        await asyncio.sleep(60)
        assert node.is_ready("web")
        node.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(20)
        assert not node.is_ready("web")
        await asyncio.sleep(30)
        assert node.is_ready("web")

    assert run_with_checks(scenario, readiness).violation is None


READY_LATE = Behaviour(exec=(NOT_YET, ExecStep(from_seconds=25)))


def test_a_pod_may_be_ready_if_a_container_has_just_ended_unseen() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.put(
            pod("web", container(), container("late", readiness=probe(period=10)), behaviours={"late": READY_LATE})
        )
        await asyncio.sleep(26)
        EventFaultWindow(EventFault.LOST, 1.0, 20, seed=0).run(node.world)
        node.runtime.end_container(uid, "app", 1)
        await node.until(lambda: node.is_ready("web"), within=10)
        assert len(node.world.truth.running(uid)) == 1

    assert run_with_checks(scenario, readiness).violation is None


@pytest.mark.parametrize(
    ("fault", "seconds_ago"), [("", 6), ("lost-events", 151)], ids=["undisturbed", "during a fault"]
)
@pytest.mark.parametrize("containers", [(), ("app",)], ids=["the pod", "pod and container"])
def test_a_pod_is_not_ready_if_a_container_ended_long_ago(
    containers: tuple[str, ...], fault: str, seconds_ago: float
) -> None:
    async def scenario(node: SimNode) -> None:
        late = container("late", readiness=probe(period=1))
        uid = node.put(pod("web", container(), late, policy="Never", behaviours={"late": READY_LATE}))
        if fault:
            node.world.fault_log.begin(0.0, fault)
        await asyncio.sleep(24)
        node.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(seconds_ago)
        assert node.status("web", "late").ready
        publish(node, "web", ready=True, containers=containers)
        await asyncio.sleep(1)

    result = run_with_checks(scenario, readiness)
    assert result.violation is not None
    assert "the pod is published as ready" in result.violation.message
