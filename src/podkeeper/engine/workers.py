"""The pod workers: what is decided about each pod is done, one pass at a time per pod.

    update_pod, sync_known_pods --> rules.worker.Workers --> orders --> passes, the work queue, signals, events
                                            ^                              |
                                            `--- how the pass went on <----'

In: updates from the loop, housekeeping's visits. Out: calls of the syncer, and answers to questions about where a
pod stands. Every decision is taken in `rules.worker`; this shell executes the orders at once and in order.

A pass is a task, and there is no other task: an idle pod is a few small values. The state has changed before
`update_pod` returns; a pass that is cut short is a cancelled task whose end is waited for like any other, so one
pod never has two passes, and a pod whose pass hangs is in nobody's way. Whatever a neighbour raises is that pod's
failed pass or a line in the log. Ending `run()` stops the agent, not the pods: passes are cancelled, and nothing
is concluded from that. The Go ancestor is `podWorkers` in pkg/kubelet/pod_workers.go.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec

from podkeeper.engine.cache import PodCache
from podkeeper.engine.observer import Observer
from podkeeper.engine.syncer import PodSyncer
from podkeeper.model.errors import AgentError, BadInput, Problem, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.mirror import full_name, is_static_pod
from podkeeper.rules.worker import questions
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
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.pauses import USUAL_TIMING, Backoff, Pause, Timing, pause_after
from podkeeper.rules.worker.states import Active, Busy, Done, Finished, Idle, State, Unknown, Waiting, in_words
from podkeeper.rules.worker.updates import StatusFunction, Update, UpdateType, kill_request
from podkeeper.rules.worker.workers import KnownPod, Orders, Workers, subject_of

log = logging.getLogger(__name__)

JITTER = 0.5  # a delay is stretched by up to this share of it, so that pods do not come back all at once

Subject = Pod | PodRecord
Begin = ReadStatus | SyncTerminatingRuntimePod  # how a pass may begin: to kill all there is, no status is needed
P = ParamSpec("P")


@dataclass(slots=True, eq=False)
class _Pass:
    """A pass that was ordered and has not been reported."""

    begin: Begin
    task: asyncio.Task[None] | None = None  # None: `run` has not begun
    outcome: PassEvent | None = None  # None: it is under way, or was cut short


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class PodWorkers:
    """The node's pod workers. One owner: the loop."""

    def __init__(
        self,
        *,
        syncer: PodSyncer,
        cache: PodCache,
        enqueue: Callable[[PodUID, float], None],
        record: Callable[[PodEvent, Subject | None], None],
        clock: Clock,
        moment: Callable[[], float],
        timing: Timing = USUAL_TIMING,
        left: Callable[[str], None] = _ignore,
        note: Callable[[PodUID, str, str], None] = _ignore,
        observer: Observer | None = None,
    ) -> None:
        """`left` hears the full name of each static pod that finished or was forgotten, `note` what befell a pod."""
        self._syncer = syncer
        self._cache = cache
        self._enqueue = enqueue
        self._record = record
        self._clock = clock
        self._moment = moment
        self._left = left
        self._note = note
        self._observer = observer or Observer()
        self._workers = Workers(timing)
        self._told: set[PodUID] = set()
        self._orders: deque[tuple[PodUID, Order]] = deque()
        self._group: asyncio.TaskGroup | None = None  # while `run` runs
        self._stopped = False
        self._passes: dict[PodUID, _Pass] = {}

    async def run(self) -> None:
        """Make passes until cancelled; returns once the last of them has ended."""
        if self._group is not None or self._stopped:
            raise RuntimeError("cannot run the pod workers twice")
        async with asyncio.TaskGroup() as self._group:
            try:
                for uid, ordered in list(self._passes.items()):
                    self._begin(self._group, uid, ordered)
                await asyncio.Event().wait()
            finally:  # before the passes notice: their ends mean nothing from now on
                self._stopped, self._group = True, None

    # What the workers are told.

    def update_pod(self, update: Update) -> None:
        """Tell a pod's worker something. The pod's state has changed when this returns."""
        uid = _checked(update)
        if self._stopped:
            raise TryLater(f"cannot update pod {_name(update.subject)}: the agent is stopping")
        self._told.add(uid)
        before = self._workers.state(uid)
        self._follow_up(uid, before, self._workers.update(update, self._seen(uid)))

    def retry(self, uid: PodUID) -> None:
        """Repeat the pass of a pod that is ending and that no source wants."""
        if not self._stopped:
            self._follow_up(uid, self._workers.state(uid), self._workers.retry(uid))

    def sync_known_pods(self, desired: Collection[PodUID]) -> Mapping[PodUID, KnownPod]:
        """Housekeeping's visit: forget what is over, end what nobody wants, tell what remains."""
        if self._stopped:
            raise TryLater("cannot sweep the pod workers: the agent is stopping")
        sweep = self._workers.sync_known_pods(desired)
        self._told = set()
        for uid, orders in sweep.orders.items():
            self._line_up(uid, orders)
        for uid, before in sweep.moved.items():
            self._say_moved(uid, before)
        self._obey()
        for uid, before in sweep.moved.items():
            self._say_left(uid, before)
        self._tell("the observer", "*", self._observer.working, sweep.known)
        return sweep.known

    def forget_restartable(self, uids: Collection[PodUID]) -> Collection[PodUID]:
        """Forget those of these pods that are over and that a source wants again. Returns which ones those are."""
        if self._stopped:
            raise TryLater("cannot forget pod workers: the agent is stopping")
        forgotten = self._workers.forget_restartable(uids)
        for uid, before in forgotten.items():
            self._say_moved(uid, before)
        return forgotten.keys()

    def is_restartable(self, uid: PodUID) -> bool:
        """Whether a pod is over and a source wants it again."""
        return self._workers.is_restartable(uid)

    def told_since_sweep(self) -> frozenset[PodUID]:
        """The pods given to `update_pod` since housekeeping came by: known, though its map lacks them."""
        return frozenset(self._told)

    async def kill_pod(
        self,
        pod: Pod,
        *,
        evict: bool = False,
        grace_override_seconds: int | None = None,
        status_function: StatusFunction | None = None,
    ) -> None:
        """Kill a pod and wait until none of its containers runs; `TryLater` when that takes too long."""
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
            return  # no signal comes from a pod that had finished, or that now never starts
        try:
            async with asyncio.timeout(request.timeout_seconds):
                await completed.wait()
        except TimeoutError as error:
            self._tell("the event recorder", request.update.uid, self._record, request.on_timeout, pod)
            raise TryLater(
                f"cannot kill pod {full_name(pod)} within {request.timeout_seconds} s: its containers may still run"
            ) from error

    # What others may ask.

    def state(self, uid: PodUID) -> State:
        """Where a pod stands, and what its worker is doing."""
        return self._workers.state(uid)

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        """No container of this known pod runs, nor ever will."""
        return questions.is_known_terminated(self.state(uid))

    def could_have_running_containers(self, uid: PodUID) -> bool:
        """A container of this pod may run, or may be started."""
        return questions.could_have_running_containers(self.state(uid), synced=self._workers.synced)

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        """The pod is to end; it may still be setting up."""
        return questions.is_termination_requested(self.state(uid))

    def should_pod_containers_be_terminating(self, uid: PodUID) -> bool:
        """No container of this pod will be started any more."""
        return questions.should_containers_be_terminating(self.state(uid), synced=self._workers.synced)

    def should_pod_runtime_be_removed(self, uid: PodUID) -> bool:
        """What running containers need (volumes, devices, cgroups) may go."""
        return questions.should_runtime_be_removed(self.state(uid), synced=self._workers.synced)

    def should_pod_content_be_removed(self, uid: PodUID) -> bool:
        """All that is kept for the pod (its directories, dead containers, logs) may go."""
        return questions.should_content_be_removed(self.state(uid), synced=self._workers.synced)

    def should_pod_be_finished(self, uid: PodUID) -> bool:
        """All that the pod held is given back."""
        return questions.should_be_finished(self.state(uid), synced=self._workers.synced)

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Whether the static pod that runs under that name is ending: its mirror must stay meanwhile."""
        return self._workers.is_pod_for_mirror_pod_terminating(full_name)

    def next_in_line(self, full_name: str) -> PodUID | None:
        """The static pod of that name whose turn it is by now and which waits to be told."""
        return self._workers.next_in_line(full_name)

    def waiting(self, full_name: str) -> tuple[PodUID, ...]:
        """The static pods of that name that wait for their turn, in the order they came."""
        return self._workers.waiting(full_name)

    # Orders.

    def _follow_up(self, uid: PodUID, before: State, orders: Orders) -> None:
        """Do what a decision about one pod leads to."""
        moved = type(self.state(uid)) is not type(before)
        self._line_up(uid, orders)
        if moved:
            self._say_moved(uid, before)
        self._obey()
        if moved:
            self._say_left(uid, before)

    def _line_up(self, uid: PodUID, orders: Orders) -> None:
        """Put orders behind those not yet executed, before any neighbour can call back and cause new ones."""
        self._orders.extend((uid, order) for order in orders)

    def _obey(self) -> None:
        while self._orders:
            self._execute(*self._orders.popleft())

    def _execute(self, uid: PodUID, order: Order) -> None:
        match order:
            case ReadStatus() | SyncTerminatingRuntimePod() as begin:
                self._passes[uid] = ordered = _Pass(begin)
                if self._group is not None:
                    self._begin(self._group, uid, ordered)
            case Cancel():
                self._cancel(uid)
            case Enqueue(delay_seconds=nominal_seconds):
                seconds = nominal_seconds * (1 + JITTER * self._clock.fraction())
                self._say(uid, "next pass", f"in {seconds:.1f} s")
                self._tell("the work queue", uid, self._enqueue, uid, seconds)
            case Complete(signals=signals):
                for signal in signals:
                    self._tell("a kill signal", uid, signal.set)
            case Record(event=event):
                self._tell("the event recorder", uid, self._record, event, subject_of(self.state(uid)))
            case SyncPod() | SyncTerminatingPod() | SyncTerminatedPod():
                raise IllegalStep(f"{order} outside of a pass that has read a status")

    # Passes.

    def _begin(self, group: asyncio.TaskGroup, uid: PodUID, ordered: _Pass) -> None:
        busy = _busy(self.state(uid))
        if busy is None:
            raise IllegalStep(f"a pass of pod {uid}, which is idle")
        ordered.task = group.create_task(self._make_pass(uid, ordered), name=f"pass of pod {uid}")
        ordered.task.add_done_callback(partial(self._ended, uid, ordered))
        kind = busy.kind.name.lower().replace("_", " ")
        self._say(uid, "pass begun", f"{kind} ({busy.work.update_type})")
        if busy.work.start_time is not None:
            waited_seconds = self._clock.monotonic() - busy.work.start_time
            self._tell("the observer", uid, self._observer.pass_begun, busy.work.update_type, waited_seconds)

    def _cancel(self, uid: PodUID) -> None:
        ordered = self._passes[uid]
        if ordered.task is not None:
            ordered.task.cancel()
        else:
            self._ended(uid, ordered)

    async def _make_pass(self, uid: PodUID, ordered: _Pass) -> None:
        """One pass, one outcome. The boundary that no exception of a pass crosses."""
        try:
            match ordered.begin:
                case SyncTerminatingRuntimePod() as call:
                    ended = await self._call(call, call.running_pod)
                case ReadStatus(newer_than=newer_than):
                    try:
                        record = await self._cache.get_newer_than(uid, newer_than)
                    except Exception as error:
                        ordered.outcome = StatusUnreadable(_text_of(error))
                        self._say_failed(uid, error)
                        return
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise asyncio.CancelledError  # whoever read it took the cancelling for done
                    ended = await self._call(self._status_read(uid), record)
        except Exception as error:
            ordered.outcome = Failed(self._moment(), self._pause_after(error))
            self._say_failed(uid, error)
        else:
            ordered.outcome = Passed(self._moment(), ended)
            self._say(uid, "pass ended", "the pod has come to its end" if ended else "done")

    def _status_read(self, uid: PodUID) -> Call:
        """Say that the pass has its status; learn what it is to call with it."""
        before = self.state(uid)
        match self._workers.report(uid, StatusRead()):
            case (SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod() as call,):
                if type(self.state(uid)) is not type(before):
                    self._say_moved(uid, before)
                return call
            case orders:
                raise IllegalStep(f"{orders} for a pass that has read a status")

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

    def _ended(self, uid: PodUID, ordered: _Pass, _: object = None) -> None:
        """A pass is over. Heard from outside its task: one that is cancelled before its first step never runs."""
        del self._passes[uid]
        if self._stopped:
            return
        if ordered.outcome is None:
            ordered.outcome = Failed(self._moment())
            self._say(uid, "pass ended", "cut short")
        self._report(uid, ordered.outcome)

    def _report(self, uid: PodUID, event: PassEvent) -> None:
        """Tell the machine how a pass ended, and do what follows from it."""
        before = self.state(uid)
        orders = self._workers.report(uid, event)
        busy = _busy(before)
        if busy is not None and busy.work.start_time is not None:
            operation = "terminated" if isinstance(self.state(uid), Finished) else str(busy.work.update_type)
            seconds = self._clock.monotonic() - busy.work.start_time
            self._tell("the observer", uid, self._observer.pass_ended, operation, seconds)
        self._follow_up(uid, before, orders)

    def _pause_after(self, error: Exception) -> Pause | Backoff:
        try:
            return pause_after(error, self._clock.now())
        except Exception:
            log.exception("cannot tell how long to leave a pod alone after %r", error)
            return Pause.AFTER_ERROR

    def _seen(self, uid: PodUID) -> PodRecord | None:
        """What the cache holds of a pod; None when it cannot tell."""
        try:
            return self._cache.get_if_sure(uid)
        except AgentError:
            return None
        except Exception:
            log.exception("the cache cannot tell what runs of pod %s", uid)
            return None

    # Telling others.

    def _say_moved(self, uid: PodUID, before: State) -> None:
        after = self.state(uid)
        subject = subject_of(after) or subject_of(before)
        move = f"{in_words(before)} -> {in_words(after)}"
        log.info("pod %s (%s) moved: %s", _name(subject), uid, move)
        self._say(uid, "moved", move)
        if isinstance(before, Unknown | Waiting) and isinstance(after, Active) and isinstance(subject, Pod):
            self._tell("the observer", uid, self._observer.pod_started, subject)

    def _say_left(self, uid: PodUID, before: State) -> None:
        """Tell of a static pod that is in no other's way any more."""
        if isinstance(before, Done) or not isinstance(self.state(uid), Done | Unknown):
            return
        subject = subject_of(before)
        if isinstance(subject, Pod) and is_static_pod(subject):
            self._tell("who wakes static pods", uid, self._left, full_name(subject))

    def _say_failed(self, uid: PodUID, error: Exception) -> None:
        name = _name(subject_of(self.state(uid)))
        if _is_foreseen(error):
            log.warning("pass of pod %s (%s) failed, will retry: %s", name, uid, _text_of(error))
        else:
            log.error("pass of pod %s (%s) failed in an unforeseen way, will retry", name, uid, exc_info=error)
        self._say(uid, "pass ended", f"failed: {_text_of(error)}")

    def _say(self, uid: PodUID, what: str, detail: str) -> None:
        self._tell("the history", uid, self._note, uid, what, detail)

    def _tell(self, who: str, uid: str, tell: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a neighbour about a pod; what it raises is its own trouble."""
        try:
            tell(*args, **kwargs)
        except Exception:
            log.exception("%s raised when told of pod %s; going on", who, uid)


def _checked(update: Update) -> PodUID:
    """The UID an update is about, or why it cannot be used."""
    if not isinstance(update.type, UpdateType):
        types = ", ".join(UpdateType)
        raise BadInput(Problem(f"cannot take a pod update of type {update.type!r}; right would be one of: {types}"))
    if update.pod is None and update.running_pod is None:
        raise BadInput(Problem(f"cannot tell whom the {update.type} update is about: give a pod or a running pod"))
    if not update.uid:
        name = _name(update.subject)
        raise BadInput(Problem(f"cannot take the {update.type} update of pod {name}: it has no UID", "metadata.uid"))
    return update.uid


def _busy(state: State) -> Busy | None:
    if not isinstance(state, Active) or isinstance(state.activity, Idle):
        return None
    return state.activity


def _is_foreseen(error: Exception) -> bool:
    """Whether we raised it ourselves, all of it if it is a group."""
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
    """What an exception says, or each of a group; one that cannot even say that is named."""
    if isinstance(error, ExceptionGroup):
        return "; ".join(dict.fromkeys(map(_text_of, error.exceptions)))
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
