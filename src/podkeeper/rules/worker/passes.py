"""How a worker's passes begin and end.

A pass has two parts: it reads a status of the pod that is newer than the last pass, and calls one of
four sync functions with it. Updates that come meanwhile wait, the latest one only. What a pass leads to
is decided when it ends: a rest, the next pass with the waiting update, or a move to the pod's next state.

The Go ancestors are `startPodSync`, `podWorkerLoop` and the `complete*` functions in
pkg/kubelet/pod_workers.go.
"""

from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.worker.events import (
    Call,
    Cancel,
    Complete,
    Enqueue,
    Failed,
    IllegalStep,
    Order,
    Passed,
    PassEvent,
    ReadStatus,
    Record,
    StatusRead,
    StatusUnreadable,
    Step,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.pauses import Pause, Timing
from podkeeper.rules.worker.states import (
    Active,
    Activity,
    Busy,
    Calling,
    Cause,
    Ending,
    Finished,
    Idle,
    NeverStarted,
    PassKind,
    Reading,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Work,
)

AT_ONCE = Enqueue(0)


def hand_over(state: Active, work: Work, orders: tuple[Order, ...] = (), *, preempt: bool = False) -> Step:
    """Give the worker something to do: now, or after what it is doing."""
    match state.activity:
        case Idle() as idle:
            return take_up(state, idle, work, orders)
        case Reading() | Calling() as busy:
            waits = replace(state, activity=replace(busy, pending=latest(busy.pending, work)))
            return Step(waits, (*orders, Cancel()) if preempt else orders)


def repeat(state: Active) -> Step:
    """See to it that another pass comes, if none is due. One under way is left in peace."""
    match state.activity:
        case Idle() as idle:
            return take_up(state, idle, taken(idle).again())
        case Reading(pending=None) | Calling(pending=None) as busy:
            return Step(replace(state, activity=replace(busy, pending=busy.work.again())))
        case _:
            return Step(state)


def latest(waiting: Work | None, work: Work) -> Work:
    """The newer one, with the older one's start time: latency counts from the first news not acted upon."""
    times = [each.start_time for each in (waiting, work) if each is not None and each.start_time is not None]
    return replace(work, start_time=min(times, default=None))


def taken(activity: Activity) -> Work:
    """What the worker took last."""
    work = activity.last if isinstance(activity, Idle) else activity.work
    if work is None:
        raise IllegalStep("an idle worker that never took anything up")
    return work


def configuration_in(work: Work | None) -> Pod | None:
    """The pod as configured; None when there is no work, or only a runtime pod in it."""
    return work.subject if work is not None and isinstance(work.subject, Pod) else None


def take_up(state: Active, idle: Idle, work: Work, orders: tuple[Order, ...] = ()) -> Step:
    """Begin a pass in an idle worker."""
    if isinstance(work.subject, Pod) and is_static_pod(work.subject) and configuration_in(idle.last) is None:
        # A static pod's first pass. If it is to end already, there is none: it was never started.
        match state:
            case TerminationRequested(ending=ending):
                return Step(NeverStarted(ending.cause, ending.restart_requested), orders)
            case Terminating(ending=ending):
                return Step(Finished(ending.cause, None, ending.restart_requested), orders)
            case Terminated(cause=cause, restart_requested=restart_requested):
                return Step(Finished(cause, None, restart_requested), orders)
            case Syncing():
                pass
    reading = Reading(_kind_of_pass(state, work), work, idle.last_pass_at)
    if reading.kind is PassKind.TERMINATING_RUNTIME:  # to kill all there is, no status is needed
        return _call(state, reading, orders)
    return Step(replace(state, activity=reading), (*orders, ReadStatus(idle.last_pass_at)))


def pass_step(state: Active, event: PassEvent, timing: Timing) -> Step:
    """What the progress or the end of a pass leads to."""
    match event, state.activity:
        case StatusRead(), Reading() as reading:
            return _call(state, reading)
        case StatusUnreadable(error=error), Reading() as reading:
            warning = PodEvent(
                EventType.WARNING, "FailedSync", f"error determining status: {error}", _uid(reading.work)
            )
            retry = Enqueue(timing.after(Pause.AFTER_ERROR))
            return _rest(state, reading, reading.last_pass_at, (Record(warning), retry))
        case Failed(pause=pause), Reading() as reading:  # cut short before it touched the pod
            return _rest(state, reading, reading.last_pass_at, (Enqueue(timing.after(pause)),))
        case Failed(at=at, pause=pause), Calling() as calling:
            return _rest(state, calling, at, (Enqueue(timing.after(pause)),))
        case Passed(at=at, ended=True), Calling(kind=PassKind.SYNC) as calling:
            ending = state.ending if isinstance(state, TerminationRequested) else Ending(Cause.COMPLETED)
            return _move_on(Terminating(ending, calling), calling, at, (AT_ONCE,))
        case Passed(at=at, ended=False), Calling() as calling:
            return _passed(state, calling, at, timing)
        case _:
            raise IllegalStep(f"{event} in {state}")


def _kind_of_pass(state: Active, work: Work) -> PassKind:
    match state:
        case Syncing():
            return PassKind.SYNC
        case TerminationRequested() | Terminating():
            return PassKind.TERMINATING if isinstance(work.subject, Pod) else PassKind.TERMINATING_RUNTIME
        case Terminated():
            return PassKind.TERMINATED


def _call(state: Active, reading: Reading, orders: tuple[Order, ...] = ()) -> Step:
    """Call the pass's function. Only here does the worker see that a pod is to end: nothing starts from now on."""
    calling = Calling(reading.kind, reading.work, reading.last_pass_at, reading.pending)
    if isinstance(state, TerminationRequested) and calling.kind is not PassKind.SYNC:
        state = Terminating(state.ending, calling)
    return Step(replace(state, activity=calling), (*orders, _function(state, calling)))


def _function(state: Active, calling: Calling) -> Call:
    work = calling.work
    match calling.kind, work.subject, state:
        case PassKind.SYNC, Pod() as pod, _:
            return SyncPod(work.update_type, pod, work.mirror_pod)
        case PassKind.TERMINATING, Pod() as pod, Terminating(ending=ending):
            # The grace is the one of the update that is acted upon, the status function the last one given.
            return SyncTerminatingPod(pod, work.grace_seconds, ending.status_function)
        case PassKind.TERMINATING_RUNTIME, PodRecord() as running_pod, _:
            return SyncTerminatingRuntimePod(running_pod)
        case PassKind.TERMINATED, Pod() as pod, _:
            return SyncTerminatedPod(pod)
        case _:
            raise IllegalStep(f"{calling} in {state}")


def _passed(state: Active, done: Calling, at: float, timing: Timing) -> Step:
    match done.kind, state:
        case PassKind.SYNC, _:
            return _rest(state, done, at, (Enqueue(timing.resync_seconds),))
        case PassKind.TERMINATING, Terminating(ending=ending):
            signals = (Complete(ending.signals),) if ending.signals else ()
            terminated = Terminated(ending.cause, done, ending.restart_requested)
            return _move_on(terminated, done, at, (*signals, AT_ONCE))
        case PassKind.TERMINATING_RUNTIME, _:
            return Step(Unknown())  # the runtime was all that knew of it
        case PassKind.TERMINATED, Terminated(cause=cause, restart_requested=restart_requested):
            return Step(Finished(cause, configuration_in(done.work), restart_requested))
        case _:
            raise IllegalStep(f"{done} in {state}")


def _move_on(state: Active, done: Calling, at: float, orders: tuple[Order, ...]) -> Step:
    """The next state's pass follows at once: with the waiting update, or with what this one was made with."""
    return _rest(state, replace(done, pending=done.pending or done.work.again()), at, orders)


def _rest(state: Active, done: Busy, last_pass_at: float | None, orders: tuple[Order, ...]) -> Step:
    """A pass is over: on to the waiting update, if there is one."""
    idle = Idle(done.work, last_pass_at)
    if done.pending is None:
        return Step(replace(state, activity=idle), orders)
    return take_up(state, idle, done.pending, orders)


def _uid(work: Work) -> str:
    match work.subject:
        case Pod(metadata=metadata):
            return metadata.uid or ""
        case PodRecord(uid=uid):
            return uid
