"""Updates for the pod workers: one update of one pod, and requests to kill a pod.

Kubelet counterpart: `UpdatePodOptions`, `KillPodOptions` and `killPodNow` in pkg/kubelet/pod_workers.go.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.grace import kill_pod_timeout

StatusFunction = Callable[[PodStatus], PodStatus]
"""Changes the status of a killed pod, for example adds the reason of an eviction."""


class Signal(Protocol):
    """Notifies a waiting caller, for example an `asyncio.Event`. The rules never call it."""

    def set(self) -> None:
        """Notify the waiting caller."""


class UpdateType(StrEnum):
    """The reason for an update."""

    CREATE = "create"  # a source added the pod
    UPDATE = "update"  # its source changed the pod
    SYNC = "sync"  # nothing changed, sync it again
    KILL = "kill"  # the pod must stop


class KillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a pod is killed. Ignored for pods that do not terminate."""

    evict: bool = False
    grace_override_seconds: int | None = None
    completed: Signal | None = None
    status_function: StatusFunction | None = None


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """One update of one pod. `running_pod` without `pod`: only the runtime has the pod."""

    type: UpdateType
    pod: Pod | None = None
    mirror_pod: Pod | None = None
    running_pod: PodRecord | None = None  # ignored beside `pod`
    kill: KillOptions | None = None
    start_time: float | None = None  # monotonic time at which the agent received the update

    @property
    def subject(self) -> Pod | PodRecord:
        subject = self.pod or self.running_pod
        if subject is None:
            raise ValueError(f"cannot create an update of type {self.type}: expected pod or running_pod, both are None")
        return subject

    @property
    def uid(self) -> PodUID:
        match self.subject:
            case Pod(metadata=metadata):
                return PodUID(metadata.uid or "")
            case PodRecord(uid=uid):
                return PodUID(uid)


class KillRequest(msgspec.Struct, frozen=True):
    """A kill with a waiting caller: the update, the time limit, and the event to record if it expires."""

    update: Update
    timeout_seconds: int
    on_timeout: PodEvent


def kill_request(
    pod: Pod,
    completed: Signal,
    *,
    evict: bool = False,
    grace_override_seconds: int | None = None,
    status_function: StatusFunction | None = None,
) -> KillRequest:
    """Return a request to kill a pod, as the eviction manager makes it.

    The time limit is needed because some pods never set `completed`, for example a static pod that had not started.
    """
    return KillRequest(
        Update(
            type=UpdateType.KILL,
            pod=pod,
            kill=KillOptions(
                evict=evict,
                grace_override_seconds=grace_override_seconds,
                completed=completed,
                status_function=status_function,
            ),
        ),
        kill_pod_timeout(grace_override_seconds, pod.spec.termination_grace_period_seconds),
        PodEvent(
            EventType.WARNING,
            "ExceededGracePeriod",
            "Container runtime did not kill the pod within specified grace period.",
            pod.metadata.uid or "",
        ),
    )
