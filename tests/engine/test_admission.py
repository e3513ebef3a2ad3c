"""Admission: sums kept pod by pod tell the same as looking at all pods; and how critical pods make room."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.engine.admission import Admission
from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    Node,
    NodeStatus,
    Pod,
    PodSecurityContext,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Sysctl,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import API_SOURCE, CONFIG_SOURCE_ANNOTATION, FILE_SOURCE, HTTP_SOURCE, Op, PodUID
from podkeeper.rules.admit import Enforcement, Preempt, Rejection, admit
from tests.doubles import stand_in
from tests.engine.loop_house import LoopHouse, play, pod, uids

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


def wanting(uid: str, cpu: str = "0", *, port: int = 0, address: str = "", source: str = API_SOURCE) -> Pod:
    ports = (ContainerPort(container_port=1, host_port=port, host_ip=address or None),) if port else None
    container = Container(name="app", resources=ResourceRequirements(requests={"cpu": cpu}), ports=ports)
    metadata = ObjectMeta(name=uid, namespace="ns", uid=uid, annotations={CONFIG_SOURCE_ANNOTATION: source})
    return Pod(metadata=metadata, spec=PodSpec(containers=(container,)))


def admission(*pods: Pod) -> tuple[Admission, Workers, Statuses]:
    workers, statuses = Workers(), Statuses()
    made = Admission(node=lambda: NODE, workers=workers, status=stand_in(StatusManager, statuses))
    for each in pods:
        made.add(each)
    return made, workers, statuses


def reason(verdict: Rejection | Preempt | None) -> str:
    return verdict.reason if isinstance(verdict, Rejection) else str(verdict)


def test_a_pod_that_has_ended_makes_room_without_anybody_saying_so() -> None:
    made, workers, _ = admission(wanting("a", "2"))
    assert reason(made.admit(wanting("b", "1"))) == "OutOfcpu"
    workers.terminated.add(PodUID("a"))
    assert made.admit(wanting("b", "1")) is None


def test_a_pod_that_failed_here_makes_room() -> None:
    made, _, statuses = admission(wanting("a", "2"))
    statuses.phases[PodUID("a")] = "Failed"
    assert made.admit(wanting("b", "1")) is None


def test_a_pod_is_not_its_own_neighbour_and_judging_it_changes_nothing() -> None:
    made, _, _ = admission(wanting("a", "2", port=80))
    assert made.admit(wanting("a", "2", port=80)) is None
    assert reason(made.admit(wanting("b", port=80))) == "NodePorts"
    assert len(made) == 1


def test_only_a_pod_that_is_counted_is_counted_anew_when_it_changes() -> None:
    made, _, _ = admission(wanting("a", "2"))
    made.update(wanting("a", "500m"))
    made.update(wanting("turned-away", "2"))
    assert made.admit(wanting("b", "1500m")) is None


def test_a_forgotten_pod_gives_its_ports_back() -> None:
    made, _, _ = admission(wanting("a", port=80, address="10.0.0.1"), wanting("b", port=80, address="10.0.0.2"))
    made.forget(PodUID("a"))
    assert made.admit(wanting("c", port=80, address="10.0.0.1")) is None
    assert reason(made.admit(wanting("c", port=80))) == "NodePorts"
    made.forget(PodUID("b"))
    made.forget(PodUID("b"))
    assert made.admit(wanting("c", port=80)) is None


def test_a_verdict_is_given_again_only_if_a_pod_has_ended() -> None:
    made, workers, _ = admission(wanting("a", "1"), wanting("b", "1"))
    assert reason(made.admit(wanting("c", "1"))) == "OutOfcpu"
    assert len(made) == 2
    workers.terminated.add(PodUID("a"))
    assert reason(made.admit(wanting("c", "1500m"))) == "OutOfcpu"
    assert len(made) == 1  # the pod that has ended is counted no more, though that was not enough


def test_a_pod_that_fits_has_no_other_struck_out() -> None:
    made, workers, _ = admission(wanting("a", "1"))
    workers.terminated.add(PodUID("a"))
    assert made.admit(wanting("b", "1")) is None
    assert len(made) == 1


def test_a_pod_that_is_judged_again_stays_counted_whatever_the_verdict() -> None:
    made, workers, statuses = admission(wanting("a", "1"), wanting("b", "1"))
    statuses.phases[PodUID("a")] = "Failed"
    workers.terminated.add(PodUID("a"))
    assert reason(made.admit(wanting("a", "3"))) == "OutOfcpu"
    assert len(made) == 2
    statuses.phases.clear()
    workers.terminated.clear()
    assert reason(made.admit(wanting("c", "1"))) == "OutOfcpu"
    made.forget(PodUID("a"))
    assert made.admit(wanting("c", "1")) is None
    assert reason(made.admit(wanting("c", "1001m"))) == "OutOfcpu"


def test_a_pod_that_is_counted_twice_counts_once_and_as_it_is_now() -> None:
    made, _, _ = admission(wanting("a", "2"), wanting("a", "500m"))
    assert len(made) == 1
    assert made.admit(wanting("b", "1500m")) is None
    assert reason(made.admit(wanting("b", "1501m"))) == "OutOfcpu"


def test_a_pod_that_was_turned_away_is_not_counted_when_it_changes() -> None:
    made, _, _ = admission()
    made.update(wanting("turned-away", "2"))
    assert len(made) == 0


def test_a_critical_pod_does_not_preempt_itself() -> None:
    critical, low = wanting("critical", "1", source=FILE_SOURCE), wanting("low", "1")
    made, _, _ = admission(low, critical)
    assert made.admit(wanting("critical", "2", source=FILE_SOURCE)) == Preempt((low,), "cpu")


def test_what_containers_cannot_be_held_to_is_refused() -> None:
    asking = wanting("a")
    sysctls = (Sysctl(name="kernel.msgmax", value="1"),)
    asking = replace(asking, spec=replace(asking.spec, security_context=PodSecurityContext(sysctls=sysctls)))
    for enforcement, expected in (
        (None, "None"),
        (Enforcement(), "SysctlForbidden"),
        (Enforcement(unsafe_sysctls=("kernel.msg*",)), "None"),
    ):
        made = Admission(
            node=lambda: NODE, workers=Workers(), status=stand_in(StatusManager, Statuses()), enforcement=enforcement
        )
        assert reason(made.admit(asking)) == expected


STEPS = st.tuples(
    st.sampled_from(["come", "come", "come", "end", "fail", "leave", "change"]),
    st.sampled_from("abcdefgh"),
    st.sampled_from(["0", "250m", "500m", "1", "1500m"]),
    st.sampled_from([0, 0, 80, 81]),
    st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([API_SOURCE, API_SOURCE, API_SOURCE, FILE_SOURCE]),
)


@given(st.lists(STEPS, max_size=40))
def test_it_says_what_looking_at_all_active_pods_would_say(steps: list[tuple[str, str, str, int, str, str]]) -> None:
    made, workers, statuses = admission()
    there: dict[str, Pod] = {}
    for step, uid, cpu, port, address, source in steps:
        each = wanting(uid, cpu, port=port, address=address, source=source)
        match step:
            case "come" if uid not in workers.terminated and PodUID(uid) not in statuses.phases:
                verdict = made.admit(each)
                assert verdict == admit(each, NODE, there.values())
                if verdict is None:
                    made.add(each)
                    there[uid] = each
            case "change" if uid in there:
                made.update(each)
                there[uid] = each
            case "end" if uid in there:
                workers.terminated.add(PodUID(uid))
                del there[uid]
            case "fail" if uid in there:
                statuses.phases[PodUID(uid)] = "Failed"
                del there[uid]
            case "leave" if uid in there:
                made.forget(PodUID(uid))
                del there[uid]


# On a living node.


def test_a_pod_that_does_not_fit_fails_with_the_reason_and_an_event() -> None:
    async def story(node: LoopHouse) -> tuple[PodStatus, list[str], set[str]]:
        node.tell(Op.ADD, pod("first", cpu="3"), pod("second", cpu="2"), pod("third", cpu="1"))
        await asyncio.sleep(1)
        return node.status.statuses[PodUID("second")], [event.reason for event in node.events], node.runtime.running

    status, events, running = play(story)[0]
    assert (status.phase, status.reason) == ("Failed", "OutOfcpu")
    assert events == ["OutOfcpu"]
    assert running == {"first", "third"}


def test_a_pod_fits_as_soon_as_another_has_ended() -> None:
    async def story(node: LoopHouse) -> set[str]:
        node.tell(Op.ADD, pod("old", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.DELETE, pod("old", cpu="4", deleted=True))
        await asyncio.sleep(0.01)
        node.tell(Op.ADD, pod("new", cpu="4"))
        await asyncio.sleep(0.01)
        return node.runtime.running

    assert play(story)[0] == {"new"}


def test_a_removed_pod_holds_nothing_any_more_even_while_it_is_being_stopped() -> None:
    async def story(node: LoopHouse) -> set[str]:
        node.syncer.stop_seconds["old"] = 20
        node.tell(Op.ADD, pod("old", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, pod("old", cpu="4"))
        node.tell(Op.ADD, pod("new", cpu="4"))
        await asyncio.sleep(1)
        return node.runtime.running

    assert play(story)[0] == {"old", "new"}


SILENT = {"housekeeping runs": (API_SOURCE, FILE_SOURCE), "a source is silent": (API_SOURCE, FILE_SOURCE, HTTP_SOURCE)}


@pytest.mark.parametrize("sources", SILENT.values(), ids=SILENT.keys())
def test_a_critical_pod_starts_once_its_victim_is_dead_and_nobody_waits_for_that(sources: tuple[str, ...]) -> None:
    """Housekeeping would start the pod too, every 2 s. Without all sources it does not run."""

    async def story(node: LoopHouse) -> tuple[object, ...]:
        node.syncer.stop_seconds["victim"] = 6.3
        node.tell(Op.ADD, pod("victim", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.ADD, pod("critical", source=FILE_SOURCE, cpu="3"), source=FILE_SOURCE)
        node.tell(Op.UPDATE, pod("critical", source=FILE_SOURCE, cpu="3"), source=FILE_SOURCE)
        node.tell(Op.ADD, pod("bystander"))
        await asyncio.sleep(4)  # housekeeping comes by
        held = frozenset(node.preemption.held())
        await asyncio.sleep(4)
        starts = [node.syncer.did("sync", uid)[:1] for uid in ("critical", "bystander")]
        return held, starts, frozenset(node.preemption.held()), node.runtime.running

    held, starts, free, running = play(story, sources=sources)[0]
    assert (held, free) == (uids("critical"), frozenset())
    assert starts == [[7.3], [1.0]]
    assert running == {"critical", "bystander"}


def test_the_room_that_is_made_for_a_critical_pod_is_not_given_to_another() -> None:
    async def story(node: LoopHouse) -> tuple[str | None, set[str]]:
        node.syncer.stop_seconds["victim"] = 7
        node.tell(Op.ADD, pod("victim", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.ADD, pod("critical", source=FILE_SOURCE, cpu="3"), source=FILE_SOURCE)
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, pod("victim", cpu="4"))
        node.tell(Op.ADD, pod("greedy", cpu="3"))
        await asyncio.sleep(10)
        return node.status.statuses[PodUID("greedy")].reason, node.runtime.running

    assert play(story)[0] == ("OutOfcpu", {"critical"})


def test_a_critical_pod_that_is_removed_while_it_is_held_never_starts() -> None:
    async def story(node: LoopHouse) -> tuple[list[float], set[str]]:
        critical = pod("critical", source=FILE_SOURCE, cpu="3")
        node.syncer.stop_seconds["victim"] = 7
        node.tell(Op.ADD, pod("victim", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.ADD, critical, source=FILE_SOURCE)
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, critical, source=FILE_SOURCE)
        await asyncio.sleep(20)
        return node.syncer.did("sync", "critical"), node.runtime.running

    assert play(story)[0] == ([], set())


def test_a_victim_that_does_not_die_in_time_does_not_keep_a_critical_pod_out() -> None:
    async def story(node: LoopHouse) -> tuple[bool, list[str]]:
        node.syncer.stop_seconds["victim"] = 1e6
        node.tell(Op.ADD, pod("victim", cpu="4"))
        await asyncio.sleep(1)
        node.tell(Op.ADD, pod("critical", source=FILE_SOURCE, cpu="3"), source=FILE_SOURCE)
        await asyncio.sleep(600)
        return "critical" in node.runtime.running, [event.reason for event in node.events]

    assert play(story)[0] == (True, ["Preempting", "ExceededGracePeriod"])
