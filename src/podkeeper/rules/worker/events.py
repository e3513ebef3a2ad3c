"""What happens to a worker, and what it orders to be done about it.

Events come from the owner of the workers: updates and housekeeping from outside, the progress of a
pass from whoever makes it. Orders are all that the shell is told; it executes them in their order.
"""

import msgspec

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.pauses import Backoff, Pause
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.updates import Signal, StatusFunction, Update, UpdateType

# Events.


class Told(msgspec.Struct, frozen=True):
    """Somebody updates the pod. `runtime`: what the cache holds of it now; None when it cannot tell."""

    update: Update
    runtime: PodRecord | None = None


class MayStart(msgspec.Struct, frozen=True):
    """It is the waiting pod's turn."""


class MustWait(msgspec.Struct, frozen=True):
    """It is another's turn."""


class StatusRead(msgspec.Struct, frozen=True):
    """The pass has the fresh status it waited for."""


class StatusUnreadable(msgspec.Struct, frozen=True):
    """The pass could not get a fresh status, and ends."""

    error: str


class Passed(msgspec.Struct, frozen=True):
    """The sync function succeeded. `ended`: the pod has come to its natural end (after a sync only)."""

    at: float
    ended: bool = False


class Failed(msgspec.Struct, frozen=True):
    """The pass failed, or was cut short."""

    at: float
    pause: Pause | Backoff = Pause.AFTER_ERROR


class Swept(msgspec.Struct, frozen=True):
    """Housekeeping came by. `desired`: some source still wants the pod."""

    desired: bool


class RetryDue(msgspec.Struct, frozen=True):
    """A pass that failed is to be repeated, although no source wants the pod. The kubelet waits for housekeeping."""


PassEvent = StatusRead | StatusUnreadable | Passed | Failed
Event = Told | MayStart | MustWait | PassEvent | Swept | RetryDue


# Orders.


class ReadStatus(msgspec.Struct, frozen=True):
    """Begin a pass: get a status newer than this (None: any), then say `StatusRead` or `StatusUnreadable`."""

    newer_than: float | None


class SyncPod(msgspec.Struct, frozen=True):
    """Make the pod run as configured; then say `Passed` or `Failed`, as after every call."""

    update_type: UpdateType
    pod: Pod
    mirror_pod: Pod | None


class SyncTerminatingPod(msgspec.Struct, frozen=True):
    """Stop the pod's containers. Grace None: nobody named one, the spec's counts."""

    pod: Pod
    grace_seconds: int | None
    status_function: StatusFunction | None


class SyncTerminatingRuntimePod(msgspec.Struct, frozen=True):
    """Stop the containers of a pod that only the runtime knows."""

    running_pod: PodRecord


class SyncTerminatedPod(msgspec.Struct, frozen=True):
    """Give back what the pod still holds."""

    pod: Pod


class Cancel(msgspec.Struct, frozen=True):
    """Cut the pass under way short; its outcome counts whatever it is."""


class Enqueue(msgspec.Struct, frozen=True):
    """Come back to the pod after this delay (nominal: jitter is added) unless something happens before."""

    delay_seconds: float


class Complete(msgspec.Struct, frozen=True):
    """Wake who waited for the pod's containers to stop."""

    signals: tuple[Signal, ...]


class Record(msgspec.Struct, frozen=True):
    """Record an event about the pod."""

    event: PodEvent


class AskForTurn(msgspec.Struct, frozen=True):
    """Find out whether it is the waiting pod's turn, then say `MayStart` or `MustWait`."""


Call = SyncPod | SyncTerminatingPod | SyncTerminatingRuntimePod | SyncTerminatedPod
Order = ReadStatus | Call | Cancel | Enqueue | Complete | Record  # for the shell


class Step(msgspec.Struct, frozen=True):
    """Where an event takes a worker, and what is to be done; `Workers` itself sees to the turns."""

    state: State
    orders: tuple[Order | AskForTurn, ...] = ()


class IllegalStep(AssertionError):
    """The shell reported something that cannot have happened: a bug of ours."""
