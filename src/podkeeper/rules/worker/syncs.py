"""How the syncs of a pod worker begin and end.

A sync has two parts. It reads a status of the pod that is newer than the last sync, and passes it to one of four
sync functions. Meanwhile only the latest update stays pending. When a sync ends, the worker becomes idle, starts
the next sync with the pending update, or moves the pod to its next state.

Kubelet counterpart: `startPodSync`, `podWorkerLoop` and the `complete*` functions in pkg/kubelet/pod_workers.go.
"""

from msgspec.structs import replace

from podkeeper.model.history import Cause, SyncKind
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.worker.events import (
    Call,
    Cancel,
    Complete,
    Enqueue,
    IllegalStep,
    Order,
    ReadStatus,
    RecordEvent,
    StatusRead,
    StatusUnreadable,
    Step,
    Synced,
    SyncEvent,
    SyncFailed,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import (
    Active,
    Activity,
    Busy,
    Finished,
    Idle,
    NeverStarted,
    ReadingStatus,
    RunningSync,
    Syncing,
    Terminated,
    Terminating,
    Termination,
    TerminationRequested,
    Unknown,
    Work,
)
from podkeeper.rules.worker.timing import RetryDelay, SyncTiming

AT_ONCE = Enqueue(0)


def submit(state: Active, work: Work, orders: tuple[Order, ...] = (), *, preempt: bool = False) -> Step:
    """Start a sync if the worker is idle. Otherwise make the work pending."""
    match state.activity:
        case Idle() as idle:
            return start_sync(state, idle, work, orders)
        case ReadingStatus() | RunningSync() as busy:
            # One pending update and no backlog: a sync always uses the newest spec.
            pending = replace(state, activity=replace(busy, pending=latest(busy.pending, work)))
            return Step(pending, (*orders, Cancel()) if preempt else orders)


def repeat(state: Active) -> Step:
    """Repeat the last sync, unless an update is pending. A current sync is not cancelled."""
    match state.activity:
        case Idle() as idle:
            return start_sync(state, idle, last_work(idle).again())
        case ReadingStatus(pending=None) | RunningSync(pending=None) as busy:
            # The current sync began before this request and may already have passed the step that must be repeated.
            return Step(replace(state, activity=replace(busy, pending=busy.work.again())))
        case _:
            return Step(state)


def latest(pending: Work | None, work: Work) -> Work:
    """Return the new work with the oldest start time, because latency counts from the first pending update."""
    times = [each.start_time for each in (pending, work) if each is not None and each.start_time is not None]
    return replace(work, start_time=min(times, default=None))


def last_work(activity: Activity) -> Work:
    """Return the work of the current or last sync."""
    work = activity.last if isinstance(activity, Idle) else activity.work
    if work is None:
        raise IllegalStep("expected a worker that has synced, found an idle worker before its first sync")
    return work


def pod_in(work: Work | None) -> Pod | None:
    """Return the configured pod. None if there is no work, or only a runtime pod."""
    return work.subject if work is not None and isinstance(work.subject, Pod) else None


def start_sync(state: Active, idle: Idle, work: Work, orders: tuple[Order, ...] = ()) -> Step:
    """Begin a sync in an idle worker."""
    if isinstance(work.subject, Pod) and is_static_pod(work.subject) and pod_in(idle.last) is None:
        # The first sync of a static pod. A pod that must stop already finishes without one.
        match state:
            case TerminationRequested(termination=termination):
                return Step(NeverStarted(termination.cause, termination.restart_requested), orders)
            case Terminating(termination=termination):
                return Step(Finished(termination.cause, None, termination.restart_requested), orders)
            case Terminated(cause=cause, restart_requested=restart_requested):
                return Step(Finished(cause, None, restart_requested), orders)
            case Syncing():
                pass
    reading = ReadingStatus(_sync_kind(state, work), work, idle.last_sync_at)
    if reading.kind is SyncKind.TERMINATING_RUNTIME:  # killing all containers needs no status
        return _call(state, reading, orders)
    # Newer than the last sync, because an older status would not show what that sync started.
    return Step(replace(state, activity=reading), (*orders, ReadStatus(idle.last_sync_at)))


def sync_step(state: Active, event: SyncEvent, timing: SyncTiming) -> Step:
    """Return the step after a sync has read the status or has ended."""
    match event, state.activity:
        case StatusRead(), ReadingStatus() as reading:
            return _call(state, reading)
        case StatusUnreadable(error=error), ReadingStatus() as reading:
            warning = PodEvent(
                EventType.WARNING, "FailedSync", f"error determining status: {error}", _uid(reading.work)
            )
            retry = Enqueue(timing.after(RetryDelay.AFTER_ERROR))
            return _end_sync(state, reading, reading.last_sync_at, (RecordEvent(warning), retry))
        case SyncFailed(retry_delay=retry_delay), ReadingStatus() as reading:  # cancelled before it touched the pod
            return _end_sync(state, reading, reading.last_sync_at, (Enqueue(timing.after(retry_delay)),))
        case SyncFailed(at=at, retry_delay=retry_delay), RunningSync() as running:
            return _end_sync(state, running, at, (Enqueue(timing.after(retry_delay)),))
        case Synced(at=at, is_terminal=True), RunningSync(kind=SyncKind.SYNC) as running:
            # A kill that arrived during the sync keeps its grace period, signals and cause.
            termination = state.termination if isinstance(state, TerminationRequested) else Termination(Cause.COMPLETED)
            return _change_state(Terminating(termination, running), running, at, (AT_ONCE,))
        case Synced(at=at, is_terminal=False), RunningSync() as running:
            return _sync_succeeded(state, running, at, timing)
        case _:
            raise IllegalStep(f"unexpected {event} in state {state}")


def _sync_kind(state: Active, work: Work) -> SyncKind:
    match state:
        case Syncing():
            return SyncKind.SYNC
        case TerminationRequested() | Terminating():
            return SyncKind.TERMINATING if isinstance(work.subject, Pod) else SyncKind.TERMINATING_RUNTIME
        case Terminated():
            return SyncKind.TERMINATED


def _call(state: Active, reading: ReadingStatus, orders: tuple[Order, ...] = ()) -> Step:
    """Run the sync function. From here on, no container starts in a pod that must stop."""
    running = RunningSync(reading.kind, reading.work, reading.last_sync_at, reading.pending)
    if isinstance(state, TerminationRequested) and running.kind is not SyncKind.SYNC:
        state = Terminating(state.termination, running)
    return Step(replace(state, activity=running), (*orders, _sync_function(state, running)))


def _sync_function(state: Active, running: RunningSync) -> Call:
    work = running.work
    match running.kind, work.subject, state:
        case SyncKind.SYNC, Pod() as pod, _:
            return SyncPod(work.update_type, pod, work.mirror_pod)
        case SyncKind.TERMINATING, Pod() as pod, Terminating(termination=termination):
            # The grace period is that of this update, the status function is the latest one.
            return SyncTerminatingPod(pod, work.grace_seconds, termination.status_function)
        case SyncKind.TERMINATING_RUNTIME, PodRecord() as running_pod, _:
            return SyncTerminatingRuntimePod(running_pod)
        case SyncKind.TERMINATED, Pod() as pod, _:
            return SyncTerminatedPod(pod)
        case _:
            raise IllegalStep(f"unexpected {running} in state {state}")


def _sync_succeeded(state: Active, done: RunningSync, at: float, timing: SyncTiming) -> Step:
    match done.kind, state:
        case SyncKind.SYNC, _:
            return _end_sync(state, done, at, (Enqueue(timing.resync_seconds),))
        case SyncKind.TERMINATING, Terminating(termination=termination):
            signals = (Complete(termination.signals),) if termination.signals else ()
            terminated = Terminated(termination.cause, done, termination.restart_requested)
            return _change_state(terminated, done, at, (*signals, AT_ONCE))
        case SyncKind.TERMINATING_RUNTIME, _:
            return Step(Unknown())  # only the runtime had the pod
        case SyncKind.TERMINATED, Terminated(cause=cause, restart_requested=restart_requested):
            return Step(Finished(cause, pod_in(done.work), restart_requested))
        case _:
            raise IllegalStep(f"unexpected {done} in state {state}")


def _change_state(state: Active, done: RunningSync, at: float, orders: tuple[Order, ...]) -> Step:
    """Start the first sync of the next state, with the pending update or with the same work."""
    return _end_sync(state, replace(done, pending=done.pending or done.work.again()), at, orders)


def _end_sync(state: Active, done: Busy, last_sync_at: float | None, orders: tuple[Order, ...]) -> Step:
    """Start the next sync if an update is pending. Otherwise become idle."""
    idle = Idle(done.work, last_sync_at)
    if done.pending is None:
        return Step(replace(state, activity=idle), orders)
    return start_sync(state, idle, done.pending, orders)


def _uid(work: Work) -> str:
    match work.subject:
        case Pod(metadata=metadata):
            return metadata.uid or ""
        case PodRecord(uid=uid):
            return uid
