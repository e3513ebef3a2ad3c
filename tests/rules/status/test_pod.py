from dataclasses import replace as changed
from datetime import UTC, datetime
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStateTerminated, Pod, PodCondition, PodStatus
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container.restart import could_restart_all
from podkeeper.rules.evict import PAST_DEADLINE, Eviction
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.conditions import find_condition
from podkeeper.rules.status.containers import StartFailure
from podkeeper.rules.status.normalise import equal_by_kubelet, normalised
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.status.pod import NodeView, PodView, api_pod_status, sorted_pod_ips
from podkeeper.testing.build import container
from tests.rules.status.statuses import T0, condition, ended, exited, pod, pod_statuses, pods, sidecar, waiting

AGENT_START = datetime(2000, 1, 1, tzinfo=UTC)
NODE = NodeView(runtime_name="fake")
A, I1, S = container("a"), container("i"), sidecar("s")


def record(name: str = "a", state: str = "running", *, exit_code: int = 0, sandbox_id: str = "") -> ContainerRecord:
    return ContainerRecord(
        id=name,
        name=name,
        state=RecordState(state),
        exit_code=exit_code,
        started_at=AGENT_START,
        sandbox_id=sandbox_id,
    )


def view(*containers: ContainerRecord, sandbox_ready: bool = True) -> PodView:
    sandbox = SandboxRecord(id="new", ready=sandbox_ready, network=NetworkMode.POD, ip="10.0.0.2")
    return PodView(
        record=PodRecord(uid="u1", ips=("10.0.0.2",), sandboxes=(sandbox,), containers=containers),
        probes=ProbeView(agent_started=AGENT_START),
    )


def test_status_of_a_running_pod() -> None:
    status = api_pod_status(pod(A, generation=2), view(record()), NODE)
    assert msgspec.json.decode(msgspec.json.encode(status)) == {
        "phase": "Running",
        "podIP": "10.0.0.2",
        "podIPs": [{"ip": "10.0.0.2"}],
        "qosClass": "BestEffort",
        "resources": {},
        "conditions": [
            {
                "type": type_,
                "status": "True",
                "observedGeneration": 2,
                "lastProbeTime": None,
                "lastTransitionTime": None,
            }
            for type_ in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": "a",
                "image": "",
                "imageID": "",
                "containerID": "fake://a",
                "state": {"running": {"startedAt": T0}},
                "lastState": {},
                "ready": True,
                "started": True,
                "restartCount": 0,
                "resources": {},
            }
        ],
    }


def test_status_of_a_new_pod() -> None:
    nothing = PodView(record=PodRecord(uid="u1"), probes=ProbeView(agent_started=AGENT_START))
    status = api_pod_status(pod(A, init=(I1,)), nothing, NODE)
    assert (status.phase, status.pod_ip, status.pod_ips) == ("Pending", None, None)
    assert {each.type: each.status for each in status.conditions or ()} == {
        "PodReadyToStartContainers": "False",
        "Initialized": "False",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }


Expected = tuple[str | None, str | None, str | None]
EVICTION = Eviction("Evicted", "no room")
PHASES: dict[str, tuple[Pod, PodView, Expected]] = {
    "computed": (pod(A), view(record()), ("Running", None, None)),
    "the reason stays with its phase": (
        pod(A, status=PodStatus(phase="Running", reason="R", message="M")), view(record()), ("Running", "R", "M")),
    "the reason is removed when the phase changes": (
        pod(A, status=PodStatus(phase="Pending", reason="R", message="M")), view(record()), ("Running", None, None)),
    "without our own reason, that of the API is used": (
        pod(A, status=PodStatus(phase="Running", reason="R", message="M")),
        changed(view(record()), published=PodStatus(phase="Running", message="ours")), ("Running", "R", "ours")),
    "a published terminal phase stays": (
        pod(A, status=PodStatus(phase="Running")),
        changed(view(record()), published=PodStatus(phase="Succeeded", reason="R")), ("Succeeded", "R", None)),
    "in the kubelet, containers take precedence over a published terminal phase": (
        pod(A, status=PodStatus(phase="Running")),
        changed(view(record(state="exited")), published=PodStatus(phase="Failed", reason="R"), pod_is_terminal=True),
        ("Succeeded", None, None)),
    "a final terminal phase takes precedence over the containers": (
        pod(A, status=PodStatus(phase="Running")),
        changed(
            view(record(state="exited")),
            published=PodStatus(phase="Failed", reason="R"),
            pod_is_terminal=True,
            terminal_phase_is_final=True,
        ),
        ("Failed", "R", None)),
    "a final terminal phase takes precedence over an eviction": (
        pod(A, status=PodStatus(phase="Running")),
        changed(
            view(record(state="exited")),
            published=PodStatus(phase="Succeeded"),
            eviction=EVICTION,
            terminal_phase_is_final=True,
        ),
        ("Succeeded", None, None)),
    "a published eviction is final with its reason": (
        pod(A, status=PodStatus(phase="Running")),
        changed(
            view(record(state="exited")),
            published=PodStatus(phase="Failed", reason="Evicted", message="no room"),
            eviction=EVICTION, terminal_phase_is_final=True,
        ),
        ("Failed", "Evicted", "no room")),
    "an eviction of a running pod": (
        pod(A, status=PodStatus(phase="Running")),
        changed(view(record()), published=PodStatus(phase="Running"), eviction=EVICTION, terminal_phase_is_final=True),
        ("Failed", "Evicted", "no room")),
    "a terminal phase in the API stays": (
        pod(A, status=PodStatus(phase="Failed", reason="R")),
        changed(view(record()), published=PodStatus(phase="Running", reason="X")), ("Failed", None, None)),
    "an eviction takes precedence over the containers": (
        pod(A), changed(view(record()), eviction=EVICTION), ("Failed", "Evicted", "no room")),
    "an eviction does not change a terminal phase in the API": (
        pod(A, status=PodStatus(phase="Succeeded")), changed(view(), eviction=PAST_DEADLINE),
        ("Succeeded", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")),
    "a terminal pod": (pod(A), changed(view(record(state="exited")), pod_is_terminal=True), ("Succeeded", None, None)),
    "a sidecar that restarts in the same sandbox": (
        pod(A, init=(S,)), view(record("s", "exited", exit_code=1), record("a", "exited", exit_code=1)),
        ("Running", None, None)),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, seen, expected", PHASES.values(), ids=PHASES.keys())
def test_phase_reason_and_message(given_pod: Pod, seen: PodView, expected: Expected) -> None:
    status = api_pod_status(given_pod, seen, NODE)
    assert (status.phase, status.reason, status.message) == expected


@pytest.mark.parametrize(
    "sandbox_id, ready, phase", [("new", True, "Running"), ("old", True, "Pending"), ("new", False, "Pending")]
)
def test_only_containers_of_the_current_sandbox_show_that_initialization_is_done(
    sandbox_id: str, ready: bool, phase: str
) -> None:
    # The flags are set after the phase, so a sidecar that is seen for the first time counts as starting.
    seen = view(record("s"), record("a", sandbox_id=sandbox_id), sandbox_ready=ready)
    assert api_pod_status(pod(A, init=(S,)), seen, NODE).phase == phase


def test_a_failed_start_is_shown() -> None:
    seen = changed(view(), start_failures={"a": StartFailure("ImagePullBackOff", "no such image")})
    (status,) = api_pod_status(pod(A), seen, NODE).container_statuses or ()
    assert status.state.waiting is not None
    assert (status.state.waiting.reason, status.state.waiting.message) == ("ImagePullBackOff", "no such image")


# Init containers whose records were removed for a new sandbox.

OF_OLD_SANDBOX = record("a", "exited", sandbox_id="old")
KEPT = changed(view(OF_OLD_SANDBOX), keeps_init_exits=True)
CANNOT_START = {"i": StartFailure("CreateContainerError")}
DONE, FAILED = (replace(ended(code), container_id="fake://i") for code in (0, 1))

REMOVED: dict[str, tuple[PodView, ContainerStateTerminated, str]] = {
    "it waits for its next start": (KEPT, DONE, "waiting:PodInitializing last:fake://i(0)"),
    "it cannot start": (changed(KEPT, start_failures=CANNOT_START), DONE, "waiting:CreateContainerError last:fake://i(0)"),
    "it will not start again": (changed(KEPT, pod_is_terminal=True), DONE, "fake://i(0)"),
    "it failed and will not start again": (changed(KEPT, pod_is_terminal=True), FAILED, "fake://i(1)"),
    "only an assumed exit is known": (KEPT, replace(DONE, container_id=None), "Completed(0) last:(0)"),
    "a regular container of the new sandbox shows that it succeeded": (
        changed(view(record("a", sandbox_id="new")), keeps_init_exits=True), FAILED, "Completed(0) last:fake://i(1)"),
    "in the kubelet, a regular container of any sandbox shows that it succeeded": (
        view(OF_OLD_SANDBOX), FAILED, "Completed(0) last:fake://i(1)"),
}  # fmt: skip


@pytest.mark.parametrize("seen, last, expected", REMOVED.values(), ids=REMOVED.keys())
def test_an_init_container_whose_record_was_removed(
    seen: PodView, last: ContainerStateTerminated, expected: str
) -> None:
    published = PodStatus(phase="Running", init_container_statuses=(waiting("i", last=last),))
    (status,) = (
        api_pod_status(pod(A, init=(I1,)), changed(seen, published=published), NODE).init_container_statuses or ()
    )
    state, before = status.state, status.last_state.terminated
    words = [f"waiting:{state.waiting.reason}"] if state.waiting is not None else []
    if state.terminated is not None:
        words.append(f"{state.terminated.container_id or state.terminated.reason}({state.terminated.exit_code})")
        assert status.container_id == state.terminated.container_id
    if before is not None:
        words.append(f"last:{before.container_id or ''}({before.exit_code})")
    assert " ".join(words) == expected


def test_a_sidecar_that_will_not_start_again_keeps_its_last_exit() -> None:
    published = PodStatus(phase="Running", init_container_statuses=(waiting("s", last=FAILED),))
    seen = changed(KEPT, published=published, pod_is_terminal=True)
    (status,) = api_pod_status(pod(A, init=(S,)), seen, NODE).init_container_statuses or ()
    assert (status.state.terminated, status.last_state.terminated) == (FAILED, None)


def types(status: PodStatus) -> list[str]:
    return [each.type for each in status.conditions or ()]


OURS = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]


def test_conditions_of_others_come_first_and_ours_are_recomputed() -> None:
    held = (condition("Ready", "Unknown"), condition("example.com/gate"), condition("PodScheduled", "False"))
    status = api_pod_status(pod(A, status=PodStatus(conditions=held)), view(record()), NODE)
    assert types(status) == ["example.com/gate", *OURS]


def test_a_published_disruption_condition_is_kept() -> None:
    published = PodStatus(conditions=(condition("DisruptionTarget", since=T0),))
    in_api = PodStatus(conditions=(condition("DisruptionTarget", "False"), condition("example.com/gate")))
    status = api_pod_status(pod(A, status=in_api), changed(view(record()), published=published), NODE)
    assert types(status) == ["DisruptionTarget", "example.com/gate", *OURS]
    assert find_condition(status.conditions, "DisruptionTarget") == condition("DisruptionTarget", since=T0)


RESIZE = PodCondition(type="PodResizePending", status="True", reason="Deferred", observed_generation=1)


def test_a_resize_condition_is_shown_until_the_pod_terminates() -> None:
    seen = changed(view(record()), resize_conditions=(RESIZE,))
    assert types(api_pod_status(pod(A, generation=2), seen, NODE)) == ["PodResizePending", *OURS]
    assert types(api_pod_status(pod(A, generation=2), changed(seen, pod_is_terminal=True), NODE)) == OURS
    without = api_pod_status(pod(A), seen, NODE)
    assert find_condition(without.conditions, "PodResizePending") == replace(RESIZE, observed_generation=None)


def test_a_pod_with_a_restart_all_rule_has_its_condition() -> None:
    spec = container("a", restart_policy="Never", restart_rule=("RestartAllContainers", 42))
    status = api_pod_status(pod(spec), view(record(state="exited", exit_code=42)), NODE)
    assert types(status) == [*OURS, "AllContainersRestarting"]
    assert (status.conditions or ())[-1].status == "True"


IPS: dict[str, tuple[tuple[str, ...], bool, tuple[str, ...]]] = {
    "none": ((), False, ()),
    "one": (("10.0.0.1",), False, ("10.0.0.1",)),
    "the preferred family first": (("fd00::1", "10.0.0.1"), False, ("10.0.0.1", "fd00::1")),
    "IPv6 preferred": (("10.0.0.1", "fd00::1"), True, ("fd00::1", "10.0.0.1")),
    "the first of each": (("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), False, ("10.0.0.1", "fd00::1")),
    "only the other family": (("fd00::1",), False, ("fd00::1",)),
    "canonical form": (("010.000.0.1", "FD00:0:0::1"), False, ("10.0.0.1", "fd00::1")),
    "mapped IPv4 is IPv4": (("::ffff:10.0.0.1",), False, ("10.0.0.1",)),
    "invalid addresses": (("", "10.0.0", "fe80::1%eth0", "nonsense", "10..0.1"), False, ()),
}


@pytest.mark.parametrize("ips, prefers_ipv6, expected", IPS.values(), ids=IPS.keys())
def test_pod_ips(ips: tuple[str, ...], prefers_ipv6: bool, expected: tuple[str, ...]) -> None:
    assert sorted_pod_ips(ips, prefers_ipv6=prefers_ipv6) == expected


def on_host(given_pod: Pod) -> Pod:
    return replace(given_pod, spec=replace(given_pod.spec, host_network=True))


HOST_IPS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]]] = {
    "a pod with its own network keeps its address": (("1.1.1.1",), ("10.0.0.2",), False, ("10.0.0.2",)),
    "without an address it has none": (("1.1.1.1",), (), False, ()),
    "in the host network it has the address of the node": (("1.1.1.1",), (), True, ("1.1.1.1",)),
    "in the host network it has both addresses of the node": (("1.1.1.1", "fd00::1"), (), True, ("1.1.1.1", "fd00::1")),
    "the second address of the node is added": (("1.1.1.1", "fd00::1"), ("2.2.2.2",), True, ("2.2.2.2", "fd00::1")),
    "an address of the same family is not added": (("1.1.1.1", "fd00::1"), ("fd00::2",), True, ("fd00::2",)),
    "the addresses of the node are unknown": ((), (), True, ()),
}


@pytest.mark.parametrize("host, own, on_node, expected", HOST_IPS.values(), ids=HOST_IPS.keys())
def test_host_ips(host: tuple[str, ...], own: tuple[str, ...], on_node: bool, expected: tuple[str, ...]) -> None:
    given_pod = on_host(pod(A)) if on_node else pod(A)
    seen = changed(view(), record=PodRecord(uid="u1", ips=own))
    status = api_pod_status(given_pod, seen, changed(NODE, host_ips=host))
    assert tuple(each.ip for each in status.pod_ips or ()) == expected
    assert status.pod_ip == (expected[0] if expected else None)
    assert tuple(each.ip for each in status.host_ips or ()) == host
    assert status.host_ip == (host[0] if host else None)


def test_the_qos_class_in_the_api_stays() -> None:
    assert api_pod_status(pod(A, status=PodStatus(qos_class="Guaranteed")), view(), NODE).qos_class == "Guaranteed"


# Laws.


def views(states: tuple[RecordState, ...] = tuple(RecordState)) -> st.SearchStrategy[PodView]:
    def records(name: str) -> st.SearchStrategy[tuple[ContainerRecord, ...]]:
        """Zero, one or two records of a container."""
        every = [record(name, state.value, exit_code=code) for state, code in product(states, (0, 1))]
        return st.sampled_from([(), *((one,) for one in every), *product(every, repeat=2)])

    return st.builds(
        lambda found, published, rest: changed(
            view(*(each for one in found for each in one), sandbox_ready=rest[0]),
            published=published,
            pod_is_terminal=rest[1],
            eviction=rest[2],
        ),
        st.tuples(*map(records, "abij")),
        st.none() | pod_statuses(),
        st.sampled_from(list(product((False, True), (False, True), (None, EVICTION)))),
    )


@given(pods(), views())
def test_a_terminal_phase_never_changes(given_pod: Pod, seen: PodView) -> None:
    status = api_pod_status(given_pod, seen, NODE)
    if is_terminal(given_pod.status.phase):
        assert status.phase == given_pod.status.phase
    elif seen.published is not None and is_terminal(seen.published.phase):
        assert is_terminal(status.phase)
        final = api_pod_status(given_pod, changed(seen, terminal_phase_is_final=True), NODE)
        assert final.phase == seen.published.phase


@given(pods(), views())
def test_the_conditions_of_others_are_kept(given_pod: Pod, seen: PodView) -> None:
    status = api_pod_status(given_pod, seen, NODE)
    gate = find_condition(given_pod.status.conditions, "example.com/gate")
    assert find_condition(status.conditions, "example.com/gate") == gate


@given(pods(), views())
def test_a_terminal_pod_is_not_ready(given_pod: Pod, seen: PodView) -> None:
    status = api_pod_status(given_pod, seen, NODE)
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert not (is_terminal(status.phase) and ready.status == "True")


@given(pods(), views())
def test_a_pod_succeeds_only_if_all_containers_exited_with_0(given_pod: Pod, seen: PodView) -> None:
    status = api_pod_status(given_pod, seen, NODE)
    known = [given_pod.status.phase, None if seen.published is None else seen.published.phase]
    if status.phase == "Succeeded" and not any(map(is_terminal, known)):
        ends = [each.state.terminated for each in status.container_statuses or ()]
        assert all(end is not None and end.exit_code == 0 for end in ends)


@given(pods(), views(states=(RecordState.CREATED, RecordState.RUNNING, RecordState.EXITED)))
def test_a_status_without_events_does_not_change(given_pod: Pod, seen: PodView) -> None:
    """A published status does not change while nothing happens."""
    if could_restart_all(given_pod.spec):
        return
    first = normalised(given_pod.spec, api_pod_status(given_pod, seen, NODE))
    second = normalised(given_pod.spec, api_pod_status(given_pod, changed(seen, published=first), NODE))
    third = normalised(given_pod.spec, api_pod_status(given_pod, changed(seen, published=second), NODE))
    assert equal_by_kubelet(second, third)


def test_a_published_exit_stays_after_the_removal_of_its_container() -> None:
    seen = changed(view(), published=PodStatus(phase="Failed", container_statuses=(exited("a", 3),)))
    (status,) = api_pod_status(pod(A, policy="Never"), seen, NODE).container_statuses or ()
    assert status.state.terminated is not None
    assert status.state.terminated.exit_code == 3
