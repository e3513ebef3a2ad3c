"""All pod workers of the node: one state per pod, and what spans pods.

In: updates, housekeeping's visits, the progress of passes. Out: orders, which the shell
(`engine/workers.py`) executes at once and in order, and answers to questions. Every decision is taken by
`step`; this class keeps the states, sees to it that static pods of one full name take turns, and
remembers whether housekeeping has come by.

It leaves one thing to its owner: a static pod whose predecessor has left is not started by itself, it
must be told again. `next_in_line` names it. The Go ancestors are `podWorkers` and `SyncKnownPods` in
pkg/kubelet/pod_workers.go.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules import mirror
from podkeeper.rules.worker import questions
from podkeeper.rules.worker.events import AskForTurn, Event, MayStart, MustWait, Order, PassEvent, RetryDue, Swept, Told
from podkeeper.rules.worker.passes import taken
from podkeeper.rules.worker.pauses import USUAL_TIMING, Timing
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
from podkeeper.rules.worker.step import stays_in_a_sweep, step
from podkeeper.rules.worker.updates import Update

Orders = tuple[Order, ...]


class Stage(StrEnum):
    """Where a known pod stands, as housekeeping sees it."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class KnownPod:
    """One worker, as housekeeping sees it."""

    stage: Stage
    orphan: bool  # no source wants it
    has_config: bool  # its worker has (or had) a configuration to work with
    static: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a visit of housekeeping found and set going. Desired pods that are not known are to be created again."""

    known: dict[PodUID, KnownPod]
    orders: dict[PodUID, Orders]
    moved: dict[PodUID, State] = field(default_factory=dict)  # where those stood that stand elsewhere now


_SWEPT = {is_desired: Swept(is_desired) for is_desired in (False, True)}  # there are many pods in a sweep


@dataclass(slots=True)
class _Worker:
    full_name: str
    state: State
    _known_as: tuple[State, KnownPod] | None = None

    def known(self) -> KnownPod:
        """How housekeeping sees a desired pod; worked out once for each state."""
        if self._known_as is None or self._known_as[0] is not self.state:
            self._known_as = (self.state, _known(self.state, orphan=False))
        return self._known_as[1]


class Workers:
    """The node's pod workers. Synchronous throughout: what a method decides is so before it returns."""

    def __init__(self, timing: Timing = USUAL_TIMING) -> None:
        self._timing = timing
        self._workers: dict[PodUID, _Worker] = {}
        self._static_order = StaticOrder()
        self.synced = False  # housekeeping has come by: who is not known is gone

    def update(self, update: Update, runtime: PodRecord | None) -> Orders:
        """Tell a pod's worker something; the first time, make one. `runtime`: see `Told`."""
        uid = update.uid
        if uid not in self._workers:
            self._workers[uid] = _Worker(_full_name(update.subject), Unknown())
            if update.pod is not None and mirror.is_static_pod(update.pod):
                self._static_order.join(self._workers[uid].full_name, uid)
        return self._send(uid, Told(update, runtime))

    def retry(self, uid: PodUID) -> Orders:
        """Repeat the pass of a pod that is ending and that no source wants."""
        return self._send(uid, RetryDue()) if uid in self._workers else ()

    def report(self, uid: PodUID, event: PassEvent) -> Orders:
        """Take the news of a pass."""
        return self._send(uid, event)

    def sync_known_pods(self, desired: Collection[PodUID]) -> Sweep:
        """Housekeeping's visit: forget what is over, end what nobody wants, tell what remains."""
        self.synced = True
        sweep = Sweep({}, {})
        for uid, worker in list(self._workers.items()):
            before, is_desired = worker.state, uid in desired
            if is_desired and stays_in_a_sweep(before):  # nearly all pods, nearly always
                sweep.known[uid] = worker.known()
                continue
            if orders := self._send(uid, _SWEPT[is_desired]):
                sweep.orders[uid] = orders
            if type(worker.state) is not type(before):
                sweep.moved[uid] = before
            if not isinstance(worker.state, Unknown):
                sweep.known[uid] = _known(worker.state, orphan=not is_desired)
        return sweep

    def forget_restartable(self, uids: Collection[PodUID]) -> dict[PodUID, State]:
        """Forget those of these pods that are over and that a source wants again. They are to be created again.

        Returns where they stood. A sweep does the same, but it also ends pods that no source wants. So it has to wait
        until all sources are ready; this does not.
        """
        forgotten = {uid: self.state(uid) for uid in uids if self.is_restartable(uid)}
        for uid in forgotten:
            self._send(uid, _SWEPT[True])
        return forgotten

    def is_restartable(self, uid: PodUID) -> bool:
        """Whether a pod is over, and a source has added it again since it was told to end."""
        state = self.state(uid)
        return isinstance(state, Finished | NeverStarted) and state.restart_requested

    def state(self, uid: PodUID) -> State:
        """Where a pod stands."""
        worker = self._workers.get(uid)
        return Unknown() if worker is None else worker.state

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Whether the static pod that runs under that name is ending: its mirror must stay meanwhile."""
        uid = self._static_order.started(full_name)
        return uid is not None and questions.is_stopping(self.state(uid))

    def next_in_line(self, full_name: str) -> PodUID | None:
        """The static pod of that name whose turn it is by now and which waits to be told."""
        uid = self._static_order.next(full_name, self._is_wanted)
        return uid if uid is not None and isinstance(self.state(uid), Waiting) else None

    def waiting(self, full_name: str) -> tuple[PodUID, ...]:
        """The static pods of that name that wait for their turn, in the order they came."""
        line = dict.fromkeys(self._static_order.line(full_name))  # who was forgotten and came again stands there twice
        return tuple(uid for uid in line if isinstance(self.state(uid), Waiting))

    def _send(self, uid: PodUID, event: Event) -> Orders:
        worker = self._workers[uid]
        result = step(worker.state, event, self._timing)
        worker.state = result.state
        if isinstance(worker.state, Finished | NeverStarted | Unknown):
            self._static_order.leave(worker.full_name, uid)
        if isinstance(worker.state, Unknown):
            del self._workers[uid]
        orders: list[Order] = []
        for order in result.orders:
            if isinstance(order, AskForTurn):
                orders += self._send(uid, MayStart() if self._is_its_turn(uid) else MustWait())
            else:
                orders.append(order)
        return tuple(orders)

    def _is_its_turn(self, uid: PodUID) -> bool:
        """Whether a waiting pod may start; if so, the others of its name wait for it from now on."""
        pod = _configuration_taken(self.state(uid))
        if pod is None or not mirror.is_static_pod(pod):
            return True
        return self._static_order.start(self._workers[uid].full_name, uid, self._is_wanted)

    def _is_wanted(self, uid: PodUID) -> bool:
        return isinstance(self.state(uid), Waiting | Syncing)


def _full_name(subject: Pod | PodRecord) -> str:
    match subject:
        case Pod():
            return mirror.full_name(subject)
        case PodRecord(name=name, namespace=namespace):
            return f"{name}_{namespace}"


def _known(state: State, *, orphan: bool) -> KnownPod:
    stage = Stage.SYNC
    if questions.is_termination_requested(state):
        stage = Stage.TERMINATED if questions.is_known_terminated(state) else Stage.TERMINATING
    pod = _configuration_taken(state)
    return KnownPod(stage, orphan, has_config=pod is not None, static=pod is not None and mirror.is_static_pod(pod))


def _configuration_taken(state: State) -> Pod | None:
    """The configuration that a worker works with, or will begin with."""
    subject = subject_of(state)
    return subject if isinstance(subject, Pod) else None


def subject_of(state: State) -> Pod | PodRecord | None:
    """Whom a worker works on, or will begin with; None when no pass was made, nor will be."""
    match state:
        case Waiting(pending=work):
            return work.subject
        case Syncing(activity=activity) | Terminated(activity=activity):
            return taken(activity).subject
        case TerminationRequested(activity=activity) | Terminating(activity=activity):
            return taken(activity).subject
        case Finished(pod=pod):
            return pod
        case NeverStarted() | Unknown():
            return None
