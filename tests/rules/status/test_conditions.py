import pytest
from hypothesis import given
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodCondition, PodReadinessGate, PodStatus
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.status.conditions import (
    all_containers_restarting_condition,
    containers_ready_condition,
    find_condition,
    initialized_condition,
    is_ours,
    is_shared,
    pod_scheduled_condition,
    readiness_is_stale,
    ready_condition,
    ready_to_start_containers_condition,
    updated_condition,
    with_condition,
)
from podkeeper.testing.build import container
from tests.rules.status.statuses import (
    NOON,
    T0,
    condition,
    condition_lists,
    ended,
    exited,
    phases,
    pod,
    pods,
    running,
    sidecar,
    some_statuses,
    waiting,
)

A, B, I1, S = container("a"), container("b"), container("i"), sidecar("s")

Expected = tuple[str, str | None, str | None]


def summary(found: PodCondition) -> Expected:
    return found.status, found.reason, found.message


CONTAINERS_READY: dict[str, tuple[Pod, list[ContainerStatus] | None, str | None, Expected]] = {
    "no statuses": (pod(A), None, None, ("False", "UnknownContainerStatuses", None)),
    "all ready": (pod(A, B), [running("a"), running("b")], "Running", ("True", None, None)),
    "no containers, none unready": (Pod(), [], "Pending", ("True", None, None)),
    "some unready, some unknown": (
        pod(A, B, container("c")), [running("a", ready=False), running("c", ready=False)], "Running",
        ("False", "ContainersNotReady",
         "containers with unknown status: [b], containers with unready status: [a c]")),
    "a sidecar counts, before the regular ones": (
        pod(A, init=(I1, S)), [running("a", ready=False), running("s", ready=False)], "Running",
        ("False", "ContainersNotReady", "containers with unready status: [s a]")),
    "a plain init container does not count": (pod(A, init=(I1,)), [running("a")], "Running", ("True", None, None)),
    "succeeded": (pod(A), [exited("a")], "Succeeded", ("False", "PodCompleted", None)),
    "succeeded with an unknown container": (
        pod(A, B), [exited("a")], "Succeeded",
        ("False", "ContainersNotReady", "containers with unknown status: [b], containers with unready status: [a]")),
    "failed with ready and unknown containers": (pod(A, B), [running("a")], "Failed", ("False", "PodFailed", None)),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, statuses, phase, expected", CONTAINERS_READY.values(), ids=CONTAINERS_READY.keys())
def test_containers_ready(
    given_pod: Pod, statuses: list[ContainerStatus] | None, phase: str | None, expected: Expected
) -> None:
    assert summary(containers_ready_condition(given_pod, statuses, phase)) == expected


def gated(*gates: str, status: PodStatus | None = None) -> Pod:
    given_pod = pod(A, status=status)
    wanted = tuple(PodReadinessGate(condition_type=gate) for gate in gates)
    return replace(given_pod, spec=replace(given_pod.spec, readiness_gates=wanted))


READY: dict[str, tuple[Pod, list[ContainerStatus], tuple[PodCondition, ...], Expected]] = {
    "ready without gates": (pod(A), [running("a")], (), ("True", None, None)),
    "an open gate": (gated("g"), [running("a")], (condition("g"),), ("True", None, None)),
    "unready containers take precedence over gates": (
        gated("g"), [running("a", ready=False)], (),
        ("False", "ContainersNotReady", "containers with unready status: [a]")),
    "one gate missing, one closed": (
        gated("g", "h"), [running("a")], (condition("h", "Unknown"),),
        ("False", "ReadinessGatesNotReady",
         'corresponding condition of pod readiness gate "g" does not exist., '
         'the status of pod readiness gate "h" is not "True", but Unknown')),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, statuses, conditions, expected", READY.values(), ids=READY.keys())
def test_ready(
    given_pod: Pod, statuses: list[ContainerStatus], conditions: tuple[PodCondition, ...], expected: Expected
) -> None:
    assert summary(ready_condition(given_pod, conditions, statuses, "Running")) == expected


NOT_INITIALIZED = "ContainersNotInitialized"
WAS = (condition("Initialized"),)
INITIALIZED: dict[str, tuple[Pod, tuple[PodCondition, ...], list[ContainerStatus] | None, str | None, Expected]] = {
    "no init containers": (pod(A), (), None, "Pending", ("True", None, None)),
    "no statuses": (pod(A, init=(I1,)), (), None, None, ("False", "UnknownContainerStatuses", None)),
    "one incomplete, one unknown": (
        pod(A, init=(I1, S)), (), [running("i", ready=False)], "Pending",
        ("False", NOT_INITIALIZED, "containers with unknown status: [s], containers with incomplete status: [i]")),
    "the init container has completed": (
        pod(A, init=(I1,)), (), [exited("i", ready=True)], "Pending", ("True", None, None)),
    "a started sidecar is done, ready or not": (
        pod(A, init=(S,)), (), [running("s", ready=False)], "Pending", ("True", None, None)),
    "a sidecar that is ready but not started is not done": (
        pod(A, init=(S,)), (), [running("s", started=None)], "Pending",
        ("False", NOT_INITIALIZED, "containers with incomplete status: [s]")),
    "a regular container has started, so initialization is done": (
        pod(A, init=(I1,)), (), [waiting("i"), exited("a", 1)], "Running", ("True", None, None)),
    "it was initialized before": (pod(A, init=(I1,)), WAS, [waiting("i")], "Pending", ("True", None, None)),
    "succeeded": (pod(A, init=(I1,)), (), [waiting("i")], "Succeeded", ("True", "PodCompleted", None)),
    "succeeded with an unknown container": (
        pod(A, init=(I1,)), (), [], "Succeeded", ("False", NOT_INITIALIZED, "containers with unknown status: [i]")),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, old, statuses, phase, expected", INITIALIZED.values(), ids=INITIALIZED.keys())
def test_initialized(
    given_pod: Pod,
    old: tuple[PodCondition, ...],
    statuses: list[ContainerStatus] | None,
    phase: str | None,
    expected: Expected,
) -> None:
    assert summary(initialized_condition(given_pod, old, statuses, phase)) == expected


def sandbox(ready: bool) -> PodRecord:
    return PodRecord(uid="u1", sandboxes=(SandboxRecord(id="s", ready=ready, network=NetworkMode.POD, ip="10.0.0.1"),))


def test_a_pod_with_a_sandbox_is_ready_to_start_containers() -> None:
    assert ready_to_start_containers_condition(pod(A), sandbox(ready=True)).status == "True"
    assert ready_to_start_containers_condition(pod(A), sandbox(ready=False)).status == "False"
    assert ready_to_start_containers_condition(pod(A), PodRecord(uid="u1")).status == "False"


RESTARTS_ALL = container("a", restart_policy="Never", restart_rule=("RestartAllContainers", 42))


def record(exit_code: int | None) -> PodRecord:
    if exit_code is None:
        return PodRecord(uid="u1")
    found = ContainerRecord(id="1", name="a", state=RecordState.EXITED, exit_code=exit_code)
    return PodRecord(uid="u1", containers=(found,))


UNDERWAY = PodStatus(conditions=(condition("AllContainersRestarting"),))
RESTARTING: dict[str, tuple[PodRecord, PodStatus, str, Expected]] = {
    "no exit requires it": (record(1), PodStatus(), "Running", ("False", None, None)),
    "an exit requires it": (
        record(42), PodStatus(), "Running",
        ("True", "RestartAllContainersStarted", "container exited with restart policy rule")),
    "in progress until all containers are removed": (
        record(0), UNDERWAY, "Running",
        ("True", "RestartAllContainersStarted", "container exited with restart policy rule")),
    "all containers are removed": (record(None), UNDERWAY, "Running", ("False", None, None)),
    "a failed pod restarts nothing": (record(42), UNDERWAY, "Failed", ("False", "PodFailed", None)),
    "a succeeded pod restarts nothing": (record(42), UNDERWAY, "Succeeded", ("False", "PodCompleted", None)),
}  # fmt: skip


@pytest.mark.parametrize("found, old, phase, expected", RESTARTING.values(), ids=RESTARTING.keys())
def test_all_containers_restarting(found: PodRecord, old: PodStatus, phase: str, expected: Expected) -> None:
    assert summary(all_containers_restarting_condition(pod(RESTARTS_ALL), found, old, phase)) == expected


def test_conditions_have_the_generation_of_the_pod() -> None:
    assert pod_scheduled_condition(pod(generation=7)).observed_generation == 7
    assert pod_scheduled_condition(pod(generation=0)).observed_generation is None


def published(*conditions: PodCondition, ready: bool = True) -> PodStatus:
    return PodStatus(conditions=conditions, container_statuses=(running("a", ready=ready),))


STALE: dict[str, tuple[Pod, bool]] = {
    "no gates, never": (pod(A, status=published(condition("Ready"), ready=False)), False),
    "gates, but no Ready condition yet": (gated("g", status=published()), False),
    "the gate became true": (gated("g", status=published(condition("Ready", "False"), condition("g"))), True),
    "the condition is current": (gated("g", status=published(condition("Ready"), condition("g"))), False),
    "a reason alone does not count": (
        gated("g", status=published(condition("Ready", reason="Other"), condition("g"))), False),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, stale", STALE.values(), ids=STALE.keys())
def test_readiness_is_stale(given_pod: Pod, stale: bool) -> None:
    assert readiness_is_stale(given_pod) == stale


def test_owners_of_conditions() -> None:
    ours = [
        "PodScheduled",
        "Ready",
        "Initialized",
        "ContainersReady",
        "PodResizeInProgress",
        "PodResizePending",
        "PodReadyToStartContainers",
        "AllContainersRestarting",
    ]
    assert all(is_ours(condition(each)) and not is_shared(condition(each)) for each in ours)
    assert is_shared(condition("DisruptionTarget"))
    assert not is_ours(condition("DisruptionTarget"))
    assert not is_ours(condition("example.com/gate"))


def test_a_condition_replaces_the_first_of_its_type() -> None:
    old = (condition("Ready"), condition("g"), condition("Ready", "Unknown"))
    assert [each.status for each in with_condition(old, condition("Ready", "False"))] == ["False", "True", "Unknown"]
    assert [each.type for each in with_condition(old, condition("h"))] == ["Ready", "g", "Ready", "h"]
    assert with_condition(None, condition("g")) == (condition("g"),)


@given(condition_lists(), condition_lists())
def test_the_transition_time_changes_only_with_the_status(
    held: tuple[PodCondition, ...], updates: tuple[PodCondition, ...]
) -> None:
    for new in updates:
        before = find_condition(held, new.type)
        after = find_condition(updated_condition(held, new, NOON), new.type)
        assert after is not None
        moved = before is None or before.status != new.status
        assert after.last_transition_time == (NOON if moved else before and before.last_transition_time)


@given(pods(), some_statuses("a", "b", "i", "j"), phases)
def test_a_pod_is_ready_only_if_its_containers_are(
    given_pod: Pod, statuses: tuple[ContainerStatus, ...], phase: str | None
) -> None:
    ready = ready_condition(given_pod, given_pod.status.conditions, statuses, phase)
    containers_ready = containers_ready_condition(given_pod, statuses, phase)
    assert containers_ready.status == "True" or replace(containers_ready, type="Ready") == ready
    assert phase not in ("Succeeded", "Failed") or ready.status == "False"


@given(pods(), some_statuses("a", "b", "i", "j"), phases)
def test_an_initialized_pod_stays_initialized(
    given_pod: Pod, statuses: tuple[ContainerStatus, ...], phase: str | None
) -> None:
    before = (condition("Initialized", since=T0),)
    assert initialized_condition(given_pod, before, statuses, phase).status == "True"


def test_a_waiting_container_that_exited_before_has_not_started() -> None:
    statuses = [waiting("a", last=ended()), waiting("i")]
    assert initialized_condition(pod(A, init=(I1,)), (), statuses, "Running").status == "False"
