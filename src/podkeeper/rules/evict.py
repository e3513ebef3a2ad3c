"""Evictions: pods that the node terminates, with reason and resulting status.

In: a pod, its published status and the time. Out: an `Eviction` or None, and the status of an evicted pod. The
active deadline counts from the start time. Kubelet counterpart: pkg/kubelet/active_deadline.go and the statuses
that pkg/kubelet/{eviction,preemption} write.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.times import format_time, instant
from podkeeper.rules.status.conditions import disruption_condition, updated_condition
from podkeeper.rules.status.phase import Phase

DEADLINE_EXCEEDED = "DeadlineExceeded"
"""The reason of a pod, and of its event, after its active deadline."""

EVICTED = "Evicted"
"""The reason of a pod that was evicted because of node pressure or its own storage limits."""

PREEMPTING = "Preempting"
"""The reason of a pod that was preempted for a critical pod."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Why the node terminates a pod, as its status shows it."""

    reason: str
    message: str
    disruption: str = ""  # message of the DisruptionTarget condition; "" if the pod itself is the cause


PAST_DEADLINE = Eviction(DEADLINE_EXCEEDED, "Pod was active on the node longer than the specified deadline")
PREEMPTED = Eviction(
    PREEMPTING,
    "Preempted in order to admit critical pod",
    disruption="Pod was preempted by Kubelet to accommodate a critical pod.",
)


def shortage_eviction(message: str, *, by_own_limits: bool) -> Eviction:
    """Return the eviction of a pod because of node pressure, or because it exceeded its own storage limits."""
    return Eviction(EVICTED, message, disruption="" if by_own_limits else message)


def deadline_of(pod: Pod, published: PodStatus | None) -> datetime | None:
    """Return the active deadline of a pod. None if it has none or has not started.

    `published` is our own last status, if any. Otherwise the status in the API is used.
    """
    deadline_seconds = pod.spec.active_deadline_seconds
    # As in the kubelet, the start time that this node recorded comes first.
    started = instant((pod.status if published is None else published).start_time)
    if deadline_seconds is None or started is None:
        return None
    try:
        return started + timedelta(seconds=deadline_seconds)
    except OverflowError:
        return None


def deadline_eviction(pod: Pod, published: PodStatus | None, now: datetime) -> Eviction | None:
    """Return the eviction of a pod whose active deadline has passed. `published`: see `deadline_of`."""
    deadline = deadline_of(pod, published)
    return None if deadline is None or now < deadline else PAST_DEADLINE


def evicted_status(pod: Pod, status: PodStatus, eviction: Eviction, now: datetime) -> PodStatus:
    status = replace(
        status,
        phase=Phase.FAILED,
        reason=eviction.reason,
        message=eviction.message,
    )
    if not eviction.disruption:
        return status
    disruption = disruption_condition(pod, eviction.disruption)
    return replace(status, conditions=updated_condition(status.conditions, disruption, format_time(now)))
