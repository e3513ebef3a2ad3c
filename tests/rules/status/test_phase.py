from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.rules.status.phase import Phase, is_terminal, phase_of
from podkeeper.testing.build import container
from tests.rules.status.statuses import ended, exited, nothing, pod, pods, running, sidecar, some_statuses, waiting

A, B, I1 = container("a"), container("b"), container("i")
S = sidecar("s")
P, R, OK, BAD = Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED

CASES: dict[str, tuple[Pod, list[ContainerStatus], Phase]] = {
    "no statuses yet": (pod(A), [], P),
    "a container without any state": (pod(A), [nothing("a")], P),
    "a pod without containers stays pending": (Pod(), [], P),
    "one runs, one is unknown": (pod(A, B), [running("a")], P),
    "one runs, one waits for its first start": (pod(A, B), [running("a"), waiting("b")], P),
    "one runs, one waits for its restart": (pod(A, B), [running("a"), waiting("b", last=ended(1))], R),
    "one runs, one has failed finally": (pod(A, B, policy="Never"), [running("a"), exited("b", 1)], R),
    "all stopped, all restart": (pod(A, B), [exited("a"), exited("b", 1)], R),
    "all succeeded, none restarts": (pod(A, B, policy="OnFailure"), [exited("a"), exited("b")], OK),
    "one failed and restarts": (pod(A, B, policy="OnFailure"), [exited("a"), exited("b", 1)], R),
    "one failed finally": (pod(A, B, policy="Never"), [exited("a"), exited("b", 1)], BAD),
    "the policy of a container takes precedence over that of the pod": (
        pod(container("a", restart_policy="Always"), policy="Never"), [exited("a")], R),
    "a rule restarts one exit code": (
        pod(container("a", restart_policy="Never", restart_rule=("Restart", 42)), policy="Never"),
        [exited("a", 42)], R),
    "the rule does not apply to another exit code": (
        pod(container("a", restart_policy="Never", restart_rule=("Restart", 42)), policy="Never"),
        [exited("a", 1)], BAD),
    "removed for a restart of all containers": (
        pod(A, policy="Never"), [exited("a", 137, reason="RestartingAllContainers")], R),
    "a container that waits after a success has not succeeded": (
        pod(A, policy="Never"), [waiting("a", last=ended(0))], BAD),
    "an init container waits": (pod(A, init=(I1,)), [waiting("i"), waiting("a")], P),
    "an init container runs": (pod(A, init=(I1,)), [running("i"), running("a")], P),
    "an init container is unknown": (pod(A, init=(I1,)), [running("a")], P),
    "an init container failed finally": (pod(A, init=(I1,), policy="Never"), [exited("i", 1), waiting("a")], BAD),
    "an init container failed finally and waits": (
        pod(A, init=(I1,), policy="Never"), [waiting("i", last=ended(1)), waiting("a")], BAD),
    "an init container failed and restarts": (pod(A, init=(I1,)), [exited("i", 1), waiting("a")], P),
    "an init container has completed": (pod(A, init=(I1,)), [exited("i"), running("a")], R),
    "an init container has completed and waits for a restart": (
        pod(A, init=(I1,)), [waiting("i", last=ended(0)), running("a")], R),
    "a sidecar starts": (pod(A, init=(S,)), [running("s", started=False), waiting("a", last=ended(0))], P),
    "a sidecar runs beside the rest": (pod(A, init=(S,)), [running("s"), running("a")], R),
    "a sidecar still runs after the rest": (pod(A, init=(S,), policy="Never"), [running("s"), exited("a")], R),
    "a stopped sidecar has no effect": (pod(A, init=(S,), policy="Never"), [exited("s", 1), exited("a")], OK),
    "a sidecar that waits for its restart has no effect": (
        pod(A, init=(S,)), [waiting("s", last=ended(1)), running("a")], R),
    "a sidecar that never started keeps the pod pending": (pod(A, init=(S,)), [waiting("s"), running("a")], P),
    "an unknown sidecar keeps the pod pending": (pod(A, init=(S,)), [running("a")], P),
    "the first of two statuses of one name counts": (pod(A), [running("a"), waiting("a")], R),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, statuses, expected", CASES.values(), ids=CASES.keys())
def test_phase(given_pod: Pod, statuses: list[ContainerStatus], expected: Phase) -> None:
    assert phase_of(given_pod, statuses, pod_is_terminal=False, initialized=False) == expected


ENDED = {
    "nothing restarts in a terminal pod: success": (pod(A), [exited("a")], OK),
    "nothing restarts in a terminal pod: failure": (pod(A), [exited("a", 1)], BAD),
    "a static pod with Always never completes": (pod(A, source="file"), [exited("a")], R),
    "a static pod with Never completes": (pod(A, source="file", policy="Never"), [exited("a")], OK),
    "a running container counts as running": (pod(A), [running("a")], R),
    "a container that never started keeps the pod pending": (pod(A), [waiting("a")], P),
}


@pytest.mark.parametrize("given_pod, statuses, expected", ENDED.values(), ids=ENDED.keys())
def test_phase_of_a_terminal_pod(given_pod: Pod, statuses: list[ContainerStatus], expected: Phase) -> None:
    assert phase_of(given_pod, statuses, pod_is_terminal=True, initialized=True) == expected


def test_a_restarting_sidecar_does_not_make_an_initialized_pod_pending() -> None:
    statuses = [running("s", started=False), running("a")]
    assert phase_of(pod(A, init=(S,)), statuses, pod_is_terminal=False, initialized=True) == R
    assert phase_of(pod(A, init=(S,)), statuses, pod_is_terminal=False, initialized=False) == P


Make = Callable[[str], ContainerStatus]
EVERY_STANDING: list[Make] = [
    nothing,
    waiting,
    running,
    exited,
    lambda name: exited(name, 1),
    lambda name: waiting(name, last=ended(0)),
]


@pytest.mark.parametrize("pod_is_terminal", [False, True])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_pod_succeeds_only_if_every_regular_container_exited_with_0(policy: str, pod_is_terminal: bool) -> None:
    every = [pod(A, B, policy=policy), pod(A, B, init=(S,), policy=policy), pod(A, B, init=(I1,), policy=policy)]
    for each, (of_a, of_b, of_init) in product(every, product(EVERY_STANDING, repeat=3)):
        a, b = of_a("a"), of_b("b")
        phase = phase_of(each, [a, b, of_init("s"), of_init("i")], pod_is_terminal=pod_is_terminal, initialized=True)
        well = all(status.state.terminated and status.state.terminated.exit_code == 0 for status in (a, b))
        assert phase != OK or well
        assert not (pod_is_terminal and well and not each.spec.init_containers) or phase == OK


@given(pods(), some_statuses("a", "b", "i", "j"), st.booleans(), st.booleans())
def test_a_pod_with_a_running_regular_container_does_not_succeed(
    given_pod: Pod, statuses: tuple[ContainerStatus, ...], pod_is_terminal: bool, initialized: bool
) -> None:
    phase = phase_of(given_pod, statuses, pod_is_terminal=pod_is_terminal, initialized=initialized)
    runs = any(status.name in "ab" and status.state.running for status in statuses)
    assert not (runs and phase == OK)


@pytest.mark.parametrize("phase", list(Phase))
def test_terminal_phases(phase: Phase) -> None:
    assert is_terminal(phase) == (phase in (OK, BAD))
    assert not is_terminal(None)
