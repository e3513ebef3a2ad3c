"""The grace period of one container, and how hook, wait and signal share it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Container, Pod, Probe
from podkeeper.rules.container.grace import (
    MIN_STOP_SECONDS,
    GraceBudget,
    KillReason,
    container_grace_seconds,
    grace_budget,
)
from podkeeper.testing import build
from podkeeper.testing.build import pod


def container_with(liveness: int | None = None, startup: int | None = None) -> Container:
    """A container whose probes have these grace periods."""
    return build.container(
        liveness=Probe(termination_grace_period_seconds=liveness),
        startup=Probe(termination_grace_period_seconds=startup),
    )


CASES = {
    "the spec's grace": (pod(grace=30), container_with(), KillReason.UNKNOWN, 30),
    "no grace period is the minimum": (pod(grace=None), container_with(), KillReason.UNKNOWN, 2),
    "an explicit zero stays a zero": (pod(grace=0), container_with(), KillReason.UNKNOWN, 0),
    "a liveness probe's grace period": (pod(grace=30), container_with(5, 6), KillReason.LIVENESS_PROBE, 5),
    "a startup probe's grace period": (pod(grace=30), container_with(5, 6), KillReason.STARTUP_PROBE, 6),
    "a probe's may be longer than the spec's": (pod(grace=30), container_with(90), KillReason.LIVENESS_PROBE, 90),
    "a probe's may be zero": (pod(grace=30), container_with(0), KillReason.LIVENESS_PROBE, 0),
    "a probe without one uses the spec's": (pod(grace=30), container_with(5), KillReason.STARTUP_PROBE, 30),
    "a container without the probe uses the spec's": (pod(grace=30), Container(), KillReason.STARTUP_PROBE, 30),
    "probes do not matter for other reasons": (pod(grace=30), container_with(5, 6), KillReason.SPEC_CHANGED, 30),
    "a probe's needs one in the spec": (pod(grace=None), container_with(5, 6), KillReason.LIVENESS_PROBE, 2),
    "a deletion's has priority": (pod(grace=30, deletion_grace=7), container_with(5, 6), KillReason.LIVENESS_PROBE, 7),
    "even if it is zero": (pod(grace=30, deletion_grace=0), container_with(5, 6), KillReason.LIVENESS_PROBE, 0),
}  # fmt: skip


@pytest.mark.parametrize("of_pod, spec, reason, expected", CASES.values(), ids=CASES.keys())
def test_grace_of_one_container(of_pod: Pod, spec: Container, reason: KillReason, expected: int) -> None:
    assert container_grace_seconds(of_pod, spec, reason) == expected
    assert grace_budget(of_pod, spec, reason) == GraceBudget(expected)


def test_an_override_has_priority() -> None:
    assert grace_budget(
        pod(grace=30, deletion_grace=7), container_with(5), KillReason.LIVENESS_PROBE, override_seconds=0
    ) == GraceBudget(0)


def test_hook_wait_and_signal_share_the_grace_period() -> None:
    budget = GraceBudget(30).after(12.9)
    assert (budget.seconds, budget.stop_seconds) == (18, 18)
    assert budget.after(18.2) == GraceBudget(0)


def test_an_exhausted_budget_leaves_only_the_minimum() -> None:
    assert GraceBudget(5).after(9).stop_seconds == MIN_STOP_SECONDS


@given(st.integers(0, 100_000), st.lists(st.floats(0, 1000), max_size=5))
def test_spending_never_adds_time_and_never_charges_more_than_was_spent(grace: int, steps: list[float]) -> None:
    budget = GraceBudget(grace)
    for step in steps:
        left = budget.after(step)
        assert budget.seconds - step <= left.seconds <= budget.seconds
        budget = left
    assert budget.stop_seconds >= MIN_STOP_SECONDS
