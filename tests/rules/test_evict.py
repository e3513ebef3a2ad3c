import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.rules.evict import (
    PAST_DEADLINE,
    PREEMPTED,
    Eviction,
    deadline_eviction,
    evicted_status,
    shortage_eviction,
)
from podkeeper.rules.status.conditions import find_condition
from tests.rules.status.statuses import NOON, NOW, T0, condition, later, pod


def timed_pod(deadline: int | None, start: str | None) -> Pod:
    return pod(status=PodStatus(start_time=start), deadline=deadline)


DEADLINES: dict[str, tuple[int | None, str | None, PodStatus | None, float, bool]] = {
    "no deadline": (None, NOON, None, 1e6, False),
    "not started": (60, None, None, 1e6, False),
    "just before the deadline": (60, NOON, None, 59.999, False),
    "exactly at the deadline": (60, NOON, None, 60, True),
    "a deadline of zero": (0, NOON, None, 0, True),
    "our own start time takes precedence over that of the API": (60, T0, PodStatus(start_time=NOON), 59, False),
    "our status without a start time takes precedence, too": (60, NOON, PodStatus(), 60, False),
    "a clock that was set back": (60, NOON, None, -1e6, False),
}


@pytest.mark.parametrize("deadline, start, published, after, exceeded", DEADLINES.values(), ids=DEADLINES.keys())
def test_active_deadline(
    deadline: int | None, start: str | None, published: PodStatus | None, after: float, exceeded: bool
) -> None:
    expected = PAST_DEADLINE if exceeded else None
    assert deadline_eviction(timed_pod(deadline, start), published, later(after)) == expected


@given(st.integers(0, 10**6), st.floats(0, 10**6), st.floats(0, 10**6))
def test_an_exceeded_deadline_stays_exceeded(deadline: int, first: float, then: float) -> None:
    given_pod = timed_pod(deadline, NOON)
    if deadline_eviction(given_pod, None, later(first)) is not None:
        assert deadline_eviction(given_pod, None, later(first + then)) is not None


def test_an_evicted_pod_fails_with_reason_and_message() -> None:
    status = evicted_status(pod(), PodStatus(phase="Running"), PAST_DEADLINE, NOW)
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
    assert status.message == "Pod was active on the node longer than the specified deadline"
    assert status.conditions is None


@pytest.mark.parametrize("eviction", [PREEMPTED, shortage_eviction("no room", by_own_limits=False)])
def test_an_eviction_that_the_pod_did_not_cause_is_a_disruption(eviction: Eviction) -> None:
    status = evicted_status(pod(generation=3), PodStatus(phase="Running"), eviction, NOW)
    found = find_condition(status.conditions, "DisruptionTarget")
    assert found is not None
    assert (found.status, found.reason, found.message) == ("True", "TerminationByKubelet", eviction.disruption)
    assert (found.observed_generation, found.last_transition_time) == (3, NOON)


def test_a_pod_that_exceeds_its_own_limits_gets_no_disruption_condition() -> None:
    eviction = shortage_eviction("too much", by_own_limits=True)
    status = evicted_status(pod(), PodStatus(), eviction, NOW)
    assert (status.reason, status.message, status.conditions) == ("Evicted", "too much", None)


def test_an_existing_disruption_condition_keeps_its_time() -> None:
    before = PodStatus(conditions=(condition("DisruptionTarget", since=T0),))
    status = evicted_status(pod(), before, PREEMPTED, NOW)
    found = find_condition(status.conditions, "DisruptionTarget")
    assert found is not None
    assert found.last_transition_time == T0


def test_an_evicted_pod_that_succeeded_meanwhile_fails() -> None:
    assert evicted_status(pod(), PodStatus(phase="Succeeded"), PREEMPTED, NOW).phase == "Failed"
