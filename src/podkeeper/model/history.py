"""History events: what happened to a pod, as typed values.

Engine modules add them to `engine.history`. `app.timeline` turns them into words. Texts inside the values come from
the outside (messages of events and errors) or name a worker state.
"""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Moved:
    """The pod's worker changed its state. States are in words, such as `terminating (deleted)`."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SyncStarted:
    kind: str  # of sync: `sync`, `terminating`, ...
    update_type: str  # why it runs


class SyncResult(Enum):
    DONE = auto()
    POD_ENDED = auto()  # the sync found that the pod has reached a terminal phase
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class SyncEnded:
    result: SyncResult


@dataclass(frozen=True, slots=True)
class SyncError:
    message: str


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """The next sync is due after a delay. Only the latest one matters."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class EventRecorded:
    """A Kubernetes Event about the pod."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StatusChanged:
    phase: str
    ready: bool


@dataclass(frozen=True, slots=True)
class PodRejected:
    """Admission rejected the pod."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodHeld:
    """The pod waits until other pods have been killed to make room for it."""

    victims: int


HistoryEvent = (
    Moved | SyncStarted | SyncEnded | SyncError | RetryScheduled | EventRecorded | StatusChanged | PodRejected | PodHeld
)
