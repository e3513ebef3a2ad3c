import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.rules.status.conditions import find_condition
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.status.revise import terminated_status, with_readiness, with_startup
from podkeeper.testing.build import container
from tests.rules.status.statuses import ended, exited, nothing, pod, pod_statuses, pods, running, sidecar, waiting

A, B, I1, I2, S = container("a"), container("b"), container("i"), container("j"), sidecar("s")


def test_a_ready_container_makes_its_pod_ready() -> None:
    status = PodStatus(phase="Running", container_statuses=(running("a", ready=False),))
    revised = with_readiness(pod(A), status, "fake://a", True)
    assert revised is not None
    assert revised.container_statuses == (running("a"),)
    assert [(each.type, each.status) for each in revised.conditions or ()] == [
        ("Ready", "True"),
        ("ContainersReady", "True"),
    ]


def test_an_unready_sidecar_makes_its_pod_unready() -> None:
    status = PodStatus(phase="Running", container_statuses=(running("a"),), init_container_statuses=(running("s"),))
    revised = with_readiness(pod(A, init=(S,)), status, "fake://s", False)
    assert revised is not None
    ready = find_condition(revised.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.message) == ("False", "containers with unready status: [s]")


def test_a_flag_that_is_set_already_or_of_an_unknown_container_changes_nothing() -> None:
    status = PodStatus(container_statuses=(running("a"),))
    assert with_readiness(pod(A), status, "fake://a", True) is None
    assert with_readiness(pod(A), status, "fake://gone", True) is None
    assert with_startup(status, "fake://a", True) is None
    assert with_startup(status, "fake://gone", True) is None
    assert with_startup(PodStatus(), "fake://a", True) is None


def test_an_unknown_started_flag_differs_from_false() -> None:
    status = PodStatus(container_statuses=(running("a", started=None),))
    assert with_startup(status, "fake://a", False) == PodStatus(container_statuses=(running("a", started=False),))


def test_only_one_of_two_equal_container_statuses_is_changed() -> None:
    twins = PodStatus(container_statuses=(running("a"),), init_container_statuses=(running("a"),))
    revised = with_startup(twins, "fake://a", False)
    assert revised is not None
    assert (revised.container_statuses, revised.init_container_statuses) == (
        (running("a", started=False),),
        (running("a"),),
    )


def shown(statuses: tuple[ContainerStatus, ...] | None) -> str:
    """One letter per container: Waiting, Running, Lost (137), or its exit code."""
    return "".join(_letter(status) for status in statuses or ())


def _letter(status: ContainerStatus) -> str:
    if status.state.terminated is not None:
        lost = status.state.terminated.reason == "ContainerStatusUnknown"
        assert not lost or status.state.terminated.exit_code == 137
        return "L" if lost else str(status.state.terminated.exit_code)
    return "R" if status.state.running is not None else "W"


def status_with(*containers: ContainerStatus, init: tuple[ContainerStatus, ...] = ()) -> PodStatus:
    return PodStatus(phase="Running", container_statuses=containers, init_container_statuses=init or None)


ENDS: dict[str, tuple[Pod, PodStatus, str, str]] = {
    "a running container is lost, an exited one keeps its exit code": (
        pod(A, B), status_with(running("a"), exited("b", 3)), "L3", ""),
    "a waiting container is lost, too": (pod(A), status_with(waiting("a")), "L", ""),
    "a pod that never got past its first init container": (
        pod(A, init=(I1, I2)), status_with(waiting("a"), init=(running("i"), waiting("j"))), "W", "LW"),
    "the first init container counts even if it never ran": (
        pod(A, init=(I1, I2)), status_with(waiting("a"), init=(waiting("i"), waiting("j"))), "W", "LW"),
    "an init container that waits for its restart has run": (
        pod(A, init=(I1, I2)), status_with(waiting("a"), init=(exited("i"), waiting("j", last=ended(1)))), "W", "0L"),
    "the last init container has completed": (
        pod(A, init=(I1,)), status_with(waiting("a"), init=(exited("i"),)), "L", "0"),
    "the last init container had completed and waits for a restart": (
        pod(A, init=(I1,)), status_with(waiting("a"), init=(waiting("i", last=ended(0)),)), "L", "L"),
    "the last init container failed": (pod(A, init=(I1,)), status_with(waiting("a"), init=(exited("i", 1),)), "W", "1"),
    "the last one is a sidecar that has started": (
        pod(A, init=(I1, S)), status_with(waiting("a"), init=(exited("i"), running("s"))), "L", "0L"),
    "the last one is a sidecar that is starting": (
        pod(A, init=(I1, S)), status_with(waiting("a"), init=(exited("i"), running("s", started=False))), "W", "0L"),
    "a regular container has run, so initialization was done": (
        pod(A, init=(I1,)), status_with(waiting("a", last=ended(1)), init=(waiting("i"),)), "L", "L"),
    "a regular container without a state was started": (pod(A, init=(I1,)), status_with(nothing("a")), "L", ""),
    "statuses that do not match the spec are ignored": (
        pod(A, init=(I1,)), status_with(waiting("a"), init=(exited("j"),)), "W", "0"),
    "more statuses than containers are ignored": (
        pod(A, init=(I1,)), status_with(waiting("a"), init=(exited("i"), exited("j"))), "W", "00"),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, status, regular, init", ENDS.values(), ids=ENDS.keys())
def test_containers_of_a_terminated_pod(given_pod: Pod, status: PodStatus, regular: str, init: str) -> None:
    last = terminated_status(replace(given_pod, status=status), None)
    assert (shown(last.container_statuses), shown(last.init_container_statuses)) == (regular, init)


def test_our_status_is_terminated_but_the_api_shows_whether_the_pod_was_initialized() -> None:
    in_api = status_with(waiting("a"), init=(waiting("i"),))
    cached = status_with(running("a"), init=(exited("i"),))
    last = terminated_status(replace(pod(A, init=(I1,)), status=in_api), cached)
    assert shown(last.container_statuses) == "R"


@pytest.mark.parametrize(
    "source, before, after",
    [
        ("api", "Running", "Failed"),
        ("api", "Pending", "Failed"),
        ("api", None, "Failed"),
        ("api", "Odd", "Failed"),
        ("api", "Succeeded", "Succeeded"),
        ("api", "Failed", "Failed"),
        ("file", "Running", "Running"),
        ("file", None, None),
    ],
)
def test_phase_of_a_terminated_pod(source: str, before: str | None, after: str | None) -> None:
    assert terminated_status(pod(A, source=source), PodStatus(phase=before)).phase == after


@given(pods(), st.none() | pod_statuses())
def test_termination_gives_a_terminal_phase_and_changes_no_exit_code(given_pod: Pod, cached: PodStatus | None) -> None:
    before = given_pod.status if cached is None else cached
    last = terminated_status(given_pod, cached)
    assert is_terminal(last.phase) or last.phase == before.phase
    for old, new in zip(before.container_statuses or (), last.container_statuses or (), strict=True):
        assert old.state.terminated is None or new == old
    assert terminated_status(given_pod, last) == last
