"""The states of all pod workers of the node, and decisions across pods.

In: updates, housekeeping rounds and sync events. Out: orders, which the shell (`engine/workers.py`) executes at
once and in order. `step` makes every decision. `WorkerTable` stores the states, orders static pods with the same
full name, and stores whether housekeeping has run.

A static pod does not start by itself when its predecessor has finished. The owner must update it again.
`next_in_line` returns its UID. Kubelet counterpart: `podWorkers` and `SyncKnownPods` in
pkg/kubelet/pod_workers.go.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.static import mirror
from podkeeper.rules.worker import predicates
from podkeeper.rules.worker.events import (
    Event,
    HousekeepingRan,
    Order,
    RequestStart,
    RetryDue,
    StartAllowed,
    StartDeferred,
    SyncEvent,
    Updated,
)
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
from podkeeper.rules.worker.static_order import StaticOrder
from podkeeper.rules.worker.step import is_kept_by_housekeeping, step
from podkeeper.rules.worker.syncs import last_work
from podkeeper.rules.worker.timing import DEFAULT_TIMING, SyncTiming
from podkeeper.rules.worker.updates import Update

Orders = tuple[Order, ...]


class PodWorkerState(StrEnum):
    """The state of a known pod, as housekeeping needs it."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class PodWorkerSync:
    """A known pod, as housekeeping needs it."""

    state: PodWorkerState
    orphan: bool  # no source has it
    has_config: bool  # its worker has, or had, its configuration
    static: bool


@dataclass(frozen=True, slots=True)
class SyncKnownPodsResult:
    """The known pods and the orders after a round. Desired pods that are not known must be created again."""

    known: dict[PodUID, PodWorkerSync]
    orders: dict[PodUID, Orders]
    moved: dict[PodUID, State] = field(default_factory=dict)  # the former state of each pod whose state changed


_HOUSEKEEPING_RAN = {
    is_desired: HousekeepingRan(is_desired) for is_desired in (False, True)
}  # shared, because a round covers every pod


@dataclass(slots=True)
class _WorkerEntry:
    full_name: str
    state: State
    _cached: tuple[State, PodWorkerSync] | None = None

    def known(self) -> PodWorkerSync:
        """Return the worker of a desired pod for housekeeping. Cached per state, because it runs for every pod."""
        if self._cached is None or self._cached[0] is not self.state:
            self._cached = (self.state, _known(self.state, orphan=False))
        return self._cached[1]


class WorkerTable:
    """The states of the node's pod workers. All methods are synchronous: the state has changed when they return."""

    def __init__(self, timing: SyncTiming = DEFAULT_TIMING) -> None:
        self._timing = timing
        self._workers: dict[PodUID, _WorkerEntry] = {}
        self._static_order = StaticOrder()
        self.synced = False  # housekeeping has run, so unknown pods are removed pods

    def update(self, update: Update, runtime: PodRecord | None) -> Orders:
        """Send an update to a pod's worker, and create the worker if needed. `runtime`: see `Updated`."""
        uid = update.uid
        if uid not in self._workers:
            self._workers[uid] = _WorkerEntry(_full_name(update.subject), Unknown())
            if update.pod is not None and mirror.is_static_pod(update.pod):
                # At the first sight, so that static pods of one name start in the order in which they were received
                # (k/k 104648).
                self._static_order.join(self._workers[uid].full_name, uid)
        return self._send(uid, Updated(update, runtime))

    def retry(self, uid: PodUID) -> Orders:
        """Repeat the sync of a terminating pod that no source has."""
        return self._send(uid, RetryDue()) if uid in self._workers else ()

    def report(self, uid: PodUID, event: SyncEvent) -> Orders:
        """Handle the progress or the end of a sync."""
        return self._send(uid, event)

    def sync_known_pods(self, desired: Collection[PodUID]) -> SyncKnownPodsResult:
        """Remove finished workers, terminate orphaned pods, and return the remaining known pods."""
        self.synced = True
        result = SyncKnownPodsResult({}, {})
        for uid, worker in list(self._workers.items()):
            before, is_desired = worker.state, uid in desired
            # Housekeeping took 5 % of a core with 10,000 pods at rest before this shortcut.
            if is_desired and is_kept_by_housekeeping(before):  # the usual case
                result.known[uid] = worker.known()
                continue
            if orders := self._send(uid, _HOUSEKEEPING_RAN[is_desired]):
                result.orders[uid] = orders
            if type(worker.state) is not type(before):
                result.moved[uid] = before
            if not isinstance(worker.state, Unknown):
                result.known[uid] = _known(worker.state, orphan=not is_desired)
        return result

    def forget_restartable(self, uids: Collection[PodUID]) -> dict[PodUID, State]:
        """Remove finished workers of pods that a source added again, and return their states.

        The caller must create these pods again. `sync_known_pods` does the same, but it also terminates orphaned pods,
        so it must wait until all sources are ready.
        """
        removed = {uid: self.state(uid) for uid in uids if self.is_restartable(uid)}
        for uid in removed:
            self._send(uid, _HOUSEKEEPING_RAN[True])
        return removed

    def is_restartable(self, uid: PodUID) -> bool:
        """Return whether a pod has finished and a source added it again since its termination began."""
        state = self.state(uid)
        return isinstance(state, Finished | NeverStarted) and state.restart_requested

    def state(self, uid: PodUID) -> State:
        worker = self._workers.get(uid)
        return Unknown() if worker is None else worker.state

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Return whether the started static pod of a full name must stop. Its mirror pod stays meanwhile."""
        uid = self._static_order.started(full_name)
        return uid is not None and predicates.is_stopping(self.state(uid))

    def next_in_line(self, full_name: str) -> PodUID | None:
        """Return the waiting static pod of a full name that may start now. The owner must update it."""
        uid = self._static_order.next(full_name, self._may_still_start)
        return uid if uid is not None and isinstance(self.state(uid), Waiting) else None

    def waiting(self, full_name: str) -> tuple[PodUID, ...]:
        """Return the waiting static pods of a full name, in the order received."""
        uids = dict.fromkeys(
            self._static_order.waiting(full_name)
        )  # drop duplicates: a pod that was removed and added again is listed twice
        return tuple(uid for uid in uids if isinstance(self.state(uid), Waiting))

    def _send(self, uid: PodUID, event: Event) -> Orders:
        worker = self._workers[uid]
        result = step(worker.state, event, self._timing)
        worker.state = result.state
        if isinstance(worker.state, Finished | NeverStarted | Unknown):
            # Also when the worker is forgotten. A name that stays taken would block its next static pod forever (k/k
            # 107483).
            self._static_order.leave(worker.full_name, uid)
        if isinstance(worker.state, Unknown):
            del self._workers[uid]
        orders: list[Order] = []
        for order in result.orders:
            if isinstance(order, RequestStart):
                orders += self._send(uid, StartAllowed() if self._may_start(uid) else StartDeferred())
            else:
                orders.append(order)
        return tuple(orders)

    def _may_start(self, uid: PodUID) -> bool:
        """Return whether a waiting pod may start. If so, other pods with its full name wait for it."""
        pod = _pod_of(self.state(uid))
        if pod is None or not mirror.is_static_pod(pod):
            return True
        return self._static_order.start(self._workers[uid].full_name, uid, self._may_still_start)

    def _may_still_start(self, uid: PodUID) -> bool:
        return isinstance(self.state(uid), Waiting | Syncing)


def _full_name(subject: Pod | PodRecord) -> str:
    match subject:
        case Pod():
            return mirror.full_name(subject)
        case PodRecord(name=name, namespace=namespace):
            return f"{name}_{namespace}"


def _known(state: State, *, orphan: bool) -> PodWorkerSync:
    worker_state = PodWorkerState.SYNC
    if predicates.is_termination_requested(state):
        worker_state = (
            PodWorkerState.TERMINATED if predicates.is_known_terminated(state) else PodWorkerState.TERMINATING
        )
    pod = _pod_of(state)
    return PodWorkerSync(
        worker_state, orphan, has_config=pod is not None, static=pod is not None and mirror.is_static_pod(pod)
    )


def _pod_of(state: State) -> Pod | None:
    """Return the pod configuration of the current, last or first sync."""
    subject = subject_of(state)
    return subject if isinstance(subject, Pod) else None


def subject_of(state: State) -> Pod | PodRecord | None:
    """Return the subject of the current, last or first sync. None if there is no sync."""
    match state:
        case Waiting(pending=work):
            return work.subject
        case Syncing(activity=activity) | Terminated(activity=activity):
            return last_work(activity).subject
        case TerminationRequested(activity=activity) | Terminating(activity=activity):
            return last_work(activity).subject
        case Finished(pod=pod):
            return pod
        case NeverStarted() | Unknown():
            return None
