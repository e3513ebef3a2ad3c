"""Events that change the state of a pod worker, and orders for its shell.

Events are updates, housekeeping rounds and the progress of syncs. `step` returns orders. The shell executes them
in their order and receives nothing else. "Status" is the pod's record of the runtime here, not the API status.
"""

import msgspec

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.timing import BackoffRemaining, RetryDelay
from podkeeper.rules.worker.updates import Signal, StatusFunction, Update, UpdateType

# Events.


class Updated(msgspec.Struct, frozen=True):
    """The pod was updated. `runtime` is its record in the cache. None: the cache may lack containers of the pod."""

    update: Update
    runtime: PodRecord | None = None


class StartAllowed(msgspec.Struct, frozen=True):
    """No other static pod with the same full name comes first."""


class StartDeferred(msgspec.Struct, frozen=True):
    """Another static pod with the same full name comes first."""


class StatusRead(msgspec.Struct, frozen=True):
    """The sync has read a status that is new enough."""


class StatusUnreadable(msgspec.Struct, frozen=True):
    """The sync could not read the status, and has ended."""

    error: str


class Synced(msgspec.Struct, frozen=True):
    """The sync function succeeded. `is_terminal`: the pod has completed (only after `SyncPod`)."""

    at: float
    is_terminal: bool = False


class SyncFailed(msgspec.Struct, frozen=True):
    """The sync failed or was cancelled."""

    at: float
    retry_delay: RetryDelay | BackoffRemaining = RetryDelay.AFTER_ERROR


class HousekeepingRan(msgspec.Struct, frozen=True):
    """A housekeeping round ran. `desired`: a source still has the pod."""

    desired: bool


class RetryDue(msgspec.Struct, frozen=True):
    """The retry of a failed sync is due, although no source has the pod. The kubelet waits for housekeeping."""


SyncEvent = StatusRead | StatusUnreadable | Synced | SyncFailed
Event = Updated | StartAllowed | StartDeferred | SyncEvent | HousekeepingRan | RetryDue


# Orders.


class ReadStatus(msgspec.Struct, frozen=True):
    """Begin a sync: read a status newer than this (None: any), then report `StatusRead` or `StatusUnreadable`."""

    newer_than: float | None


class SyncPod(msgspec.Struct, frozen=True):
    """Make the pod run as configured. As after every call, report `Synced` or `SyncFailed`."""

    update_type: UpdateType
    pod: Pod
    mirror_pod: Pod | None


class SyncTerminatingPod(msgspec.Struct, frozen=True):
    """Stop the pod's containers. Without `grace_seconds`, the grace period of the spec applies."""

    pod: Pod
    grace_seconds: int | None
    status_function: StatusFunction | None


class SyncTerminatingRuntimePod(msgspec.Struct, frozen=True):
    """Stop the containers of a pod that only the runtime has."""

    running_pod: PodRecord


class SyncTerminatedPod(msgspec.Struct, frozen=True):
    """Clean up the pod's volumes, cgroup and other resources."""

    pod: Pod


class Cancel(msgspec.Struct, frozen=True):
    """Cancel the current sync. Its outcome is still reported and counts."""


class Enqueue(msgspec.Struct, frozen=True):
    """Sync the pod again after this delay, unless an event comes first. The shell adds jitter."""

    delay_seconds: float


class Complete(msgspec.Struct, frozen=True):
    """Notify the callers that wait until the pod's containers have stopped."""

    signals: tuple[Signal, ...]


class RecordEvent(msgspec.Struct, frozen=True):
    """Record a Kubernetes event about the pod."""

    event: PodEvent


class RequestStart(msgspec.Struct, frozen=True):
    """Check whether the waiting pod may start, then send `StartAllowed` or `StartDeferred`."""


Call = SyncPod | SyncTerminatingPod | SyncTerminatingRuntimePod | SyncTerminatedPod
Order = ReadStatus | Call | Cancel | Enqueue | Complete | RecordEvent  # for the shell


class Step(msgspec.Struct, frozen=True):
    """The next state and the orders. `WorkerTable` answers `RequestStart` itself."""

    state: State
    orders: tuple[Order | RequestStart, ...] = ()


class IllegalStep(AssertionError):
    """The shell reported an event that is impossible in this state. This is a bug in podkeeper."""
