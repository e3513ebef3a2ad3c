"""When the node itself ends a pod: its own deadline, the reasons shown, and what the pod's status says then.

A pod, what is published of it and the time come in; an `Eviction`, or None, goes out, and the status of
a pod that is evicted. A pod without a start time has not begun to use up its deadline. The Go ancestors
are pkg/kubelet/active_deadline.go and what pkg/kubelet/{eviction,preemption,nodeshutdown} write into a
pod that they kill.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.times import format_time, instant
from podkeeper.rules.phase import Phase
from podkeeper.rules.status.conditions import disruption_condition, updated_condition

DEADLINE_EXCEEDED = "DeadlineExceeded"
"""The reason of a pod (and of its event) that was active for too long."""

EVICTED = "Evicted"
"""The reason of a pod that made room on a node short of something."""

PREEMPTING = "Preempting"
"""The reason of a pod that made room for a critical one."""

NODE_SHUTDOWN = "Terminated"
"""The reason of a pod that ended with its node."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Some part of the agent wants a pod gone; this is what its status says of that."""

    reason: str
    message: str
    disruption: str = ""  # the message of the DisruptionTarget condition; "": the pod itself is to blame
    spares_success: bool = False  # a pod that succeeded meanwhile stays so


PAST_DEADLINE = Eviction(DEADLINE_EXCEEDED, "Pod was active on the node longer than the specified deadline")
PREEMPTED = Eviction(
    PREEMPTING,
    "Preempted in order to admit critical pod",
    disruption="Pod was preempted by Kubelet to accommodate a critical pod.",
)
SHUT_DOWN = Eviction(
    NODE_SHUTDOWN,
    "Pod was terminated in response to imminent node shutdown.",
    disruption="Pod was terminated in response to imminent node shutdown.",
    spares_success=True,
)


def shortage_eviction(message: str, *, by_own_limits: bool) -> Eviction:
    """The end of a pod on a node that runs short, or that went beyond its own limits on local storage."""
    return Eviction(EVICTED, message, disruption="" if by_own_limits else message)


def deadline_of(pod: Pod, published: PodStatus | None) -> datetime | None:
    """Until when a pod may be active; None: it has no deadline, or has not started. `published`: as below."""
    deadline_seconds = pod.spec.active_deadline_seconds
    started = instant((pod.status if published is None else published).start_time)
    if deadline_seconds is None or started is None:
        return None
    try:
        return started + timedelta(seconds=deadline_seconds)
    except OverflowError:
        return None


def deadline_eviction(pod: Pod, published: PodStatus | None, now: datetime) -> Eviction | None:
    """The end of a pod that was active for as long as it may; `published` is our own last status, if any."""
    deadline = deadline_of(pod, published)
    return None if deadline is None or now < deadline else PAST_DEADLINE


def evicted_status(pod: Pod, status: PodStatus, eviction: Eviction, now: datetime) -> PodStatus:
    """The status of a pod that is being evicted."""
    succeeded = eviction.spares_success and status.phase == Phase.SUCCEEDED
    status = replace(
        status,
        phase=Phase.SUCCEEDED if succeeded else Phase.FAILED,
        reason=eviction.reason,
        message=eviction.message,
    )
    if not eviction.disruption:
        return status
    disruption = disruption_condition(pod, eviction.disruption)
    return replace(status, conditions=updated_condition(status.conditions, disruption, format_time(now)))
