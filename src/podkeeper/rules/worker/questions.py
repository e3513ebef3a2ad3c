"""What other rooms may conclude from where a pod stands.

Each question is a function of the state. Of an unknown pod the answer depends on whether the workers are
*synced*, that is, whether housekeeping has come by once: before, such a pod may be one that has not been
told of yet and must look as if it could run; afterwards it is gone.

The Go ancestors are the predicates of the `PodWorkers` interface in pkg/kubelet/pod_workers.go.
"""

from podkeeper.rules.worker.states import (
    Cause,
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
    """No container of this known pod runs, nor ever will. For the config loop: not to be admitted again."""
    return isinstance(state, Terminated | Finished | NeverStarted)


def could_have_running_containers(state: State, *, synced: bool) -> bool:
    """A container of this pod may run, or may be started."""
    match state:
        case Unknown():
            return not synced
        case _:
            return not is_known_terminated(state)


def is_termination_requested(state: State) -> bool:
    """The pod is to end; it may still be setting up."""
    return not isinstance(state, Unknown | Waiting | Syncing)


def should_containers_be_terminating(state: State, *, synced: bool) -> bool:
    """No container of this pod will be started any more: the worker has seen the request to end it."""
    match state:
        case Unknown():
            return synced
        case _:
            return isinstance(state, Terminating | Terminated | Finished)


def should_runtime_be_removed(state: State, *, synced: bool) -> bool:
    """What running containers need (volumes, devices, cgroups) may go."""
    match state:
        case Unknown():
            return synced
        case _:
            return is_known_terminated(state)


def should_content_be_removed(state: State, *, synced: bool) -> bool:
    """All that is kept for the pod (its directories, dead containers, logs) may go."""
    match state:
        case Unknown():
            return synced
        case Waiting() | Syncing():
            return False
        case TerminationRequested(ending=ending) | Terminating(ending=ending):
            return ending.cause is Cause.EVICTED
        case Terminated(cause=cause) | Finished(cause=cause) | NeverStarted(cause=cause):
            return cause in (Cause.EVICTED, Cause.DELETED, Cause.ORPHANED)


def should_be_finished(state: State, *, synced: bool) -> bool:
    """All that the pod held is given back."""
    match state:
        case Unknown():
            return synced
        case _:
            return isinstance(state, Finished | NeverStarted)


def is_stopping(state: State) -> bool:
    """The pod is to end, and containers may still run."""
    return isinstance(state, TerminationRequested | Terminating)
