"""What happens to a worker, and what it orders to be done about it.

Events come from the owner of the workers: updates and housekeeping from outside, the progress of a
pass from whoever makes it. Orders are all that the shell is told; it executes them in their order.
"""

from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.pauses import Backoff, Pause
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.updates import Signal, StatusFunction, Update, UpdateType

# Events.


@dataclass(frozen=True, slots=True)
class Told:
    """Somebody updates the pod. `runtime`: what the cache holds of it now; None when it cannot tell."""

    update: Update
    runtime: PodRecord | None = None


@dataclass(frozen=True, slots=True)
class MayStart:
    """It is the waiting pod's turn."""


@dataclass(frozen=True, slots=True)
class MustWait:
    """It is another's turn."""


@dataclass(frozen=True, slots=True)
class StatusRead:
    """The pass has the fresh status it waited for."""


@dataclass(frozen=True, slots=True)
class StatusUnreadable:
    """The pass could not get a fresh status, and ends."""

    error: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The sync function succeeded. `ended`: the pod has come to its natural end (after a sync only)."""

    at: float
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The pass failed, or was cut short."""

    at: float
    pause: Pause | Backoff = Pause.AFTER_ERROR


@dataclass(frozen=True, slots=True)
class Swept:
    """Housekeeping came by. `desired`: some source still wants the pod."""

    desired: bool


PassEvent = StatusRead | StatusUnreadable | Passed | Failed
Event = Told | MayStart | MustWait | PassEvent | Swept


# Orders.


@dataclass(frozen=True, slots=True)
class ReadStatus:
    """Begin a pass: get a status newer than this (None: any), then say `StatusRead` or `StatusUnreadable`."""

    newer_than: float | None


@dataclass(frozen=True, slots=True)
class SyncPod:
    """Make the pod run as configured; then say `Passed` or `Failed`, as after every call."""

    update_type: UpdateType
    pod: Pod
    mirror_pod: Pod | None


@dataclass(frozen=True, slots=True)
class SyncTerminatingPod:
    """Stop the pod's containers. Grace None: nobody named one, the spec's counts."""

    pod: Pod
    grace_seconds: int | None
    status_function: StatusFunction | None


@dataclass(frozen=True, slots=True)
class SyncTerminatingRuntimePod:
    """Stop the containers of a pod that only the runtime knows."""

    running_pod: PodRecord


@dataclass(frozen=True, slots=True)
class SyncTerminatedPod:
    """Give back what the pod still holds."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cut the pass under way short; its outcome counts whatever it is."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Come back to the pod after this delay (nominal: jitter is added) unless something happens before."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Complete:
    """Wake who waited for the pod's containers to stop."""

    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Record an event about the pod."""

    event: PodEvent


@dataclass(frozen=True, slots=True)
class AskForTurn:
    """Find out whether it is the waiting pod's turn, then say `MayStart` or `MustWait`."""


Call = SyncPod | SyncTerminatingPod | SyncTerminatingRuntimePod | SyncTerminatedPod
Order = ReadStatus | Call | Cancel | Enqueue | Complete | Record  # for the shell


@dataclass(frozen=True, slots=True)
class Step:
    """Where an event takes a worker, and what is to be done; `Workers` itself sees to the turns."""

    state: State
    orders: tuple[Order | AskForTurn, ...] = ()


class IllegalStep(AssertionError):
    """The shell reported something that cannot have happened: a bug of ours."""
