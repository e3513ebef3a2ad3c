"""How long one container may take to stop, and how hook, turn and signal share that time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Container, Pod, PodSpec, Probe
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.rules.container_grace import (
    MIN_STOP_SECONDS,
    GraceBudget,
    KillReason,
    container_grace_seconds,
    grace_budget,
)


def pod(spec_grace: int | None = None, deletion_grace: int | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(deletion_grace_period_seconds=deletion_grace),
        spec=PodSpec(termination_grace_period_seconds=spec_grace),
    )


def container(liveness: int | None = None, startup: int | None = None) -> Container:
    return Container(
        liveness_probe=Probe(termination_grace_period_seconds=liveness),
        startup_probe=Probe(termination_grace_period_seconds=startup),
    )


CASES = {
    "the spec's grace": (pod(30), container(), KillReason.UNKNOWN, 30),
    "none at all is the least": (pod(), container(), KillReason.UNKNOWN, 2),
    "an explicit zero stays a zero": (pod(0), container(), KillReason.UNKNOWN, 0),
    "a failed liveness probe brings its own": (pod(30), container(5, 6), KillReason.LIVENESS_PROBE, 5),
    "a failed startup probe brings its own": (pod(30), container(5, 6), KillReason.STARTUP_PROBE, 6),
    "it may be longer than the spec's": (pod(30), container(90), KillReason.LIVENESS_PROBE, 90),
    "it may be zero": (pod(30), container(0), KillReason.LIVENESS_PROBE, 0),
    "a probe without a grace leaves it to the spec": (pod(30), container(5), KillReason.STARTUP_PROBE, 30),
    "a container without the probe too": (pod(30), Container(), KillReason.STARTUP_PROBE, 30),
    "probes do not matter for other reasons": (pod(30), container(5, 6), KillReason.SPEC_CHANGED, 30),
    "probes do not matter without the spec's": (pod(), container(5, 6), KillReason.LIVENESS_PROBE, 2),
    "a deletion's goes before all": (pod(30, 7), container(5, 6), KillReason.LIVENESS_PROBE, 7),
    "even a zero": (pod(30, 0), container(5, 6), KillReason.LIVENESS_PROBE, 0),
}  # fmt: skip


@pytest.mark.parametrize("of_pod, spec, reason, expected", CASES.values(), ids=CASES.keys())
def test_grace_of_one_container(of_pod: Pod, spec: Container, reason: KillReason, expected: int) -> None:
    assert container_grace_seconds(of_pod, spec, reason) == expected
    assert grace_budget(of_pod, spec, reason) == GraceBudget(expected)


def test_an_override_goes_before_everything() -> None:
    assert grace_budget(pod(30, 7), container(5), KillReason.LIVENESS_PROBE, override_seconds=0) == GraceBudget(0)


def test_hook_and_turn_and_signal_share_the_grace() -> None:
    budget = GraceBudget(30).after(12.9)
    assert (budget.seconds, budget.stop_seconds) == (18, 18)
    assert budget.after(18.2) == GraceBudget(0)


def test_an_exhausted_budget_leaves_no_time_but_the_least() -> None:
    assert GraceBudget(0).exhausted
    assert not GraceBudget(1).exhausted
    assert GraceBudget(5).after(9).stop_seconds == MIN_STOP_SECONDS


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 100_000), st.lists(st.floats(0, 1000), max_size=5))
def test_spending_never_adds_time_and_never_charges_more_than_was_spent(grace: int, steps: list[float]) -> None:
    budget = GraceBudget(grace)
    for step in steps:
        left = budget.after(step)
        assert budget.seconds - step <= left.seconds <= budget.seconds
        budget = left
    assert budget.stop_seconds >= MIN_STOP_SECONDS
