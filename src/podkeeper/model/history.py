"""History events: what happened to a pod, as typed values.

Engine modules add them to `engine.history`. `app.history_words` turns them into words. Only messages of events and
errors are texts. They are msgspec structs, because every sync compares and hashes several of them (decision 5).
"""

from enum import Enum, StrEnum, auto

import msgspec


class WorkerState(StrEnum):
    """The states of a pod worker (`rules.worker.states`) by name."""

    UNKNOWN = "unknown"  # no worker has the pod
    WAITING = "waiting"
    SYNCING = "syncing"
    TERMINATION_REQUESTED = "termination requested"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FINISHED = "finished"
    NEVER_STARTED = "never started"


class Cause(StrEnum):
    """Why a pod terminates. The first cause stays, but becomes ORPHANED if no source has the pod any more."""

    COMPLETED = "completed"  # its containers completed, or its phase is terminal
    KILLED = "killed"  # removed from its source, or killed by the agent
    EVICTED = "evicted"  # the node needs its resources, so its content may be removed at once
    DELETED = "deleted"  # deleted in the API
    ORPHANED = "orphaned"  # no source has it


class PodState(msgspec.Struct, frozen=True):
    """A worker's state and, while the pod stops and afterwards, the cause."""

    worker: WorkerState
    cause: Cause | None = None

    def __str__(self) -> str:
        return self.worker if self.cause is None else f"{self.worker} ({self.cause})"


UNKNOWN_STATE = PodState(WorkerState.UNKNOWN)


class Moved(msgspec.Struct, frozen=True):
    """The pod's worker changed its state."""

    before: PodState
    after: PodState


class SyncKind(Enum):
    """The four sync functions."""

    SYNC = auto()
    TERMINATING = auto()
    TERMINATING_RUNTIME = auto()
    TERMINATED = auto()


class SyncStarted(msgspec.Struct, frozen=True):
    kind: SyncKind
    update_type: StrEnum  # why the sync runs: a `rules.worker.updates.UpdateType`


class SyncResult(Enum):
    DONE = auto()
    POD_ENDED = auto()  # the sync found that the pod has reached a terminal phase
    CANCELLED = auto()


class SyncEnded(msgspec.Struct, frozen=True):
    result: SyncResult


class SyncError(msgspec.Struct, frozen=True):
    message: str


class RetryScheduled(msgspec.Struct, frozen=True):
    """The next sync is due after a delay. Only the latest one matters."""

    delay_seconds: float


class EventRecorded(msgspec.Struct, frozen=True):
    """A Kubernetes Event about the pod."""

    reason: str
    message: str


class StatusChanged(msgspec.Struct, frozen=True):
    phase: str
    ready: bool


class PodRejected(msgspec.Struct, frozen=True):
    """Admission rejected the pod."""

    reason: str
    message: str


class PodHeld(msgspec.Struct, frozen=True):
    """The pod waits until other pods have been killed to make room for it."""

    victims: int


HistoryEvent = (
    Moved | SyncStarted | SyncEnded | SyncError | RetryScheduled | EventRecorded | StatusChanged | PodRejected | PodHeld
)
