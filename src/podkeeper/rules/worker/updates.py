"""What the workers are told: one update of one pod, and how somebody asks for a pod's end.

The Go ancestors are `UpdatePodOptions`, `KillPodOptions` and `killPodNow` in pkg/kubelet/pod_workers.go.
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
"""Gives a killed pod's status its last touch, e.g. the reason of an eviction."""


class Signal(Protocol):
    """Somebody waits for this. An `asyncio.Event` is one; these rules only carry it."""

    def set(self) -> None:
        """Wake whoever waits."""


class UpdateType(StrEnum):
    """Why the workers are told about a pod."""

    CREATE = "create"  # a source wants it
    UPDATE = "update"  # its source changed it
    SYNC = "sync"  # nothing changed; look after it again
    KILL = "kill"  # somebody wants it gone


class KillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a pod is to end. Only what is ending listens to them."""

    evict: bool = False
    grace_override_seconds: int | None = None
    completed: Signal | None = None
    status_function: StatusFunction | None = None


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """One update of one pod: as configured, or (`running_pod` alone) as only the runtime knows it."""

    type: UpdateType
    pod: Pod | None = None
    mirror_pod: Pod | None = None
    running_pod: PodRecord | None = None  # ignored beside `pod`
    kill: KillOptions | None = None
    start_time: float | None = None  # monotonic; when the news reached the agent

    @property
    def subject(self) -> Pod | PodRecord:
        """Whom it is about."""
        subject = self.pod or self.running_pod
        if subject is None:
            raise ValueError(f"cannot tell whom the {self.type} update is about: it has neither pod nor running_pod")
        return subject

    @property
    def uid(self) -> PodUID:
        """The UID of whom it is about."""
        match self.subject:
            case Pod(metadata=metadata):
                return PodUID(metadata.uid or "")
            case PodRecord(uid=uid):
                return PodUID(uid)


class KillRequest(msgspec.Struct, frozen=True):
    """A kill somebody waits for: what to tell the workers, how long to wait, what to record when that was in vain."""

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
    """Ask for a pod's end, as the eviction and the shutdown managers do.

    The wait needs its limit: some ends never fire `completed` (a static pod that had not started, for one).
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
