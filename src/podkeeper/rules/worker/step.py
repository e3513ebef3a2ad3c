"""The pod worker's state machine: what moves a pod on, and what is ordered on the way.

In: a state and an event. Out: the next state and the orders. Nothing here awaits, logs, reads a clock
or knows which runtime is in use. Lenient with the world (it may repeat itself, or come late), strict
with our own shell: news of a pass that nobody makes raises `IllegalStep`.

Three habits explain most of it:

* the latest update wins; an idle worker takes it up at once, in a busy one it waits, alone;
* only the beginning of the end, or another grace, cuts a pass short;
* a pass that moves the pod on is followed by the next one at once.

The Go ancestors are `UpdatePod` and `removeTerminatedWorker` in pkg/kubelet/pod_workers.go. How passes
begin and end is `rules.worker.passes`; what spans pods is `rules.worker.workers`.
"""

from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.rules.grace import Grace, effective_grace
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.worker.events import (
    AskForTurn,
    Complete,
    Enqueue,
    Event,
    Failed,
    IllegalStep,
    MayStart,
    MustWait,
    Order,
    Passed,
    RetryDue,
    StatusRead,
    StatusUnreadable,
    Step,
    Swept,
    Told,
)
from podkeeper.rules.worker.passes import configuration_in, hand_over, latest, pass_step, repeat, take_up, taken
from podkeeper.rules.worker.pauses import USUAL_TIMING, Timing
from podkeeper.rules.worker.states import (
    Activity,
    Calling,
    Cause,
    Ending,
    Ends,
    Finished,
    Idle,
    NeverStarted,
    Reading,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType


def step(state: State, event: Event, timing: Timing = USUAL_TIMING) -> Step:
    """Decide where an event takes a worker."""
    match state, event:
        case _, Told(update=update, runtime=runtime):
            return _told(state, update, runtime)
        case _, Swept(desired=desired):
            return _swept(state, desired)
        case TerminationRequested() | Terminating() | Terminated(), RetryDue():
            return repeat(state)
        case _, RetryDue():
            return Step(state)
        case Waiting(pending=work), MayStart():
            return take_up(Syncing(Idle()), Idle(), work)
        case Waiting(), MustWait():
            return Step(state, (Enqueue(timing.error_seconds),))
        case (
            Syncing() | TerminationRequested() | Terminating() | Terminated(),
            StatusRead() | StatusUnreadable() | Passed() | Failed(),
        ):
            return pass_step(state, event, timing)
        case _:
            raise IllegalStep(f"{event} in {state}")


# Somebody updates the pod.


def _told(state: State, update: Update, runtime: PodRecord | None) -> Step:
    if isinstance(update.subject, PodRecord) and update.type is not UpdateType.KILL:
        return Step(state)  # without a configuration there is nothing to do but to kill
    match state:
        case Unknown() if _ended_before(update, runtime):
            return _told_terminated(Terminated(Cause.COMPLETED, Idle()), update)
        case Unknown() | Waiting() | Syncing():
            return _told_wanted(state, update)
        case TerminationRequested(ending=ending) | Terminating(ending=ending) if update.type is UpdateType.CREATE:
            return Step(replace(state, ending=replace(ending, restart_requested=True)))
        case Terminated() | Finished() | NeverStarted() if update.type is UpdateType.CREATE:
            return Step(replace(state, restart_requested=True))
        case TerminationRequested(activity=activity) | Terminating(activity=activity):
            return _told_ending(state, update, update.pod or _configuration(activity) or update.subject)
        case Terminated():
            return _told_terminated(state, update)
        case Finished() | NeverStarted():
            return Step(state)


def _told_wanted(state: Unknown | Waiting | Syncing, update: Update) -> Step:
    """An update of a pod that nobody has asked to end so far."""
    match state:
        case Unknown():
            known, activity = None, Idle()
        case Waiting(pending=pending):
            known, activity = configuration_in(pending), Idle()
        case Syncing(activity=activity):
            known = _configuration(activity)
    subject = update.pod or known or update.subject
    cause = _cause_to_end(update)
    if cause is not None:
        return _told_ending(TerminationRequested(Ending(cause), activity), update, subject, preempt=True)
    work = _work(update, subject)
    orders = _complete_now(update.kill)  # kill options without a kill: who waits for it need not
    match state:
        case Unknown():
            return Step(Waiting(work), (*orders, AskForTurn()))
        case Waiting(pending=pending):
            return Step(Waiting(latest(pending, work)), (*orders, AskForTurn()))
        case Syncing():
            return hand_over(state, work, orders)


def _told_ending(state: Ends, update: Update, subject: Pod | PodRecord, *, preempt: bool = False) -> Step:
    """Every update of a pod that is to end is a kill."""
    kill = update.kill or KillOptions()
    grace = _grace_for(subject, state.ending.grace_seconds, kill.grace_override_seconds)
    ending = replace(
        state.ending,
        grace_seconds=grace.seconds,
        signals=(*state.ending.signals, *([kill.completed] if kill.completed is not None else [])),
        status_function=kill.status_function or state.ending.status_function,
    )
    work = replace(_work(update, subject), grace_seconds=grace.seconds)
    return hand_over(replace(state, ending=ending), work, preempt=preempt or grace.changed)


def _told_terminated(state: Terminated, update: Update) -> Step:
    if isinstance(update.subject, PodRecord):
        return Step(state)  # housekeeping looked at the runtime a while ago: by now nothing runs
    return hand_over(state, _work(update, update.subject), _complete_now(update.kill))


def _ended_before(update: Update, runtime: PodRecord | None) -> bool:
    """Whether a pod seen for the first time had ended, and was stopped, before this agent started."""
    return (
        update.pod is not None
        and is_terminal(update.pod.status.phase)
        and runtime is not None
        and all(container.state is not ContainerState.RUNNING for container in runtime.containers)
        and not any(sandbox.ready for sandbox in runtime.sandboxes)
    )


def _cause_to_end(update: Update) -> Cause | None:
    """Why this update means the pod's end, if it does."""
    if update.pod is None:
        return Cause.ORPHANED
    if update.pod.metadata.deletion_timestamp is not None:
        return Cause.DELETED
    if is_terminal(update.pod.status.phase):
        return Cause.COMPLETED
    if update.type is UpdateType.KILL:
        return Cause.EVICTED if update.kill is not None and update.kill.evict else Cause.KILLED
    return None


def _grace_for(subject: Pod | PodRecord, agreed_seconds: int | None, override_seconds: int | None) -> Grace:
    match subject:
        case Pod(metadata=metadata, spec=spec):
            return effective_grace(
                agreed_seconds,
                deletion_seconds=metadata.deletion_grace_period_seconds,
                override_seconds=override_seconds,
                spec_seconds=spec.termination_grace_period_seconds,
            )
        case PodRecord():
            return effective_grace(agreed_seconds, override_seconds=override_seconds)


def _work(update: Update, subject: Pod | PodRecord) -> Work:
    return Work(update_type=update.type, subject=subject, mirror_pod=update.mirror_pod, start_time=update.start_time)


def _complete_now(kill: KillOptions | None) -> tuple[Order, ...]:
    return (Complete((kill.completed,)),) if kill is not None and kill.completed is not None else ()


def _configuration(activity: Activity) -> Pod | None:
    """The newest configuration a worker has."""
    match activity:
        case Idle(last=last):
            return configuration_in(last)
        case Reading(work=work, pending=pending) | Calling(work=work, pending=pending):
            return configuration_in(pending) or configuration_in(work)


# Housekeeping comes by.


def stays_in_a_sweep(state: State) -> bool:
    """Whether a desired pod's worker is left as it is: said apart from `step`, as it is asked of every pod so often."""
    return not isinstance(state, Unknown | Finished | NeverStarted)


def _swept(state: State, desired: bool) -> Step:
    """Forget what is over; drive to its end what nobody wants, for nobody else will."""
    match state:
        case Finished(restart_requested=True) | NeverStarted(restart_requested=True):
            return Step(Unknown())
        case _ if desired:
            return Step(state)
        case Unknown() | Waiting() | Finished() | NeverStarted():
            return Step(Unknown())
        case Syncing(activity=activity):
            # The grace is noted for later kills to shorten, but nobody named one: the pass goes by the spec.
            grace = _grace_for(taken(activity).subject, None, None)
            return repeat(TerminationRequested(Ending(Cause.ORPHANED, grace.seconds), activity))
        case TerminationRequested(ending=ending) | Terminating(ending=ending):
            return repeat(replace(state, ending=replace(ending, cause=_orphaned(ending.cause))))
        case Terminated(cause=cause):
            return repeat(replace(state, cause=_orphaned(cause)))


def _orphaned(cause: Cause) -> Cause:
    """Gone from its source. Eviction says more: content may go before the containers do."""
    return cause if cause in (Cause.EVICTED, Cause.DELETED) else Cause.ORPHANED
