"""Where one pod stands with its worker. Each state carries what is true in it, and nothing else.

    Unknown -> Waiting -> Syncing -> TerminationRequested -> Terminating -> Terminated -> Finished -> Unknown
                  `------- killed before it started ------> NeverStarted ------------------------------^

A pod only ever moves right, until its worker is forgotten. What a worker does meanwhile is its
*activity*: idle, reading the pod's status, or calling a sync function. Only in a busy worker can an
update wait, and never more than one.

Instants here are seconds of the loop's monotonic clock. The Go ancestor is `podSyncStatus` in
pkg/kubelet/pod_workers.go, whose seven booleans and four times these states replace.
"""

from enum import Enum, StrEnum, auto

import msgspec
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.updates import Signal, StatusFunction, UpdateType


class Cause(StrEnum):
    """Why a pod ends. The first one stays, except that a pod nobody wants any more counts as gone."""

    COMPLETED = "completed"  # it ran to its end, or its phase says so
    KILLED = "killed"  # removed from its source, or the agent wants it gone
    EVICTED = "evicted"  # the node needs its resources back: its content may go at once
    DELETED = "deleted"  # gracefully, in the API
    ORPHANED = "orphaned"  # no source wants it, or only the runtime ever knew it


class PassKind(Enum):
    """Which of the four sync functions a pass calls."""

    SYNC = auto()
    TERMINATING = auto()
    TERMINATING_RUNTIME = auto()
    TERMINATED = auto()


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass is made with: an update, as the worker took it."""

    update_type: UpdateType
    subject: Pod | PodRecord  # a bare record: no configuration is known, only the runtime has the pod
    mirror_pod: Pod | None = None
    grace_seconds: int | None = None
    start_time: float | None = None

    def again(self) -> "Work":
        """The same once more, of the worker's own accord: nobody's news, so nobody's start time."""
        return replace(self, update_type=UpdateType.SYNC, mirror_pod=None, start_time=None)


# What a worker is doing.


class Idle(msgspec.Struct, frozen=True):
    """Between two passes."""

    last: Work | None = None  # None: before the first one
    last_pass_at: float | None = None


class Reading(msgspec.Struct, frozen=True):
    """At the beginning of a pass: waits for a status of the pod that is newer than the last pass."""

    kind: PassKind
    work: Work
    last_pass_at: float | None = None
    pending: Work | None = None  # the latest update since


class Calling(msgspec.Struct, frozen=True):
    """In a pass: the sync function runs."""

    kind: PassKind
    work: Work
    last_pass_at: float | None = None
    pending: Work | None = None


Busy = Reading | Calling
Activity = Idle | Busy


# Where the pod stands.


class Unknown(msgspec.Struct, frozen=True):
    """The worker has never seen the pod, or has forgotten it."""


class Waiting(msgspec.Struct, frozen=True):
    """The pod has not started, because another static pod with the same full name comes first."""

    pending: Work


class Syncing(msgspec.Struct, frozen=True):
    """The pod should run. Containers are started, restarted and probed."""

    activity: Activity


class Ending(msgspec.Struct, frozen=True):
    """What was agreed about a pod's end."""

    cause: Cause
    grace_seconds: int | None = None  # None: it ends by itself, nobody has named a grace yet
    signals: tuple[Signal, ...] = ()  # who waits until no container runs
    status_function: StatusFunction | None = None  # the last one given
    restart_requested: bool = False  # a source wants this UID again: forget it once finished, and start afresh


class TerminationRequested(msgspec.Struct, frozen=True):
    """The pod must stop, but a sync in progress may still start a container."""

    ending: Ending
    activity: Activity


class Terminating(msgspec.Struct, frozen=True):
    """The pod must stop. No container may start. Running containers are being stopped."""

    ending: Ending
    activity: Activity


class Terminated(msgspec.Struct, frozen=True):
    """No container runs or will start. The resources of the pod are being cleaned up."""

    cause: Cause
    activity: Activity
    restart_requested: bool = False


class Finished(msgspec.Struct, frozen=True):
    """Nothing is left to do. The worker keeps the pod, so that it does not start again."""

    cause: Cause
    pod: Pod | None  # as the last pass saw it; None: no pass was ever made with its configuration
    restart_requested: bool = False


class NeverStarted(msgspec.Struct, frozen=True):
    """A static pod that had to stop before its turn came. It finished without a sync."""

    cause: Cause
    restart_requested: bool = False


Ends = TerminationRequested | Terminating  # termination is requested and containers may run
Active = Syncing | Ends | Terminated  # the states a worker makes passes in
Done = Finished | NeverStarted
State = Unknown | Waiting | Active | Done


_WORDS: dict[type[State], str] = {
    Unknown: "unknown",
    Waiting: "waiting",
    Syncing: "syncing",
    TerminationRequested: "termination requested",
    Terminating: "terminating",
    Terminated: "terminated",
    Finished: "finished",
    NeverStarted: "never started",
}


def in_words(state: State) -> str:
    """A state as a pod's history tells it, with the cause once there is one: `terminating (deleted)`."""
    match state:
        case Unknown() | Waiting() | Syncing():
            return _WORDS[type(state)]
        case TerminationRequested(ending=Ending(cause=cause)) | Terminating(ending=Ending(cause=cause)):
            return f"{_WORDS[type(state)]} ({cause})"
        case Terminated(cause=cause) | Finished(cause=cause) | NeverStarted(cause=cause):
            return f"{_WORDS[type(state)]} ({cause})"
