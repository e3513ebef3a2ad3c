"""The state machine of a pod worker.

One state and one event give the next state and orders. This module does not await, log, read a clock or depend on a
runtime. External events may repeat or arrive late and then have no effect. A sync result that does not fit the state
raises `IllegalStep`.

Three rules explain most cases:

* The latest update wins. An idle worker starts a sync at once. In a busy worker, one update is pending.
* Only a termination request or a changed grace period cancels a sync.
* After a sync that changes the state, the next sync starts at once.

`rules.worker.syncs` decides how syncs begin and end. `rules.worker.workers` decides across pods. Kubelet counterpart:
`UpdatePod` and `removeTerminatedWorker` in pkg/kubelet/pod_workers.go.
"""

from msgspec.structs import replace

from podkeeper.model.history import Cause
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.rules.grace import Grace, effective_grace
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.worker.events import (
    Complete,
    Enqueue,
    Event,
    HousekeepingRan,
    IllegalStep,
    Order,
    RequestStart,
    RetryDue,
    StartAllowed,
    StartDeferred,
    StatusRead,
    StatusUnreadable,
    Step,
    Synced,
    SyncFailed,
    Updated,
)
from podkeeper.rules.worker.states import (
    Activity,
    Finished,
    Idle,
    NeverStarted,
    ReadingStatus,
    RunningSync,
    State,
    Stopping,
    Syncing,
    Terminated,
    Terminating,
    Termination,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.syncs import last_work, latest, pod_in, repeat, start_sync, submit, sync_step
from podkeeper.rules.worker.timing import DEFAULT_TIMING, SyncTiming
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType


def step(state: State, event: Event, timing: SyncTiming = DEFAULT_TIMING) -> Step:
    """Return the next state and the orders. A sync result that does not fit the state raises `IllegalStep`."""
    match state, event:
        case _, Updated(update=update, runtime=runtime):
            return _updated(state, update, runtime)
        case _, HousekeepingRan(desired=desired):
            return _after_housekeeping(state, desired)
        case TerminationRequested() | Terminating() | Terminated(), RetryDue():
            return repeat(state)
        case _, RetryDue():
            return Step(state)
        case Waiting(pending=work), StartAllowed():
            return start_sync(Syncing(Idle()), Idle(), work)
        case Waiting(), StartDeferred():
            return Step(state, (Enqueue(timing.error_seconds),))
        case (
            Syncing() | TerminationRequested() | Terminating() | Terminated(),
            StatusRead() | StatusUnreadable() | Synced() | SyncFailed(),
        ):
            return sync_step(state, event, timing)
        case _:
            raise IllegalStep(f"unexpected {event} in state {state}")


# Updates.


def _updated(state: State, update: Update, runtime: PodRecord | None) -> Step:
    if isinstance(update.subject, PodRecord) and update.type is not UpdateType.KILL:
        return Step(state)  # without its configuration, a pod can only be killed
    match state:
        case Unknown() if _terminated_before(update, runtime):
            # After a restart of the agent. It begins with the cleanup and not as finished, because the last agent may
            # have died before it.
            return _update_terminated(Terminated(Cause.COMPLETED, Idle()), update)
        case Unknown() | Waiting() | Syncing():
            return _update_running(state, update)
        case TerminationRequested(termination=termination) | Terminating(termination=termination) if (
            update.type is UpdateType.CREATE
        ):
            # A worker never moves back. Housekeeping creates the pod again once this worker has finished.
            return Step(replace(state, termination=replace(termination, restart_requested=True)))
        case Terminated() | Finished() | NeverStarted() if update.type is UpdateType.CREATE:
            return Step(replace(state, restart_requested=True))
        case TerminationRequested(activity=activity) | Terminating(activity=activity):
            return _update_stopping(state, update, update.pod or _configuration(activity) or update.subject)
        case Terminated():
            return _update_terminated(state, update)
        case Finished() | NeverStarted():
            return Step(state)


def _update_running(state: Unknown | Waiting | Syncing, update: Update) -> Step:
    """Handle an update of a pod that should run so far."""
    match state:
        case Unknown():
            known, activity = None, Idle()
        case Waiting(pending=pending):
            known, activity = pod_in(pending), Idle()
        case Syncing(activity=activity):
            known = _configuration(activity)
    # A kill by housekeeping has only the runtime's record. With the known spec, hooks and grace period still apply.
    subject = update.pod or known or update.subject
    cause = _termination_cause(update)
    if cause is not None:
        return _update_stopping(TerminationRequested(Termination(cause), activity), update, subject, preempt=True)
    work = _work(update, subject)
    # The update has kill options but does not kill the pod, so notify the waiting caller at once.
    orders = _complete_now(update.kill)
    match state:
        case Unknown():
            return Step(Waiting(work), (*orders, RequestStart()))
        case Waiting(pending=pending):
            return Step(Waiting(latest(pending, work)), (*orders, RequestStart()))
        case Syncing():
            return submit(state, work, orders)


def _update_stopping(state: Stopping, update: Update, subject: Pod | PodRecord, *, preempt: bool = False) -> Step:
    """Handle an update of a pod that must stop. Every such update counts as a kill."""
    kill = update.kill or KillOptions()
    grace = _grace_for(subject, state.termination.grace_seconds, kill.grace_override_seconds)
    termination = replace(
        state.termination,
        grace_seconds=grace.seconds,
        signals=(*state.termination.signals, *([kill.completed] if kill.completed is not None else [])),
        status_function=kill.status_function or state.termination.status_function,
    )
    work = replace(_work(update, subject), grace_seconds=grace.seconds)
    # The current sync may wait for an image pull, or for a stop with the old grace period (k/k 117373).
    return submit(replace(state, termination=termination), work, preempt=preempt or grace.changed)


def _update_terminated(state: Terminated, update: Update) -> Step:
    if isinstance(update.subject, PodRecord):
        return Step(state)  # a late kill by housekeeping: no container runs any more
    return submit(state, _work(update, update.subject), _complete_now(update.kill))


def _terminated_before(update: Update, runtime: PodRecord | None) -> bool:
    """Return whether a pod had terminated, with nothing running, before this agent first saw it."""
    return (
        update.pod is not None
        and is_terminal(update.pod.status.phase)
        # A pod that was not inspected yet may still run. Cleaning it up would leave its containers running forever.
        and runtime is not None
        and all(container.state is not RecordState.RUNNING for container in runtime.containers)
        and not any(sandbox.ready for sandbox in runtime.sandboxes)
    )


def _termination_cause(update: Update) -> Cause | None:
    """Return why this update terminates the pod. None if it does not."""
    if update.pod is None:
        return Cause.ORPHANED
    # Before the phase: a completed pod keeps its directories and logs, a deleted one does not.
    if update.pod.metadata.deletion_timestamp is not None:
        return Cause.DELETED
    if is_terminal(update.pod.status.phase):
        return Cause.COMPLETED
    if update.type is UpdateType.KILL:
        return Cause.EVICTED if update.kill is not None and update.kill.evict else Cause.KILLED
    return None


def _grace_for(subject: Pod | PodRecord, current_seconds: int | None, override_seconds: int | None) -> Grace:
    match subject:
        case Pod(metadata=metadata, spec=spec):
            return effective_grace(
                current_seconds,
                deletion_seconds=metadata.deletion_grace_period_seconds,
                override_seconds=override_seconds,
                spec_seconds=spec.termination_grace_period_seconds,
            )
        case PodRecord():
            return effective_grace(current_seconds, override_seconds=override_seconds)


def _work(update: Update, subject: Pod | PodRecord) -> Work:
    return Work(update_type=update.type, subject=subject, mirror_pod=update.mirror_pod, start_time=update.start_time)


def _complete_now(kill: KillOptions | None) -> tuple[Order, ...]:
    return (Complete((kill.completed,)),) if kill is not None and kill.completed is not None else ()


def _configuration(activity: Activity) -> Pod | None:
    """Return the newest configuration that a worker has."""
    match activity:
        case Idle(last=last):
            return pod_in(last)
        case ReadingStatus(work=work, pending=pending) | RunningSync(work=work, pending=pending):
            return pod_in(pending) or pod_in(work)


# Housekeeping.


def is_kept_by_housekeeping(state: State) -> bool:
    """Return whether housekeeping changes nothing for a desired pod. Faster than a full `step` for each pod."""
    return not isinstance(state, Unknown | Finished | NeverStarted)


def _after_housekeeping(state: State, desired: bool) -> Step:
    """Remove finished pods that are orphaned or restarted. Terminate orphaned pods, and repeat their syncs."""
    match state:
        case Finished(restart_requested=True) | NeverStarted(restart_requested=True):
            # Even if the pod is desired: forgetting it lets housekeeping create it again.
            return Step(Unknown())
        case _ if desired:
            return Step(state)
        case Unknown() | Waiting() | Finished() | NeverStarted():
            return Step(Unknown())
        case Syncing(activity=activity):
            # Store the grace period so that later kills can shorten it. This sync uses the one of the spec.
            grace = _grace_for(last_work(activity).subject, None, None)
            return repeat(TerminationRequested(Termination(Cause.ORPHANED, grace.seconds), activity))
        case TerminationRequested(termination=termination) | Terminating(termination=termination):
            return repeat(replace(state, termination=replace(termination, cause=_orphaned(termination.cause))))
        case Terminated(cause=cause):
            return repeat(replace(state, cause=_orphaned(cause)))


def _orphaned(cause: Cause) -> Cause:
    """Return the cause of an orphaned pod. EVICTED stays, because it allows removing content earlier."""
    return cause if cause in (Cause.EVICTED, Cause.DELETED) else Cause.ORPHANED
