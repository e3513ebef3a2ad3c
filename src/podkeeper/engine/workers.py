"""Pod workers: execute what `rules.worker` decides about each pod.

Each pod has at most one sync at a time.

    update_pod, sync_known_pods --> WorkerTable (rules.worker) --> orders --> syncs, work queue, signals, events
                                        ^                                       |
                                        `------------- sync results <-----------'

Input: updates from the loop, desired pods from housekeeping. Output: calls of the syncer, and answers about the state
of a pod. `rules.worker` takes every decision. This shell executes the orders at once and in order.

* Each sync is a task. An idle pod has no task, so it needs little memory.
* The state has changed when `update_pod` returns.
* A preempted sync is a cancelled task. The next sync starts after that task has ended, so a pod never has two syncs.
  A pod whose sync hangs delays no other pod.
* If the syncer raises, the sync of that pod has failed. If any other module raises, the worker logs it.
* The end of `run()` stops the agent, not the pods: syncs are cancelled, and their end changes no state.

Kubelet counterpart: `podWorkers` in pkg/kubelet/pod_workers.go.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec

from podkeeper.engine.cache import PodCache
from podkeeper.engine.events import EventFunction
from podkeeper.engine.observer import Observer
from podkeeper.engine.syncer import PodSyncer
from podkeeper.model.errors import AgentError, BadInput, Problem, TryLater
from podkeeper.model.history import (
    HistoryEvent,
    Moved,
    RetryScheduled,
    SyncEnded,
    SyncError,
    SyncResult,
    SyncStarted,
)
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.static.mirror import full_name, is_static_pod
from podkeeper.rules.worker import predicates
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
    Synced,
    SyncEvent,
    SyncFailed,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import Active, Busy, Done, Finished, Idle, State, Unknown, Waiting, pod_state
from podkeeper.rules.worker.timing import BackoffRemaining, RetryDelay, retry_delay_after
from podkeeper.rules.worker.updates import StatusFunction, Update, UpdateType, kill_request
from podkeeper.rules.worker.workers import Orders, PodWorkerSync, WorkerTable, subject_of

log = logging.getLogger(__name__)

# The kubelet's workerResyncIntervalJitterFactor and workerBackOffPeriodJitterFactor.
JITTER = 0.5  # a delay is extended by up to this fraction, so that not all pods are synced at once

Subject = Pod | PodRecord
# A sync without a pod spec reads no status, because it stops all containers.
Begin = ReadStatus | SyncTerminatingRuntimePod
P = ParamSpec("P")


@dataclass(slots=True, eq=False)
class _OrderedSync:
    """A sync that was ordered and whose result was not reported yet."""

    begin: Begin
    task: asyncio.Task[None] | None = None  # None: `run` has not begun
    outcome: SyncEvent | None = None  # None: the sync is running or was cancelled


def _ignore(*_: object) -> None: ...


class PodWorkers:
    def __init__(
        self,
        *,
        syncer: PodSyncer,
        cache: PodCache,
        enqueue: Callable[[PodUID, float], None],
        record_event: EventFunction,
        clock: Clock,
        inspection_clock: Callable[[], float],
        states: WorkerTable,
        static_pod_ended: Callable[[str], None] = _ignore,
        add_history: Callable[[PodUID, HistoryEvent], None] = _ignore,
        observer: Observer | None = None,
    ) -> None:
        """`static_pod_ended` receives the full name of each static pod that finished or was forgotten.

        Only this class changes `states`. Others may read it.
        """
        self._syncer = syncer
        self._cache = cache
        self._enqueue = enqueue
        self._record_event = record_event
        self._clock = clock
        self._inspection_clock = inspection_clock
        self._static_pod_ended = static_pod_ended
        self._add_history = add_history
        self._observer = observer or Observer()
        self._states = states
        self.moves = 0  # how often a pod changed its state
        self._updated: set[PodUID] = set()
        self._orders: deque[tuple[PodUID, Order]] = deque()
        self._group: asyncio.TaskGroup | None = None  # while `run` runs
        self._stopped = False
        self._syncs: dict[PodUID, _OrderedSync] = {}

    async def run(self) -> None:
        """Run syncs until cancelled. Return when the last sync has ended."""
        if self._group is not None or self._stopped:
            raise RuntimeError("cannot run the pod workers twice")
        async with asyncio.TaskGroup() as self._group:
            try:
                for uid, ordered in list(self._syncs.items()):
                    self._start(self._group, uid, ordered)
                await asyncio.Event().wait()
            finally:  # before the syncs are cancelled, so that their ends change no state
                self._stopped, self._group = True, None

    # Updates.

    def update_pod(self, update: Update) -> None:
        """Send an update to a pod's worker. The pod's state has changed when this returns."""
        uid = _checked(update)
        if self._stopped:
            raise TryLater(f"cannot update pod {_name(update.subject)}: the agent is stopping")
        # Housekeeping lists the known pods some time before it decides. It must not treat this pod as orphaned or
        # missing.
        self._updated.add(uid)
        before = self._states.state(uid)
        self._apply(uid, before, self._states.update(update, self._seen(uid)))

    def retry(self, uid: PodUID) -> None:
        """Repeat the sync of a terminating pod that no source has."""
        if not self._stopped:
            self._apply(uid, self._states.state(uid), self._states.retry(uid))

    def sync_known_pods(self, desired: Collection[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        """Forget finished pods and stop orphaned pods. Return all others."""
        if self._stopped:
            raise TryLater("cannot sync the known pods: the agent is stopping")
        result = self._states.sync_known_pods(desired)
        # Before any order is executed: an order may call back into `update_pod`, and that update counts as made since
        # this housekeeping.
        self._updated = set()
        for uid, orders in result.orders.items():
            self._queue_orders(uid, orders)
        for uid, before in result.moved.items():
            self._report_move(uid, before)
        self._execute_orders()
        for uid, before in result.moved.items():
            self._report_ended_static_pod(uid, before)
        self._notify("the observer", "*", self._observer.workers_listed, result.known)
        return result.known

    def forget_restartable(self, uids: Collection[PodUID]) -> Collection[PodUID]:
        """Forget finished pods that a source has added again. Return the UIDs of the forgotten pods."""
        if self._stopped:
            raise TryLater("cannot forget pod workers: the agent is stopping")
        forgotten = self._states.forget_restartable(uids)
        for uid, before in forgotten.items():
            self._report_move(uid, before)
        return forgotten.keys()

    def is_restartable(self, uid: PodUID) -> bool:
        """Return whether a pod has finished and a source has added it again."""
        return self._states.is_restartable(uid)

    def updated_since_housekeeping(self) -> frozenset[PodUID]:
        """Return the pods that got an update since the last `sync_known_pods`. Its result may lack them."""
        return frozenset(self._updated)

    async def kill_pod(
        self,
        pod: Pod,
        *,
        evict: bool = False,
        grace_override_seconds: int | None = None,
        status_function: StatusFunction | None = None,
    ) -> None:
        """Kill a pod and wait until none of its containers runs. Raises TryLater after the timeout."""
        # A signal instead of the task of the sync: the worker may need several syncs, and others may kill the same pod.
        completed = asyncio.Event()
        request = kill_request(
            pod,
            completed,
            evict=evict,
            grace_override_seconds=grace_override_seconds,
            status_function=status_function,
        )
        self.update_pod(request.update)
        if self.is_pod_known_terminated(request.update.uid):
            return  # a pod that has finished, or now never starts, sends no signal
        try:
            async with asyncio.timeout(request.timeout_seconds):
                await completed.wait()
        except TimeoutError as error:
            self._notify("the event recorder", request.update.uid, self._record_event, request.on_timeout, pod)
            raise TryLater(
                f"cannot kill pod {full_name(pod)} within {request.timeout_seconds} s: its containers may still run"
            ) from error

    # Queries.

    def state(self, uid: PodUID) -> State:
        return self._states.state(uid)

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        """Return whether no container of this known pod runs or will start."""
        return predicates.is_known_terminated(self.state(uid))

    def could_have_running_containers(self, uid: PodUID) -> bool:
        """Return whether a container of this pod may run or may start."""
        return predicates.could_have_running_containers(self.state(uid), synced=self._states.synced)

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        """Return whether the pod must terminate. A sync may still be starting containers."""
        return predicates.is_termination_requested(self.state(uid))

    def should_pod_containers_be_terminating(self, uid: PodUID) -> bool:
        """Return whether no container of this pod will start any more."""
        return predicates.should_containers_be_terminating(self.state(uid), synced=self._states.synced)

    def should_pod_runtime_be_removed(self, uid: PodUID) -> bool:
        """Return whether resources of running containers (volumes, devices, cgroups) may be removed."""
        return predicates.should_runtime_be_removed(self.state(uid), synced=self._states.synced)

    def should_pod_content_be_removed(self, uid: PodUID) -> bool:
        """Return whether everything of the pod (directories, dead containers, logs) may be removed."""
        return predicates.should_content_be_removed(self.state(uid), synced=self._states.synced)

    def should_pod_be_finished(self, uid: PodUID) -> bool:
        """Return whether all resources of the pod are released."""
        return predicates.should_be_finished(self.state(uid), synced=self._states.synced)

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Return whether the static pod with this name is terminating. Its mirror pod must stay until it has ended."""
        return self._states.is_pod_for_mirror_pod_terminating(full_name)

    def next_in_line(self, full_name: str) -> PodUID | None:
        """Return the static pod of this name that may start now and waits for an update."""
        return self._states.next_in_line(full_name)

    def waiting(self, full_name: str) -> tuple[PodUID, ...]:
        """Return the static pods of this name that wait for their predecessor, in order of arrival."""
        return self._states.waiting(full_name)

    # Orders.

    def _apply(self, uid: PodUID, before: State, orders: Orders) -> None:
        moved = type(self.state(uid)) is not type(before)
        self._queue_orders(uid, orders)
        # Report the move before the orders are executed, so that the history shows the state before its sync.
        if moved:
            self._report_move(uid, before)
        self._execute_orders()
        if moved:
            self._report_ended_static_pod(uid, before)

    def _queue_orders(self, uid: PodUID, orders: Orders) -> None:
        # Queue all orders before any call to another module, because that module may call back and cause new orders.
        self._orders.extend((uid, order) for order in orders)

    def _execute_orders(self) -> None:
        while self._orders:
            self._execute(*self._orders.popleft())

    def _execute(self, uid: PodUID, order: Order) -> None:
        match order:
            case ReadStatus() | SyncTerminatingRuntimePod() as begin:
                self._syncs[uid] = ordered = _OrderedSync(begin)
                if self._group is not None:
                    self._start(self._group, uid, ordered)
            case Cancel():
                self._cancel(uid)
            case Enqueue(delay_seconds=nominal_seconds):
                # The kubelet's wait.Jitter: the delay only becomes longer, never shorter.
                seconds = nominal_seconds * (1 + JITTER * self._clock.fraction())
                self._add_to_history(uid, RetryScheduled(seconds))
                self._notify("the work queue", uid, self._enqueue, uid, seconds)
            case Complete(signals=signals):
                for signal in signals:
                    self._notify("a kill signal", uid, signal.set)
            case RecordEvent(event=event):
                self._notify("the event recorder", uid, self._record_event, event, subject_of(self.state(uid)))
            case SyncPod() | SyncTerminatingPod() | SyncTerminatedPod():
                raise IllegalStep(f"cannot execute {order} for pod {uid}: it must follow a read of the status")

    # Syncs.

    def _start(self, group: asyncio.TaskGroup, uid: PodUID, ordered: _OrderedSync) -> None:
        busy = _busy(self.state(uid))
        if busy is None:
            raise IllegalStep(f"cannot start a sync of pod {uid}: the pod is idle")
        ordered.task = group.create_task(self._run_sync(uid, ordered), name=f"sync of pod {uid}")
        ordered.task.add_done_callback(partial(self._ended, uid, ordered))
        self._add_to_history(uid, SyncStarted(busy.kind, busy.work.update_type))
        if busy.work.start_time is not None:
            waited_seconds = self._clock.monotonic() - busy.work.start_time
            self._notify("the observer", uid, self._observer.sync_started, busy.work.update_type, waited_seconds)

    def _cancel(self, uid: PodUID) -> None:
        ordered = self._syncs[uid]
        if ordered.task is not None:
            ordered.task.cancel()
        else:
            # `run` has not begun, so there is no task whose callback would report the end.
            self._ended(uid, ordered)

    async def _run_sync(self, uid: PodUID, ordered: _OrderedSync) -> None:
        """Run one sync and store its outcome. No exception of a sync gets past this method."""
        try:
            match ordered.begin:
                case SyncTerminatingRuntimePod() as call:
                    ended = await self._call(call, call.running_pod)
                case ReadStatus(newer_than=newer_than):
                    try:
                        record = await self._cache.get_newer_than(uid, newer_than)
                    except Exception as error:
                        ordered.outcome = StatusUnreadable(_text_of(error))
                        self._report_failure(uid, error)
                        return
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise asyncio.CancelledError  # the cache read returned although the task was cancelled
                    ended = await self._call(self._status_read(uid), record)
        except Exception as error:
            # Take the time after the sync, so that the next sync waits for an inspection which shows what this one did.
            ordered.outcome = SyncFailed(self._inspection_clock(), self._pause_after(error))
            self._report_failure(uid, error)
        else:
            ordered.outcome = Synced(self._inspection_clock(), ended)
            self._add_to_history(uid, SyncEnded(SyncResult.POD_ENDED if ended else SyncResult.DONE))

    def _status_read(self, uid: PodUID) -> Call:
        """Report that the sync has read the pod's status. Return the function to call with it."""
        before = self.state(uid)
        # Report before the call. Then the worker of a terminating pod has observed the request, and no container starts
        # any more.
        match self._states.report(uid, StatusRead()):
            case (SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod() as call,):
                if type(self.state(uid)) is not type(before):
                    self._report_move(uid, before)
                return call
            case orders:
                raise IllegalStep(f"cannot execute {orders} for pod {uid}: expected exactly one sync function")

    async def _call(self, call: Call, record: PodRecord) -> bool:
        match call:
            case SyncPod():
                return await self._syncer.sync_pod(call.update_type, call.pod, call.mirror_pod, record)
            case SyncTerminatingPod():
                await self._syncer.sync_terminating_pod(call.pod, record, call.grace_seconds, call.status_function)
            case SyncTerminatingRuntimePod():
                await self._syncer.sync_terminating_runtime_pod(call.running_pod)
            case SyncTerminatedPod():
                await self._syncer.sync_terminated_pod(call.pod, record)
        return False

    def _ended(self, uid: PodUID, ordered: _OrderedSync, _: object = None) -> None:
        # A callback of the task instead of its last statement, because a task cancelled before its first step never
        # runs.
        # First, because the report below may start the next sync of this pod at once.
        del self._syncs[uid]
        if self._stopped:
            return
        if ordered.outcome is None:
            # The task was cancelled. Without an outcome, the worker would wait forever.
            ordered.outcome = SyncFailed(self._inspection_clock())
            self._add_to_history(uid, SyncEnded(SyncResult.CANCELLED))
        self._report(uid, ordered.outcome)

    def _report(self, uid: PodUID, event: SyncEvent) -> None:
        before = self.state(uid)
        orders = self._states.report(uid, event)
        busy = _busy(before)
        if busy is not None and busy.work.start_time is not None:
            operation = "terminated" if isinstance(self.state(uid), Finished) else str(busy.work.update_type)
            seconds = self._clock.monotonic() - busy.work.start_time
            self._notify("the observer", uid, self._observer.sync_ended, operation, seconds)
        self._apply(uid, before, orders)

    def _pause_after(self, error: Exception) -> RetryDelay | BackoffRemaining:
        try:
            return retry_delay_after(error, self._clock.now())
        except Exception:
            log.exception("cannot compute the retry delay after %r", error)
            return RetryDelay.AFTER_ERROR

    def _seen(self, uid: PodUID) -> PodRecord | None:
        """Return the cached record of a pod. None if the cache may lack containers of the pod."""
        try:
            # `get` returns an empty record for a pod that was never inspected. A new agent would then take a running
            # pod for a stopped one and clean it up.
            return self._cache.get_if_sure(uid)
        except AgentError:
            return None
        except Exception:
            log.exception("cannot read pod %s from the cache", uid)
            return None

    # Reports to other modules.

    def _report_move(self, uid: PodUID, before: State) -> None:
        after = self.state(uid)
        subject = subject_of(after) or subject_of(before)
        moved = Moved(pod_state(before), pod_state(after))
        log.info("pod %s (%s) changed state: %s -> %s", _name(subject), uid, moved.before, moved.after)
        self.moves += 1
        self._add_to_history(uid, moved)
        if isinstance(before, Unknown | Waiting) and isinstance(after, Active) and isinstance(subject, Pod):
            self._notify("the observer", uid, self._observer.pod_started, subject)

    def _report_ended_static_pod(self, uid: PodUID, before: State) -> None:
        if isinstance(before, Done) or not isinstance(self.state(uid), Done | Unknown):
            return
        subject = subject_of(before)
        if isinstance(subject, Pod) and is_static_pod(subject):
            self._notify("the loop's inbox", uid, self._static_pod_ended, full_name(subject))

    def _report_failure(self, uid: PodUID, error: Exception) -> None:
        name = _name(subject_of(self.state(uid)))
        if _is_expected(error):
            log.warning("sync of pod %s (%s) failed, will retry: %s", name, uid, _text_of(error))
        else:
            log.error("unexpected error in the sync of pod %s (%s), will retry", name, uid, exc_info=error)
        self._add_to_history(uid, SyncError(_text_of(error)))

    def _add_to_history(self, uid: PodUID, event: HistoryEvent) -> None:
        self._notify("the history", uid, self._add_history, uid, event)

    def _notify(self, receiver: str, uid: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call another module. Its exceptions are logged and do not affect the worker."""
        try:
            call(*args, **kwargs)
        except Exception:
            log.exception("unexpected error of %s in a report about pod %s", receiver, uid)


def _checked(update: Update) -> PodUID:
    """Return the UID of an update's pod. Raises BadInput."""
    if not isinstance(update.type, UpdateType):
        types = ", ".join(f'"{each}"' for each in UpdateType)
        raise BadInput(Problem(f'Unsupported value: "{update.type}": supported values: {types}', "type"))
    if update.pod is None and update.running_pod is None:
        raise BadInput(
            Problem(f"cannot apply a pod update of type {update.type}: it has neither a pod nor a running pod")
        )
    if not update.uid:
        name = _name(update.subject)
        raise BadInput(Problem(f"cannot apply the {update.type} update of pod {name}: Required value", "metadata.uid"))
    return update.uid


def _busy(state: State) -> Busy | None:
    if not isinstance(state, Active) or isinstance(state.activity, Idle):
        return None
    return state.activity


def _is_expected(error: Exception) -> bool:
    """Return whether the error, or each error of a group, is one of the agent's own."""
    if isinstance(error, ExceptionGroup):
        return error.split(AgentError)[1] is None
    return isinstance(error, AgentError)


def _name(subject: Subject | None) -> str:
    match subject:
        case Pod():
            return full_name(subject)
        case PodRecord(name=name, namespace=namespace):
            return f"{name}_{namespace}"
        case None:
            return "?"


def _text_of(error: Exception) -> str:
    """Return the message of an exception, or of each in a group.

    If there is no message, return the name of the type.
    """
    if isinstance(error, ExceptionGroup):
        return "; ".join(dict.fromkeys(map(_text_of, error.exceptions)))
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
