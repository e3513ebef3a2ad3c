import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.rules.evict import (
    PAST_DEADLINE,
    PREEMPTED,
    SHUT_DOWN,
    Eviction,
    deadline_eviction,
    evicted_status,
    shortage_eviction,
)
from podkeeper.rules.status.conditions import find_condition
from tests.rules.statuses import NOON, NOW, T0, condition, later, pod


def timed_pod(deadline: int | None, start: str | None) -> Pod:
    given_pod = pod(status=PodStatus(start_time=start))
    return replace(given_pod, spec=replace(given_pod.spec, active_deadline_seconds=deadline))


DEADLINES: dict[str, tuple[int | None, str | None, PodStatus | None, float, bool]] = {
    "no deadline": (None, NOON, None, 1e6, False),
    "not started": (60, None, None, 1e6, False),
    "a moment too early": (60, NOON, None, 59.999, False),
    "exactly on time": (60, NOON, None, 60, True),
    "a deadline of nothing": (0, NOON, None, 0, True),
    "our own start time outranks the API's": (60, T0, PodStatus(start_time=NOON), 59, False),
    "our status without a start time outranks the API's, too": (60, NOON, PodStatus(), 60, False),
    "a clock that went back": (60, NOON, None, -1e6, False),
}


@pytest.mark.parametrize("deadline, start, published, after, over", DEADLINES.values(), ids=DEADLINES.keys())
def test_active_deadline(
    deadline: int | None, start: str | None, published: PodStatus | None, after: float, over: bool
) -> None:
    expected = PAST_DEADLINE if over else None
    assert deadline_eviction(timed_pod(deadline, start), published, later(after)) == expected


@given(st.integers(0, 10**6), st.floats(0, 10**6), st.floats(0, 10**6))
def test_a_deadline_once_exceeded_stays_so(deadline: int, first: float, then: float) -> None:
    given_pod = timed_pod(deadline, NOON)
    if deadline_eviction(given_pod, None, later(first)) is not None:
        assert deadline_eviction(given_pod, None, later(first + then)) is not None


def test_an_evicted_pod_fails_and_says_why() -> None:
    status = evicted_status(pod(), PodStatus(phase="Running"), PAST_DEADLINE, NOW)
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
    assert status.message == "Pod was active on the node longer than the specified deadline"
    assert status.conditions is None


@pytest.mark.parametrize("eviction", [PREEMPTED, SHUT_DOWN, shortage_eviction("no room", by_own_limits=False)])
def test_an_eviction_that_is_not_the_pods_fault_is_a_disruption(eviction: Eviction) -> None:
    status = evicted_status(pod(generation=3), PodStatus(phase="Running"), eviction, NOW)
    found = find_condition(status.conditions, "DisruptionTarget")
    assert found is not None
    assert (found.status, found.reason, found.message) == ("True", "TerminationByKubelet", eviction.disruption)
    assert (found.observed_generation, found.last_transition_time) == (3, NOON)


def test_a_pod_beyond_its_own_limits_is_not_disrupted() -> None:
    eviction = shortage_eviction("too much", by_own_limits=True)
    status = evicted_status(pod(), PodStatus(), eviction, NOW)
    assert (status.reason, status.message, status.conditions) == ("Evicted", "too much", None)


def test_a_disruption_that_is_known_keeps_its_time() -> None:
    before = PodStatus(conditions=(condition("DisruptionTarget", since=T0),))
    status = evicted_status(pod(), before, PREEMPTED, NOW)
    found = find_condition(status.conditions, "DisruptionTarget")
    assert found is not None
    assert found.last_transition_time == T0


@pytest.mark.parametrize("eviction, phase", [(SHUT_DOWN, "Succeeded"), (PREEMPTED, "Failed")])
def test_only_a_shutdown_spares_success(eviction: Eviction, phase: str) -> None:
    assert evicted_status(pod(), PodStatus(phase="Succeeded"), eviction, NOW).phase == phase
