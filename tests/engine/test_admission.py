"""Admission: the sums agree with a check of all pods. On a node: rejections and preemption."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.engine.admission import Admission
from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import (
    ContainerPort,
    Node,
    NodeStatus,
    Pod,
    PodSecurityContext,
    PodStatus,
    Sysctl,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, HTTP_SOURCE, Op, PodUID
from podkeeper.rules.admission.admit import Enforcement, Preempt, Rejection
from podkeeper.testing.build import container
from tests.doubles import stand_in
from tests.engine.loop_harness import LoopHarness, pod, run_scenario, uids
from tests.rules.admission.decisions import decide

NODE = Node(metadata=ObjectMeta(name="node"), status=NodeStatus(allocatable={"cpu": "2", "memory": "4Gi", "pods": "5"}))


@dataclass
class Workers:
    terminated: set[PodUID] = field(default_factory=set)

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        return uid in self.terminated

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.terminated

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return False


@dataclass
class Statuses:
    phases: dict[PodUID, str] = field(default_factory=dict)

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return PodStatus(phase=self.phases[uid]) if uid in self.phases else None


def cpu_pod(uid: str, cpu: str = "0", *, port: int = 0, address: str = "", source: str = API_SOURCE) -> Pod:
    ports = (ContainerPort(container_port=1, host_port=port, host_ip=address or None),) if port else None
    return pod(uid, container(requests={"cpu": cpu}, ports=ports), source=source)


def admission(*pods: Pod) -> tuple[Admission, Workers, Statuses]:
    workers, statuses = Workers(), Statuses()
    made = Admission(node=lambda: NODE, workers=workers, statuses=stand_in(StatusManager, statuses))
    for each in pods:
        made.add(each)
    return made, workers, statuses


def reason(verdict: Rejection | Preempt | None) -> str:
    return verdict.reason if isinstance(verdict, Rejection) else str(verdict)


def test_a_terminated_pod_makes_room_without_a_notification() -> None:
    made, workers, _ = admission(cpu_pod("a", "2"))
    assert reason(made.admit(cpu_pod("b", "1"))) == "OutOfcpu"
    workers.terminated.add(PodUID("a"))
    assert made.admit(cpu_pod("b", "1")) is None


def test_a_failed_pod_makes_room() -> None:
    made, _, statuses = admission(cpu_pod("a", "2"))
    statuses.phases[PodUID("a")] = "Failed"
    assert made.admit(cpu_pod("b", "1")) is None


def test_a_pod_does_not_conflict_with_itself_and_admit_changes_nothing() -> None:
    made, _, _ = admission(cpu_pod("a", "2", port=80))
    assert made.admit(cpu_pod("a", "2", port=80)) is None
    assert reason(made.admit(cpu_pod("b", port=80))) == "NodePorts"
    assert len(made) == 1


def test_an_update_replaces_only_a_counted_pod() -> None:
    made, _, _ = admission(cpu_pod("a", "2"))
    made.update(cpu_pod("a", "500m"))
    made.update(cpu_pod("rejected", "2"))
    assert made.admit(cpu_pod("b", "1500m")) is None


def test_a_forgotten_pod_releases_its_host_ports() -> None:
    made, _, _ = admission(cpu_pod("a", port=80, address="10.0.0.1"), cpu_pod("b", port=80, address="10.0.0.2"))
    made.forget(PodUID("a"))
    assert made.admit(cpu_pod("c", port=80, address="10.0.0.1")) is None
    assert reason(made.admit(cpu_pod("c", port=80))) == "NodePorts"
    made.forget(PodUID("b"))
    made.forget(PodUID("b"))
    assert made.admit(cpu_pod("c", port=80)) is None


def test_a_rejection_is_reconsidered_only_if_a_pod_has_finished() -> None:
    made, workers, _ = admission(cpu_pod("a", "1"), cpu_pod("b", "1"))
    assert reason(made.admit(cpu_pod("c", "1"))) == "OutOfcpu"
    assert len(made) == 2
    workers.terminated.add(PodUID("a"))
    assert reason(made.admit(cpu_pod("c", "1500m"))) == "OutOfcpu"
    assert len(made) == 1  # the finished pod is no longer counted, but that was not enough


def test_a_pod_that_fits_does_not_remove_finished_pods() -> None:
    made, workers, _ = admission(cpu_pod("a", "1"))
    workers.terminated.add(PodUID("a"))
    assert made.admit(cpu_pod("b", "1")) is None
    assert len(made) == 1


def test_a_pod_stays_counted_after_another_verdict_on_it() -> None:
    made, workers, statuses = admission(cpu_pod("a", "1"), cpu_pod("b", "1"))
    statuses.phases[PodUID("a")] = "Failed"
    workers.terminated.add(PodUID("a"))
    assert reason(made.admit(cpu_pod("a", "3"))) == "OutOfcpu"
    assert len(made) == 2
    statuses.phases.clear()
    workers.terminated.clear()
    assert reason(made.admit(cpu_pod("c", "1"))) == "OutOfcpu"
    made.forget(PodUID("a"))
    assert made.admit(cpu_pod("c", "1")) is None
    assert reason(made.admit(cpu_pod("c", "1001m"))) == "OutOfcpu"


def test_a_pod_added_twice_counts_once_with_its_new_version() -> None:
    made, _, _ = admission(cpu_pod("a", "2"), cpu_pod("a", "500m"))
    assert len(made) == 1
    assert made.admit(cpu_pod("b", "1500m")) is None
    assert reason(made.admit(cpu_pod("b", "1501m"))) == "OutOfcpu"


def test_a_rejected_pod_is_not_counted_when_it_changes() -> None:
    made, _, _ = admission()
    made.update(cpu_pod("rejected", "2"))
    assert len(made) == 0


def test_a_critical_pod_does_not_preempt_itself() -> None:
    critical, low = cpu_pod("critical", "1", source=FILE_SOURCE), cpu_pod("low", "1")
    made, _, _ = admission(low, critical)
    assert made.admit(cpu_pod("critical", "2", source=FILE_SOURCE)) == Preempt((low,), "cpu")


def test_a_pod_that_needs_unenforceable_settings_is_rejected() -> None:
    unsafe = cpu_pod("a")
    sysctls = (Sysctl(name="kernel.msgmax", value="1"),)
    unsafe = replace(unsafe, spec=replace(unsafe.spec, security_context=PodSecurityContext(sysctls=sysctls)))
    for enforcement, expected in (
        (None, "None"),
        (Enforcement(), "SysctlForbidden"),
        (Enforcement(unsafe_sysctls=("kernel.msg*",)), "None"),
    ):
        made = Admission(
            node=lambda: NODE, workers=Workers(), statuses=stand_in(StatusManager, Statuses()), enforcement=enforcement
        )
        assert reason(made.admit(unsafe)) == expected


STEPS = st.tuples(
    st.sampled_from(["come", "come", "come", "end", "fail", "leave", "change"]),
    st.sampled_from("abcdefgh"),
    st.sampled_from(["0", "250m", "500m", "1", "1500m"]),
    st.sampled_from([0, 0, 80, 81]),
    st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([API_SOURCE, API_SOURCE, API_SOURCE, FILE_SOURCE]),
)


@given(st.lists(STEPS, max_size=40))
def test_the_verdict_is_the_same_as_checking_all_active_pods(steps: list[tuple[str, str, str, int, str, str]]) -> None:
    made, workers, statuses = admission()
    expected: dict[str, Pod] = {}
    for step, uid, cpu, port, address, source in steps:
        each = cpu_pod(uid, cpu, port=port, address=address, source=source)
        match step:
            case "come" if uid not in workers.terminated and PodUID(uid) not in statuses.phases:
                verdict = made.admit(each)
                others = [other for other_uid, other in expected.items() if other_uid != uid]
                assert verdict == decide(each, NODE, others)
                if verdict is None:
                    made.add(each)
                    expected[uid] = each
            case "change" if uid in expected:
                made.update(each)
                expected[uid] = each
            case "end" if uid in expected:
                workers.terminated.add(PodUID(uid))
                del expected[uid]
            case "fail" if uid in expected:
                statuses.phases[PodUID(uid)] = "Failed"
                del expected[uid]
            case "leave" if uid in expected:
                made.forget(PodUID(uid))
                del expected[uid]


# On a running node.


def test_a_pod_that_does_not_fit_fails_with_the_reason_and_an_event() -> None:
    async def scenario(node: LoopHarness) -> tuple[PodStatus, list[str], set[str]]:
        node.send_update(
            Op.ADD,
            pod("first", container(requests={"cpu": "3"})),
            pod("second", container(requests={"cpu": "2"})),
            pod("third", container(requests={"cpu": "1"})),
        )
        await asyncio.sleep(1)
        return node.status.statuses[PodUID("second")], [event.reason for event in node.events], node.runtime.running

    status, events, running = run_scenario(scenario)[0]
    assert (status.phase, status.reason) == ("Failed", "OutOfcpu")
    assert events == ["OutOfcpu"]
    assert running == {"first", "third"}


def test_a_pod_fits_as_soon_as_another_has_terminated() -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        node.send_update(Op.ADD, pod("old", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(Op.DELETE, pod("old", container(requests={"cpu": "4"}), deleted=True))
        await asyncio.sleep(0.01)
        node.send_update(Op.ADD, pod("new", container(requests={"cpu": "4"})))
        await asyncio.sleep(0.01)
        return node.runtime.running

    assert run_scenario(scenario)[0] == {"new"}


def test_a_removed_pod_frees_its_resources_even_while_it_is_being_stopped() -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        node.syncer.stop_seconds["old"] = 20
        node.send_update(Op.ADD, pod("old", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("old", container(requests={"cpu": "4"})))
        node.send_update(Op.ADD, pod("new", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        return node.runtime.running

    assert run_scenario(scenario)[0] == {"old", "new"}


SOURCES = {
    "housekeeping runs": (API_SOURCE, FILE_SOURCE),
    "a source is not ready": (API_SOURCE, FILE_SOURCE, HTTP_SOURCE),
}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES.keys())
def test_a_critical_pod_starts_after_its_victim_was_killed_and_other_pods_do_not_wait(sources: tuple[str, ...]) -> None:
    """Housekeeping would also start the pod, every 2 s. It only runs if all sources are ready."""

    async def scenario(node: LoopHarness) -> tuple[object, ...]:
        node.syncer.stop_seconds["victim"] = 6.3
        node.send_update(Op.ADD, pod("victim", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(
            Op.ADD, pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE), source=FILE_SOURCE
        )
        node.send_update(
            Op.UPDATE, pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE), source=FILE_SOURCE
        )
        node.send_update(Op.ADD, pod("bystander"))
        await asyncio.sleep(4)  # housekeeping runs
        held = frozenset(node.preemption.held())
        await asyncio.sleep(4)
        starts = [node.syncer.did("sync", uid)[:1] for uid in ("critical", "bystander")]
        return held, starts, frozenset(node.preemption.held()), node.runtime.running

    held, starts, free, running = run_scenario(scenario, sources=sources)[0]
    assert (held, free) == (uids("critical"), frozenset())
    assert starts == [[7.3], [1.0]]
    assert running == {"critical", "bystander"}


def test_resources_freed_for_a_critical_pod_are_not_given_to_another_pod() -> None:
    async def scenario(node: LoopHarness) -> tuple[str | None, set[str]]:
        node.syncer.stop_seconds["victim"] = 7
        node.send_update(Op.ADD, pod("victim", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(
            Op.ADD, pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE), source=FILE_SOURCE
        )
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("victim", container(requests={"cpu": "4"})))
        node.send_update(Op.ADD, pod("greedy", container(requests={"cpu": "3"})))
        await asyncio.sleep(10)
        return node.status.statuses[PodUID("greedy")].reason, node.runtime.running

    assert run_scenario(scenario)[0] == ("OutOfcpu", {"critical"})


def test_a_critical_pod_removed_while_held_never_starts() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], set[str]]:
        critical = pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE)
        node.syncer.stop_seconds["victim"] = 7
        node.send_update(Op.ADD, pod("victim", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(Op.ADD, critical, source=FILE_SOURCE)
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, critical, source=FILE_SOURCE)
        await asyncio.sleep(20)
        return node.syncer.did("sync", "critical"), node.runtime.running

    assert run_scenario(scenario)[0] == ([], set())


def test_a_critical_pod_starts_even_if_its_victim_does_not_stop_in_time() -> None:
    async def scenario(node: LoopHarness) -> tuple[bool, list[str]]:
        node.syncer.stop_seconds["victim"] = 1e6
        node.send_update(Op.ADD, pod("victim", container(requests={"cpu": "4"})))
        await asyncio.sleep(1)
        node.send_update(
            Op.ADD, pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE), source=FILE_SOURCE
        )
        await asyncio.sleep(600)
        return "critical" in node.runtime.running, [event.reason for event in node.events]

    assert run_scenario(scenario)[0] == (True, ["Preempting", "ExceededGracePeriod"])
