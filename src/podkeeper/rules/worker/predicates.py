"""Predicates of a pod worker's state, for other parts of the agent.

For an unknown pod, the answer depends on whether the workers are *synced*, that is, whether housekeeping has run
once. Before that, the workers may not have received the pod yet, so it counts as possibly running. Afterwards it
counts as removed.

Kubelet counterpart: the predicates of the `PodWorkers` interface in pkg/kubelet/pod_workers.go.
"""

from podkeeper.model.history import Cause
from podkeeper.rules.worker.states import (
    Finished,
    NeverStarted,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
)


def is_known_terminated(state: State) -> bool:
    """Return whether the pod is known and none of its containers runs or will start. It is not admitted again."""
    return isinstance(state, Terminated | Finished | NeverStarted)


def could_have_running_containers(state: State, *, synced: bool) -> bool:
    """Return whether a container of this pod may run or may be started."""
    match state:
        case Unknown():
            return not synced
        case _:
            return not is_known_terminated(state)


def is_termination_requested(state: State) -> bool:
    """Return whether the pod must stop. A sync in progress may still start a container."""
    return not isinstance(state, Unknown | Waiting | Syncing)


def should_containers_be_terminating(state: State, *, synced: bool) -> bool:
    """Return whether no container can start, because the worker has observed the termination request."""
    match state:
        case Unknown():
            return synced
        case _:
            return isinstance(state, Terminating | Terminated | Finished)


def should_runtime_be_removed(state: State, *, synced: bool) -> bool:
    """Return whether volumes, devices and cgroups of the pod may be removed."""
    match state:
        case Unknown():
            return synced
        case _:
            return is_known_terminated(state)


def should_content_be_removed(state: State, *, synced: bool) -> bool:
    """Return whether the pod's directories, exited containers and logs may be removed."""
    match state:
        case Unknown():
            return synced
        case Waiting() | Syncing():
            return False
        case TerminationRequested(termination=termination) | Terminating(termination=termination):
            return termination.cause is Cause.EVICTED
        case Terminated(cause=cause) | Finished(cause=cause) | NeverStarted(cause=cause):
            return cause in (Cause.EVICTED, Cause.DELETED, Cause.ORPHANED)


def should_be_finished(state: State, *, synced: bool) -> bool:
    """Return whether the cleanup of the pod is complete."""
    match state:
        case Unknown():
            return synced
        case _:
            return isinstance(state, Finished | NeverStarted)


def is_stopping(state: State) -> bool:
    """Return whether the pod must stop and containers may still run."""
    return isinstance(state, TerminationRequested | Terminating)


def is_over(state: State) -> bool:
    """Return whether the worker has nothing left to do for the pod, or never had it."""
    return isinstance(state, Unknown | Finished | NeverStarted)
