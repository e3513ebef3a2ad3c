"""The states of a pod worker. Each state carries only what is true in that state.

    Unknown -> Waiting -> Syncing -> TerminationRequested -> Terminating -> Terminated -> Finished -> Unknown
                  `------- killed before it started ------> NeverStarted ------------------------------^

A pod only moves to the right, until its worker is removed. Most states also have an *activity*: the worker is
idle, reads the pod's status, or runs a sync function. Only a busy worker has a pending update, and at most one.
"Status" is the pod's record of the runtime here, not the API status.

Times are seconds of the loop's monotonic clock. Kubelet counterpart: `podSyncStatus` in
pkg/kubelet/pod_workers.go. The states replace its seven booleans and four times.
"""

import msgspec
from msgspec.structs import replace

from podkeeper.model.history import Cause, PodState, SyncKind, WorkerState
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.updates import Signal, StatusFunction, UpdateType


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one sync: an update as the worker accepted it."""

    update_type: UpdateType
    subject: Pod | PodRecord  # a PodRecord if only the runtime has the pod
    mirror_pod: Pod | None = None
    grace_seconds: int | None = None
    start_time: float | None = None

    def again(self) -> "Work":
        """Return the same work for a repeated sync. Without a new update there is no start time to measure from."""
        return replace(self, update_type=UpdateType.SYNC, mirror_pod=None, start_time=None)


# Activities of a worker.


class Idle(msgspec.Struct, frozen=True):
    """The worker is between two syncs."""

    last: Work | None = None  # None: before the first sync
    last_sync_at: float | None = None


class ReadingStatus(msgspec.Struct, frozen=True):
    """A sync has begun and waits for a pod status that is newer than the last sync."""

    kind: SyncKind
    work: Work
    last_sync_at: float | None = None
    pending: Work | None = None  # the latest update since the sync began


class RunningSync(msgspec.Struct, frozen=True):
    """The sync function runs."""

    kind: SyncKind
    work: Work
    last_sync_at: float | None = None
    pending: Work | None = None


Busy = ReadingStatus | RunningSync
Activity = Idle | Busy


# States of a pod.


class Unknown(msgspec.Struct, frozen=True):
    """No worker has seen the pod, or its worker was removed."""


class Waiting(msgspec.Struct, frozen=True):
    """The pod has not started, because another static pod with the same full name comes first."""

    pending: Work


class Syncing(msgspec.Struct, frozen=True):
    """The pod should run. Containers are started, restarted and probed."""

    activity: Activity


class Termination(msgspec.Struct, frozen=True):
    """How a pod terminates."""

    cause: Cause
    grace_seconds: int | None = None  # None: the pod completed, and no update has set a grace period
    signals: tuple[Signal, ...] = ()  # set when no container runs any more
    status_function: StatusFunction | None = None  # the latest one
    restart_requested: bool = False  # a source added this UID again, so start it from scratch afterwards


class TerminationRequested(msgspec.Struct, frozen=True):
    """The pod must stop, but a sync in progress may still start a container."""

    termination: Termination
    activity: Activity


class Terminating(msgspec.Struct, frozen=True):
    """The pod must stop. No container may start. Running containers are being stopped."""

    termination: Termination
    activity: Activity


class Terminated(msgspec.Struct, frozen=True):
    """No container runs or will start. The resources of the pod are being cleaned up."""

    cause: Cause
    activity: Activity
    restart_requested: bool = False


class Finished(msgspec.Struct, frozen=True):
    """Nothing is left to do. The worker keeps the pod, so that it does not start again."""

    cause: Cause
    pod: Pod | None  # as of the last sync; None if no sync had its configuration
    restart_requested: bool = False


class NeverStarted(msgspec.Struct, frozen=True):
    """A static pod that was killed while it waited for its predecessor. It finished without a sync."""

    cause: Cause
    restart_requested: bool = False


Stopping = TerminationRequested | Terminating  # termination is requested and containers may run
Active = Syncing | Stopping | Terminated  # the states in which a worker runs syncs
Done = Finished | NeverStarted
State = Unknown | Waiting | Active | Done


_WORKER_STATES: dict[type[State], WorkerState] = {
    Unknown: WorkerState.UNKNOWN,
    Waiting: WorkerState.WAITING,
    Syncing: WorkerState.SYNCING,
    TerminationRequested: WorkerState.TERMINATION_REQUESTED,
    Terminating: WorkerState.TERMINATING,
    Terminated: WorkerState.TERMINATED,
    Finished: WorkerState.FINISHED,
    NeverStarted: WorkerState.NEVER_STARTED,
}


def pod_state(state: State) -> PodState:
    """Return a state as the history stores it: its name and cause."""
    worker = _WORKER_STATES[type(state)]
    match state:
        case Unknown() | Waiting() | Syncing():
            return PodState(worker)
        case (
            TerminationRequested(termination=Termination(cause=cause))
            | Terminating(termination=Termination(cause=cause))
        ):
            return PodState(worker, cause)
        case Terminated(cause=cause) | Finished(cause=cause) | NeverStarted(cause=cause):
            return PodState(worker, cause)
