"""Handlers: apply each message to the pods that it names, one pod at a time.

Input: updates of desired pods, lifecycle events, probe results, due syncs. Output: updates for the workers, container
flags and rejections for the status manager. `rules.dispatch` decides what a message means. The handlers keep the
order: first the pod manager, then the decision, then the workers. No handler awaits.

An update of many pods is an iterator with one step per pod, so that the loop can yield in between. An error of one pod
is logged with its name, and the next pod is handled. Kubelet counterparts: the `HandlePod...` functions in
pkg/kubelet/kubelet.go.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Protocol

from podkeeper.engine.admission import Admission
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.events import EventFunction
from podkeeper.engine.history import PodHistory
from podkeeper.engine.manager import PodManager
from podkeeper.engine.observer import Observer
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import AgentError
from podkeeper.model.history import HistoryEvent, PodHeld, PodRejected
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import LifecycleEvent, Op, PodUID, PodUpdate, ProbeUpdate
from podkeeper.model.pods import uid_of
from podkeeper.ports.clock import Clock
from podkeeper.rules import dispatch
from podkeeper.rules.admission import admit
from podkeeper.rules.static.mirror import PodAndMirror, full_name, is_mirror_pod
from podkeeper.rules.worker.updates import Update

log = logging.getLogger(__name__)


class RemovalRule(Protocol):
    def __call__(self, pair: PodAndMirror, at: float, *, all_sources_ready: bool) -> Update | None:
        """Return the update for the worker of a removed pod, if any."""


class SyncHandlers:
    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        statuses: StatusManager,
        deadlines: ActiveDeadlines,
        admission: Admission,
        preemption: Preemption,
        sources: Collection[str],
        has_seen: Callable[[Iterable[str]], bool],
        collect_dead: Callable[[PodUID, str, bool], None],
        record_event: EventFunction,
        clock: Clock,
        on_removal: RemovalRule = dispatch.on_removal,
        history: PodHistory | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`has_seen` returns whether these sources have sent their first SET.

        `collect_dead(uid, container_id, everything)` removes dead containers.
        """
        self._pods = pods
        self._workers = workers
        self._statuses = statuses
        self._deadlines = deadlines
        self._admission = admission
        self._preemption = preemption
        self._sources = frozenset(sources)
        self._has_seen = has_seen
        self._collect_dead = collect_dead
        self._record_event = record_event
        self._clock = clock
        self._on_removal = on_removal
        self._history = history
        self._observer = observer or Observer()
        self._handled: set[str] = set()  # sources with at least one handled update

    def all_sources_ready(self) -> bool:
        """Return whether all sources have sent their first SET and the handlers have handled it."""
        return self._handled >= self._sources and self._has_seen(self._sources)

    def config(self, update: PodUpdate) -> Iterator[bool]:
        """Handle an update of desired pods, one pod per step. Yield True after a slow step."""
        handlers: dict[str, Callable[[Pod, float], bool | None]] = {
            Op.ADD: self._add,
            Op.UPDATE: self._update,
            Op.DELETE: self._update,  # a graceful deletion, which only changes the pod
            Op.REMOVE: self._remove,
            Op.RECONCILE: self._reconcile,
        }
        log.debug("%s of %d pods from source %s", update.op, len(update.pods), update.source)
        at, handle = self._clock.monotonic(), handlers.get(update.op)
        if handle is None:
            known = ", ".join(handlers)
            log.error("ignored update %r of source %s: supported operations: %s", update.op, update.source, known)
        else:
            for pod in dispatch.pods_by_creation_time(update.pods) if update.op is Op.ADD else update.pods:
                if pod.metadata.uid:
                    yield _isolated(f"handle {update.op} of", full_name(pod), partial(handle, pod, at))
                else:
                    log.error("ignored %s of pod %s from source %s: no UID", update.op, full_name(pod), update.source)
        # After the last pod: until then, housekeeping would treat the remaining pods of this source as orphaned.
        self._handled.add(update.source)

    def lifecycle(self, event: LifecycleEvent) -> None:
        answer = dispatch.on_lifecycle_event(event)
        if answer.sync:
            self.sync(event.uid)
        if answer.collect_dead_containers and event.data:
            # The kubelet's rule. The deletor checks in addition that the exit codes are stored.
            everything = self._workers.should_pod_content_be_removed(event.uid)
            collect = partial(self._collect_dead, event.uid, event.data, everything)
            _isolated("remove dead containers of", event.uid, collect)

    def probe(self, update: ProbeUpdate) -> None:
        _isolated(f"handle a {update.kind} probe result of", update.uid, partial(self._set_flags, update))

    def sync(self, uid: PodUID) -> None:
        """Sync a pod if it is desired."""
        _isolated("sync", uid, partial(self._sync, uid))

    def retry(self, uid: PodUID) -> None:
        """Sync a pod whose retry or deadline is due. If it is not desired, repeat its failed cleanup.

        The kubelet has no counterpart of that repetition.
        """
        if self._pods.pod_by_uid(uid) is None:
            _isolated("retry", uid, partial(self._workers.retry, uid))
        else:
            self.sync(uid)

    def wake_successor(self, name: str) -> None:
        """Start the next static pod with this full name, because its predecessor has ended."""
        uid = self._workers.next_in_line(name)
        if uid is not None:
            self.sync(uid)

    # Single pods.

    def _add(self, pod: Pod, at: float) -> bool:
        """Handle a new pod. Return True if it was rejected or needs preemption, because that takes longer."""
        self._pods.update(pod)
        pair = self._pods.pair_of(pod)
        if not pair.was_mirror:
            self._deadlines.follow(pod)
        elif pair.pod is not None:
            # Send the status at once instead of with the next batch (k/k 137309).
            self._statuses.mirror_changed(uid_of(pair.pod))
        # In the kubelet, a rejected static pod whose manifest is removed and soon restored is never checked again.
        never_ran = not pair.was_mirror and self._statuses.forget_rejection(pod)
        match self._addition(pair, at, never_ran=never_ran):
            case dispatch.AdmissionNeeded(update=update):
                return self._admit(pod, update)
            case update:
                self._deliver(update)
        return False

    def _addition(
        self, pair: PodAndMirror, at: float, *, never_ran: bool = False
    ) -> Update | dispatch.AdmissionNeeded | None:
        ends = pair.pod is not None and self._workers.is_pod_termination_requested(uid_of(pair.pod))
        return dispatch.on_addition(pair, at, termination_requested=ends and not never_ran)

    def _update(self, pod: Pod, at: float) -> None:
        self._store(pod)
        self._deliver(dispatch.on_update(self._pods.pair_of(pod), at))

    def _remove(self, pod: Pod, at: float) -> None:
        # First the manager, as in the kubelet, because the decision must see the pods after the change.
        self._pods.remove(pod)
        if not is_mirror_pod(pod):
            self._admission.forget(uid_of(pod))
            self._deadlines.forget(uid_of(pod))
        pair = self._pods.pair_of(pod)
        update = self._on_removal(pair, at, all_sources_ready=self.all_sources_ready())
        if pair.was_mirror:
            self._deliver(update)
        elif update is not None:
            self._workers.update_pod(update)  # also if the pod is held, because it will never start

    def _reconcile(self, pod: Pod, at: float) -> None:
        self._store(pod)
        pair = self._pods.pair_of(pod)
        answer = dispatch.on_reconciliation(pair, at)
        self._deliver(answer.update)
        if answer.clean_dead_containers and pair.pod is not None:
            self._collect_dead(uid_of(pair.pod), "", True)

    def _store(self, pod: Pod) -> None:
        """Store the new version of a pod or mirror pod."""
        self._pods.update(pod)
        if not is_mirror_pod(pod):
            self._admission.update(pod)
            self._deadlines.follow(pod)

    def _deliver(self, update: Update | None) -> None:
        """Send an update to the workers, unless the pod is held."""
        if update is None:
            return
        # A pod that is being deleted needs no room. Otherwise it would wait for the grace period of its victims.
        if update.uid not in self._preemption.held() or (update.pod is not None and _is_being_deleted(update.pod)):
            self._workers.update_pod(update)

    def _sync(self, uid: PodUID) -> None:
        pod = self._pods.pod_by_uid(uid)
        if pod is None:
            log.debug("pod %s is not desired, not synced", uid)
            return
        self._deliver(dispatch.on_sync(pod, self._pods.pair_of(pod).mirror, self._clock.monotonic()))

    def _set_flags(self, update: ProbeUpdate) -> None:
        answer = dispatch.on_probe_result(update.kind, update.result)
        if answer.ready is not None:
            self._statuses.set_container_readiness(update.uid, update.container_id, answer.ready)
        if answer.started is not None:
            self._statuses.set_container_startup(update.uid, update.container_id, answer.started)
        if answer.sync:
            self._sync(update.uid)

    # Admission.

    def _admit(self, pod: Pod, update: Update) -> bool:
        uid = uid_of(pod)
        # A second ADD of a held pod must not preempt a second time.
        if uid in self._preemption.held():
            return False
        decision = self._admission.admit(pod)
        if isinstance(decision, admit.Preempt) and _is_being_deleted(pod):
            decision = None  # the pod only terminates, so admission must not preempt other pods for it
        match decision:
            case None:
                self._admission.add(pod)
                self._workers.update_pod(update)
                return False
            case admit.Rejection(reason=reason, message=message):
                self._reject(pod, reason, message)
            case admit.Preempt() as preempt:
                self._admission.add(pod)  # at once, so that no other pod gets the resources of the victims
                self._note(uid, PodHeld(len(preempt.victims)))
                self._preemption.hold(pod, preempt, partial(self._start_held, uid))
        return True

    def _reject(self, pod: Pod, reason: str, message: str) -> None:
        log.info("pod %s (%s) rejected: %s: %s", full_name(pod), pod.metadata.uid, reason, message)
        self._admission.forget(uid_of(pod))
        rejection = dispatch.rejection(pod, reason, message)
        # As in the kubelet, the rejection is the status Failed. The pod gets no worker.
        self._statuses.set_pod_status(pod, rejection.status)
        self._record_event(rejection.event, pod)
        self._note(uid_of(pod), PodRejected(reason, message))
        self._observer.rejected(reason)

    def _note(self, uid: PodUID, event: HistoryEvent) -> None:
        if self._history is not None:
            self._history.add(uid, event)

    def _start_held(self, uid: PodUID) -> None:
        """Start a held pod after its victims have ended, unless it was removed or deleted meanwhile."""
        pod = self._pods.pod_by_uid(uid)
        if pod is not None and not _is_being_deleted(pod):
            answer = self._addition(self._pods.pair_of(pod), self._clock.monotonic())
            self._deliver(answer.update if isinstance(answer, dispatch.AdmissionNeeded) else answer)


def _isolated(what: str, pod: str, act: Callable[[], bool | None]) -> bool:
    """Run an action for one pod and return its result. Log its exceptions, so that other pods are handled."""
    try:
        return act() or False
    except AgentError as error:
        log.error("cannot %s pod %s: %s", what, pod, error)
    except Exception:
        log.exception("cannot %s pod %s", what, pod)
    return False


def _is_being_deleted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
