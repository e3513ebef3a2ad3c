"""The handlers: what each piece of news does to the node, pod by pod.

In: updates of desired pods, lifecycle events, probe results, work that is due. Out: updates for the workers, flags and
rejections for the status manager. What news means is decided in `rules.dispatch`; these shells keep the order: first
the pod manager, then the decision, then the workers. Nothing here awaits.

News of many pods is handled as an iterator, one step per pod, so that the loop can give way in between. What goes wrong
with one pod is logged with its name, and the next one's turn comes. The Go ancestors are the `HandlePod...` functions
in pkg/kubelet/kubelet.go.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Protocol

from podkeeper.engine.admission import Admission
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.manager import PodManager
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import LifecycleEvent, Op, PodEvent, PodUID, PodUpdate, ProbeUpdate
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules import admit, dispatch
from podkeeper.rules.mirror import Couple, full_name, is_mirror_pod
from podkeeper.rules.worker.updates import Update

log = logging.getLogger(__name__)


class Removals(Protocol):
    """Decides what the removal of a pod means."""

    def __call__(self, couple: Couple, at: float, *, all_sources_ready: bool) -> Update | None:
        """The update to hand to the workers, if any."""


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


def _no(_: object) -> bool:
    """Nobody knows of any."""
    return False


class SyncHandlers:
    """What the loop does with what it hears."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        status: StatusManager,
        deadlines: ActiveDeadlines,
        admission: Admission,
        preemption: Preemption,
        sources: Collection[str],
        has_seen: Callable[[Iterable[str]], bool],
        collect_dead: Callable[[PodUID, str, bool], None],
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        clock: Clock,
        on_removal: Removals = dispatch.on_removal,
        note: Callable[[PodUID, str, str], None] = _ignore,
        ask_anew: Callable[[Pod], bool] = _no,
        rejected: Callable[[str], None] = _ignore,
        retry: Callable[[PodUID], None] = _ignore,
    ) -> None:
        """`has_seen` is the storage's; `collect_dead(uid, container_id, everything)` removes dead containers."""
        self._pods = pods
        self._workers = workers
        self._status = status
        self._deadlines = deadlines
        self._admission = admission
        self._preemption = preemption
        self._sources = frozenset(sources)
        self._has_seen = has_seen
        self._collect_dead = collect_dead
        self._record = record
        self._clock = clock
        self._on_removal = on_removal
        self._note = note
        self._ask_anew = ask_anew  # whether a pod had been turned away before, which is forgotten with this
        self._rejected = rejected  # hears the reasons
        self._retry = retry  # of a pod that is not desired; the kubelet leaves those to housekeeping
        self._heard: set[str] = set()  # sources of which an update has been handled

    def all_sources_ready(self) -> bool:
        """Every source has spoken, and what it said first has been handled."""
        return self._heard >= self._sources and self._has_seen(self._sources)

    def config(self, update: PodUpdate) -> Iterator[bool]:
        """Handle an update of desired pods, one pod per step. A step that yields True took long."""
        handlers: dict[str, Callable[[Pod, float], bool | None]] = {
            Op.ADD: self._add,
            Op.UPDATE: self._update,
            Op.DELETE: self._update,  # a deletion is graceful: only a changed pod
            Op.REMOVE: self._remove,
            Op.RECONCILE: self._reconcile,
        }
        log.debug("%s of %d pods from source %s", update.op, len(update.pods), update.source)
        at, handle = self._clock.monotonic(), handlers.get(update.op)
        if handle is None:
            log.error("refused %r of source %s: the loop takes %s", update.op, update.source, ", ".join(handlers))
        else:
            for pod in dispatch.in_order_of_creation(update.pods) if update.op is Op.ADD else update.pods:
                if pod.metadata.uid:
                    yield _isolated(f"handle {update.op} of", full_name(pod), partial(handle, pod, at))
                else:
                    log.error("refused %s of pod %s from source %s: no UID", update.op, full_name(pod), update.source)
        self._heard.add(update.source)

    def lifecycle(self, event: LifecycleEvent) -> None:
        """Handle what happened in a pod."""
        answer = dispatch.on_lifecycle_event(event)
        if answer.sync:
            self.sync(event.uid)
        if answer.collect_dead_containers and event.data:
            everything = self._workers.should_pod_content_be_removed(event.uid)
            collect = partial(self._collect_dead, event.uid, event.data, everything)
            _isolated("remove dead containers of", event.uid, collect)

    def probe(self, update: ProbeUpdate) -> None:
        """Handle a changed probe result."""
        _isolated(f"take a {update.kind} result of", update.uid, partial(self._set_flags, update))

    def sync(self, uid: PodUID) -> None:
        """Have a pod looked after, if it is desired."""
        _isolated("sync", uid, partial(self._sync, uid))

    def retry(self, uid: PodUID) -> None:
        """Sync a pod whose retry or deadline is due. If it is not desired, repeat its failed clean-up."""
        if self._pods.pod_by_uid(uid) is None:
            _isolated("retry", uid, partial(self._retry, uid))
        else:
            self.sync(uid)

    def wake_successor(self, name: str) -> None:
        """The static pod of that full name has left: have the next one started, if one waits."""
        uid = self._workers.next_in_line(name)
        if uid is not None:
            self.sync(uid)

    # One pod at a time.

    def _add(self, pod: Pod, at: float) -> bool:
        """A new pod. True when it did not simply fit, which takes longer."""
        self._pods.update(pod)
        couple = self._pods.couple(pod)
        if not couple.asked_by_mirror:
            self._deadlines.follow(pod)
        elif couple.pod is not None:
            self._status.mirror_changed(_uid(couple.pod))
        anew = not couple.asked_by_mirror and self._ask_anew(pod)
        match self._addition(couple, at, never_ran=anew):
            case dispatch.Admission(update=update):
                return self._ask_for_admission(pod, update)
            case update:
                self._deliver(update)
        return False

    def _addition(self, couple: Couple, at: float, *, never_ran: bool = False) -> Update | dispatch.Admission | None:
        ends = couple.pod is not None and self._workers.is_pod_termination_requested(_uid(couple.pod))
        return dispatch.on_addition(couple, at, termination_requested=ends and not never_ran)

    def _update(self, pod: Pod, at: float) -> None:
        self._take_in(pod)
        self._deliver(dispatch.on_update(self._pods.couple(pod), at))

    def _remove(self, pod: Pod, at: float) -> None:
        self._pods.remove(pod)
        if not is_mirror_pod(pod):
            self._admission.forget(_uid(pod))
            self._deadlines.forget(_uid(pod))
        couple = self._pods.couple(pod)
        update = self._on_removal(couple, at, all_sources_ready=self.all_sources_ready())
        if couple.asked_by_mirror:
            self._deliver(update)
        elif update is not None:
            self._workers.update_pod(update)  # also of one that is held: there is nothing left to hold it for

    def _reconcile(self, pod: Pod, at: float) -> None:
        self._take_in(pod)
        couple = self._pods.couple(pod)
        answer = dispatch.on_reconciliation(couple, at)
        self._deliver(answer.update)
        if answer.clean_dead_containers and couple.pod is not None:
            self._collect_dead(_uid(couple.pod), "", True)

    def _take_in(self, pod: Pod) -> None:
        """Let everybody know how a pod (or mirror) is now."""
        self._pods.update(pod)
        if not is_mirror_pod(pod):
            self._admission.update(pod)
            self._deadlines.follow(pod)

    def _deliver(self, update: Update | None) -> None:
        """Tell the workers, unless there is nothing to tell or the pod is held."""
        if update is None:
            return
        # One that is being deleted needs no room: its grace would be spent waiting for that of its victims.
        if update.uid not in self._preemption.held() or (update.pod is not None and _is_being_deleted(update.pod)):
            self._workers.update_pod(update)

    def _sync(self, uid: PodUID) -> None:
        pod = self._pods.pod_by_uid(uid)
        if pod is None:
            log.debug("pod %s is not desired: not synced", uid)
            return
        self._deliver(dispatch.on_sync(pod, self._pods.couple(pod).mirror, self._clock.monotonic()))

    def _set_flags(self, update: ProbeUpdate) -> None:
        answer = dispatch.on_probe_result(update.kind, update.result)
        if answer.ready is not None:
            self._status.set_container_readiness(update.uid, update.container_id, answer.ready)
        if answer.started is not None:
            self._status.set_container_startup(update.uid, update.container_id, answer.started)
        if answer.sync:
            self._sync(update.uid)

    # Admission.

    def _ask_for_admission(self, pod: Pod, update: Update) -> bool:
        uid = _uid(pod)
        if uid in self._preemption.held():
            return False
        verdict = self._admission.admit(pod)
        if isinstance(verdict, admit.Preempt) and _is_being_deleted(pod):
            verdict = None  # it is let in to end: nobody is killed for that
        match verdict:
            case None:
                self._admission.add(pod)
                self._workers.update_pod(update)
                return False
            case admit.Rejection(reason=reason, message=message):
                self._reject(pod, reason, message)
            case admit.Preempt() as preempt:
                self._admission.add(pod)  # at once, or others would take the room that is being made
                self._note(uid, "held", f"until {len(preempt.victims)} pods have been killed for it")
                self._preemption.hold(pod, preempt, partial(self._start_held, uid))
        return True

    def _reject(self, pod: Pod, reason: str, message: str) -> None:
        log.info("pod %s (%s) rejected: %s: %s", full_name(pod), pod.metadata.uid, reason, message)
        self._admission.forget(_uid(pod))
        rejection = dispatch.rejection(pod, reason, message)
        self._status.set_pod_status(pod, rejection.status)
        self._record(rejection.event, pod)
        self._note(_uid(pod), "rejected", f"{reason}: {message}")
        self._rejected(reason)

    def _start_held(self, uid: PodUID) -> None:
        """Tell the workers of a pod for which there is room now, as it is by now. Of its deletion they know."""
        pod = self._pods.pod_by_uid(uid)
        if pod is not None and not _is_being_deleted(pod):
            answer = self._addition(self._pods.couple(pod), self._clock.monotonic())
            self._deliver(answer.update if isinstance(answer, dispatch.Admission) else answer)


def _isolated(what: str, whom: str, act: Callable[[], bool | None]) -> bool:
    """Do what concerns one pod: its failure is its own. Returns what it returns, if anything."""
    try:
        return act() or False
    except AgentError as error:
        log.error("cannot %s pod %s: %s", what, whom, error)
    except Exception:
        log.exception("cannot %s pod %s", what, whom)
    return False


def _is_being_deleted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
