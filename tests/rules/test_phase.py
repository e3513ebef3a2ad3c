from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.rules.phase import Phase, is_terminal, phase_of
from tests.rules.statuses import (
    container,
    ended,
    exited,
    nothing,
    pod,
    pods,
    running,
    sidecar,
    some_statuses,
    waiting,
)

A, B, I1 = container("a"), container("b"), container("i")
S = sidecar("s")
P, R, OK, BAD = Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED

CASES: dict[str, tuple[Pod, list[ContainerStatus], Phase]] = {
    "nothing known yet": (pod(A), [], P),
    "a container without any state": (pod(A), [nothing("a")], P),
    "a pod without containers waits for ever": (Pod(), [], P),
    "one runs, one is not known": (pod(A, B), [running("a")], P),
    "one runs, one waits for its first start": (pod(A, B), [running("a"), waiting("b")], P),
    "one runs, one waits to run again": (pod(A, B), [running("a"), waiting("b", last=ended(1))], R),
    "one runs, one has failed for good": (pod(A, B, policy="Never"), [running("a"), exited("b", 1)], R),
    "all stopped, all run again": (pod(A, B), [exited("a"), exited("b", 1)], R),
    "all stopped well, none runs again": (pod(A, B, policy="OnFailure"), [exited("a"), exited("b")], OK),
    "one failed and runs again": (pod(A, B, policy="OnFailure"), [exited("a"), exited("b", 1)], R),
    "one failed for good": (pod(A, B, policy="Never"), [exited("a"), exited("b", 1)], BAD),
    "a container's own policy outranks the pod's": (
        pod(container("a", policy="Always"), policy="Never"), [exited("a")], R),
    "a rule lets one exit code run again": (
        pod(container("a", policy="Never", rule=("Restart", 42)), policy="Never"), [exited("a", 42)], R),
    "the rule says nothing about another code": (
        pod(container("a", policy="Never", rule=("Restart", 42)), policy="Never"), [exited("a", 1)], BAD),
    "ended to make room for all containers to start over": (
        pod(A, policy="Never"), [exited("a", 137, reason="RestartingAllContainers")], R),
    "one that waits after a success has not succeeded": (
        pod(A, policy="Never"), [waiting("a", last=ended(0))], BAD),
    "an init container waits": (pod(A, init=(I1,)), [waiting("i"), waiting("a")], P),
    "an init container runs": (pod(A, init=(I1,)), [running("i"), running("a")], P),
    "an init container is unknown": (pod(A, init=(I1,)), [running("a")], P),
    "an init container failed for good": (pod(A, init=(I1,), policy="Never"), [exited("i", 1), waiting("a")], BAD),
    "an init container failed for good and waits": (
        pod(A, init=(I1,), policy="Never"), [waiting("i", last=ended(1)), waiting("a")], BAD),
    "an init container failed and runs again": (pod(A, init=(I1,)), [exited("i", 1), waiting("a")], P),
    "an init container did its work": (pod(A, init=(I1,)), [exited("i"), running("a")], R),
    "an init container did its work and is to do it again": (
        pod(A, init=(I1,)), [waiting("i", last=ended(0)), running("a")], R),
    "a sidecar starts": (pod(A, init=(S,)), [running("s", started=False), waiting("a", last=ended(0))], P),
    "a sidecar runs beside the rest": (pod(A, init=(S,)), [running("s"), running("a")], R),
    "a sidecar outlives the rest": (pod(A, init=(S,), policy="Never"), [running("s"), exited("a")], R),
    "a stopped sidecar says nothing": (pod(A, init=(S,), policy="Never"), [exited("s", 1), exited("a")], OK),
    "a sidecar that waits to run again says nothing": (
        pod(A, init=(S,)), [waiting("s", last=ended(1)), running("a")], R),
    "a sidecar that never started holds the pod up": (pod(A, init=(S,)), [waiting("s"), running("a")], P),
    "a sidecar that nobody knows holds the pod up": (pod(A, init=(S,)), [running("a")], P),
    "the first of two statuses of one name counts": (pod(A), [running("a"), waiting("a")], R),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, statuses, expected", CASES.values(), ids=CASES.keys())
def test_phase(given_pod: Pod, statuses: list[ContainerStatus], expected: Phase) -> None:
    assert phase_of(given_pod, statuses, ended=False, initialized=False) == expected


ENDED = {
    "nothing runs again when the pod has ended: success": (pod(A), [exited("a")], OK),
    "nothing runs again when the pod has ended: failure": (pod(A), [exited("a", 1)], BAD),
    "a static pod never ends by itself": (pod(A, source="file"), [exited("a")], R),
    "a static pod that may not run again does": (pod(A, source="file", policy="Never"), [exited("a")], OK),
    "what still runs, runs": (pod(A), [running("a")], R),
    "what never started never will, but that is not told here": (pod(A), [waiting("a")], P),
}


@pytest.mark.parametrize("given_pod, statuses, expected", ENDED.values(), ids=ENDED.keys())
def test_phase_of_a_pod_that_has_ended(given_pod: Pod, statuses: list[ContainerStatus], expected: Phase) -> None:
    assert phase_of(given_pod, statuses, ended=True, initialized=True) == expected


def test_a_sidecar_that_starts_again_does_not_hold_up_an_initialized_pod() -> None:
    statuses = [running("s", started=False), running("a")]
    assert phase_of(pod(A, init=(S,)), statuses, ended=False, initialized=True) == R
    assert phase_of(pod(A, init=(S,)), statuses, ended=False, initialized=False) == P


Make = Callable[[str], ContainerStatus]
EVERY_STANDING: list[Make] = [
    nothing,
    waiting,
    running,
    exited,
    lambda name: exited(name, 1),
    lambda name: waiting(name, last=ended(0)),
]


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_success_needs_every_regular_container_to_have_exited_with_0(policy: str, is_ended: bool) -> None:
    every = [pod(A, B, policy=policy), pod(A, B, init=(S,), policy=policy), pod(A, B, init=(I1,), policy=policy)]
    for each, (of_a, of_b, of_init) in product(every, product(EVERY_STANDING, repeat=3)):
        a, b = of_a("a"), of_b("b")
        phase = phase_of(each, [a, b, of_init("s"), of_init("i")], ended=is_ended, initialized=True)
        well = all(status.state.terminated and status.state.terminated.exit_code == 0 for status in (a, b))
        assert phase != OK or well
        assert not (is_ended and well and not each.spec.init_containers) or phase == OK


@given(pods(), some_statuses("a", "b", "i", "j"), st.booleans(), st.booleans())
def test_a_running_regular_container_keeps_its_pod_from_succeeding(
    given_pod: Pod, statuses: tuple[ContainerStatus, ...], is_ended: bool, initialized: bool
) -> None:
    phase = phase_of(given_pod, statuses, ended=is_ended, initialized=initialized)
    runs = any(status.name in "ab" and status.state.running for status in statuses)
    assert not (runs and phase == OK)


@pytest.mark.parametrize("phase", list(Phase))
def test_terminal_phases(phase: Phase) -> None:
    assert is_terminal(phase) == (phase in (OK, BAD))
    assert not is_terminal(None)
