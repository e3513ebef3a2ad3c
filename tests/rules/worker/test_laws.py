"""Laws of the pod worker: they hold for every step from every reachable state and for every history."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.history import SyncKind
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Cancel,
    Complete,
    Enqueue,
    Event,
    HousekeepingRan,
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
    Updated,
)
from podkeeper.rules.worker.predicates import should_containers_be_terminating
from podkeeper.rules.worker.states import (
    Busy,
    Finished,
    Idle,
    NeverStarted,
    ReadingStatus,
    State,
    Syncing,
    Terminated,
    Terminating,
    Termination,
    TerminationRequested,
    Unknown,
    Waiting,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.syncs import last_work
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import WorkerTable
from podkeeper.testing import build
from tests.rules.worker.signals import FakeSignal
from tools.worker_diagram import Transition, alphabet, page, pod_from, transitions

ACTIVE = (Syncing, TerminationRequested, Terminating, Terminated)
CALLS = (SyncPod, SyncTerminatingPod, SyncTerminatingRuntimePod, SyncTerminatedPod)
FROM_LEFT_TO_RIGHT = (Unknown, Waiting, *ACTIVE, Finished, NeverStarted)


# Every step.


def rich_alphabet(source: str) -> dict[str, Event]:
    """Return the events of the diagram, and kills that shorten the grace period or use the quirk that extends it."""
    pod = pod_from(source)
    graces = {
        f"deletion in {deletion} s, override {override}": Updated(
            Update(
                type=UpdateType.KILL,
                pod=msgspec.structs.replace(
                    pod, metadata=msgspec.structs.replace(pod.metadata, deletion_grace_period_seconds=deletion)
                ),
                kill=KillOptions(grace_override_seconds=override),
            )
        )
        for deletion, override in ((None, 2), (0, 40))
    }
    return alphabet(source) | graces


@cache
def every_step() -> tuple[tuple[Transition, Event], ...]:
    return tuple(
        (transition, events[transition[1]])
        for events in (rich_alphabet(API_SOURCE), rich_alphabet(FILE_SOURCE))
        for transition in transitions(events)
    )


def termination_of(state: State) -> Termination | None:
    return state.termination if isinstance(state, TerminationRequested | Terminating) else None


def restart_requested_in(state: State) -> bool:
    match state:
        case TerminationRequested(termination=termination) | Terminating(termination=termination):
            return termination.restart_requested
        case Terminated() | Finished() | NeverStarted():
            return state.restart_requested
        case _:
            return False


def busy_in(state: State) -> Busy | None:
    match state:
        case Syncing() | TerminationRequested() | Terminating() | Terminated():
            return None if isinstance(state.activity, Idle) else state.activity
        case _:
            return None


def test_the_steps_reach_every_state() -> None:
    assert {type(before) for (before, _, _), _ in every_step()} == set(FROM_LEFT_TO_RIGHT)


def test_a_pod_only_moves_right_until_it_is_removed() -> None:
    for (before, name, after), _ in every_step():
        if not isinstance(after.state, Unknown):
            here, there = (FROM_LEFT_TO_RIGHT.index(type(state)) for state in (before, after.state))
            assert here <= there, (before, name)


def test_only_finished_waiting_and_runtime_only_pods_are_removed() -> None:
    for (before, name, after), _ in every_step():
        if isinstance(after.state, Unknown) and isinstance(before, ACTIVE):
            busy = busy_in(before)
            assert busy is not None, (before, name)
            assert busy.kind is SyncKind.TERMINATING_RUNTIME, (before, name)


def test_a_grace_period_never_becomes_longer_unless_the_deletion_has_zero() -> None:
    for (before, name, after), _ in every_step():
        old, new = termination_of(before), termination_of(after.state)
        if old is not None and new is not None and old.grace_seconds is not None:
            assert new.grace_seconds is not None
            assert new.grace_seconds <= old.grace_seconds or name.startswith("deletion in 0 s"), (before, name)


def test_only_a_change_of_state_or_grace_preempts() -> None:  # otherwise two kills could preempt each other forever
    for (before, name, after), _ in every_step():
        if Cancel() in after.orders:
            old, new = termination_of(before), termination_of(after.state)
            assert type(before) is not type(after.state) or (old and old.grace_seconds) != (
                new and new.grace_seconds
            ), (
                before,
                name,
            )


def test_only_a_running_sync_is_cancelled_and_its_outcome_still_counts() -> None:
    for (before, _, after), _ in every_step():
        if Cancel() in after.orders:
            busy = busy_in(before)
            assert busy is not None
            still = busy_in(after.state)
            assert still is not None
            assert (still.kind, still.work) == (busy.kind, busy.work)
            assert still.pending is not None


def test_finished_pods_ignore_all_but_restart_requests_and_housekeeping() -> None:
    for (before, name, after), event in every_step():
        if isinstance(before, Finished | NeverStarted):
            assert after.orders == ()
            if name != "create" and not isinstance(event, HousekeepingRan):
                assert after.state == before


def test_a_pod_has_one_sync_at_a_time() -> None:
    for (before, name, after), event in every_step():
        begun = [order for order in after.orders if isinstance(order, (ReadStatus, *CALLS))]
        assert len(begun) <= 1, (before, name)
        if begun and busy_in(before) is not None:
            assert isinstance(event, StatusRead | StatusUnreadable | Synced | SyncFailed), (before, name)


def test_a_worker_becomes_busy_only_with_an_order() -> None:
    for (before, name, after), _ in every_step():
        busy, was_busy = busy_in(after.state), busy_in(before)
        if busy is not None and (was_busy is None or (busy.kind, busy.work) != (was_busy.kind, was_busy.work)):
            assert isinstance(after.orders[-1], (ReadStatus, *CALLS)), (before, name)
            assert isinstance(after.orders[-1], ReadStatus) == isinstance(busy, ReadingStatus)


def test_no_active_worker_is_idle_before_its_first_sync() -> None:
    assert all(
        not isinstance(after.state, ACTIVE) or after.state.activity != Idle() for (_, _, after), _ in every_step()
    )


def test_no_container_starts_after_the_termination_is_acknowledged() -> None:
    for (before, name, after), _ in every_step():
        if should_containers_be_terminating(before, synced=False):
            assert not any(isinstance(order, SyncPod) for order in after.orders), (before, name)
            if not isinstance(after.state, Unknown):
                assert should_containers_be_terminating(after.state, synced=False), (before, name)


def test_signals_are_set_when_the_containers_have_stopped_and_not_before() -> None:
    for (before, name, _), event in every_step():
        if isinstance(before, TerminationRequested | Terminating):
            signal = FakeSignal()
            after = step(replace(before, termination=replace(before.termination, signals=(signal,))), event)
            assert (Complete((signal,)) in after.orders) == isinstance(after.state, Terminated), (before, name)
            kept = termination_of(after.state)
            assert kept is None or kept.signals == (signal,), (before, name)


def test_a_requested_restart_is_kept_until_the_pod_is_removed() -> None:
    seen: set[type[State]] = set()
    for (before, name, after), _ in every_step():
        if restart_requested_in(before) and not isinstance(after.state, Unknown):
            assert restart_requested_in(after.state), (before, name)
            seen.add(type(after.state))
    assert seen == {TerminationRequested, Terminating, Terminated, Finished, NeverStarted}


def test_the_status_function_is_kept_until_the_containers_have_stopped() -> None:
    def status_function(status: PodStatus) -> PodStatus:
        raise AssertionError("rules never call the status function")

    for (before, name, _), event in every_step():
        if isinstance(before, TerminationRequested | Terminating):
            after = step(
                replace(before, termination=replace(before.termination, status_function=status_function)), event
            )
            kept = termination_of(after.state)
            assert kept is None or kept.status_function is status_function, (before, name)


def test_the_diagram_is_current() -> None:
    path = Path(__file__).parents[3] / "docs" / "worker-states.md"
    assert path.read_text() == page() + "\n", "run `python -m tools.worker_diagram > docs/worker-states.md`"


# Every history.


class Shell:
    """A shell that records orders and reports the events of a history."""

    def __init__(self) -> None:
        self.workers = WorkerTable()
        self.signals_set: Counter[FakeSignal] = Counter()
        self.syncs: dict[PodUID, Order] = {}

    def update(self, update: Update, runtime: PodRecord | None = None) -> None:
        self._execute(update.uid, self.workers.update(update, runtime))

    def report(self, uid: PodUID, event: SyncEvent) -> None:
        """Report the event if it is possible."""
        order = self.syncs.get(uid)
        if order is None or isinstance(order, ReadStatus) != isinstance(event, StatusRead | StatusUnreadable):
            return
        if isinstance(event, Synced) and event.is_terminal and not isinstance(order, SyncPod):
            return
        del self.syncs[uid]
        self._execute(uid, self.workers.report(uid, event))

    def housekeeping(self, desired: set[PodUID]) -> None:
        for uid, orders in self.workers.sync_known_pods(desired).orders.items():
            self._execute(uid, orders)

    def complete_syncs(self) -> None:
        while self.syncs:
            for uid, order in list(self.syncs.items()):
                self.report(uid, StatusRead() if isinstance(order, ReadStatus) else Synced(1.0))

    def _execute(self, uid: PodUID, orders: tuple[Order, ...]) -> None:
        for order in orders:
            match order:
                case Complete(signals=signals):
                    self.signals_set.update(each for each in signals if isinstance(each, FakeSignal))
                case Cancel():
                    assert uid in self.syncs
                case (
                    ReadStatus() | SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod()
                ):
                    assert uid not in self.syncs, "two syncs at once"
                    self.syncs[uid] = order
                case Enqueue() | RecordEvent():
                    pass


API, OLD, NEW, NEWER = (PodUID(uid) for uid in ("api", "old", "new", "newer"))
UIDS = [API, OLD, NEW, NEWER]


def pod_with(uid: PodUID, **details: Any) -> Pod:
    """`api` is from the API. The others are static pods with the same name."""
    pod = pod_from(API_SOURCE if uid == API else FILE_SOURCE, **details)
    name = "api" if uid == API else "static"
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid, name=name))


def update_for(uid: PodUID, what: str, signal: FakeSignal | None = None) -> Update:
    kill = KillOptions(completed=signal) if signal is not None else None
    match what:
        case "deletion":
            return build.update(UpdateType.UPDATE, pod_with(uid, deleting=True), kill)
        case "terminal phase":
            return build.update(UpdateType.SYNC, pod_with(uid, phase="Failed"), kill)
        case "runtime kill":
            return build.update(UpdateType.KILL, PodRecord(uid=uid), kill)
        case _:
            return build.update(UpdateType(what), pod_with(uid), kill)


STARTS = ["create", "update", "sync"]
STOPS = ["kill", "deletion", "terminal phase", "runtime kill"]
SYNC_EVENTS: list[SyncEvent] = [
    StatusRead(),
    StatusUnreadable("cache unavailable"),
    Synced(1.0),
    Synced(1.0, is_terminal=True),
    SyncFailed(1.0),
]

updates_ = st.tuples(st.sampled_from(UIDS), st.sampled_from(STARTS + STOPS))
reported = st.tuples(st.sampled_from(UIDS), st.sampled_from(SYNC_EVENTS))
desired_sets = st.sets(st.sampled_from(UIDS))
histories = st.lists(st.one_of(updates_, reported, reported, desired_sets), max_size=40)
Entry = tuple[PodUID, str | SyncEvent] | set[PodUID]


def apply(shell: Shell, entry: Entry) -> None:
    match entry:
        case set():
            shell.housekeeping(entry)
        case uid, str() as what:
            shell.update(update_for(uid, what))
        case uid, (StatusRead() | StatusUnreadable() | Synced() | SyncFailed()) as event:
            shell.report(uid, event)


def shell_after(history: list[Entry]) -> Shell:
    shell = Shell()
    for entry in history:
        apply(shell, entry)
    return shell


@given(histories, st.sampled_from(STOPS))
def test_a_killed_pod_finishes_when_its_syncs_succeed(history: list[Entry], end: str) -> None:
    shell = shell_after(history)
    for uid in UIDS:
        shell.update(update_for(uid, end))
    shell.complete_syncs()
    assert {type(shell.workers.state(uid)) for uid in UIDS} <= {Finished, NeverStarted, Unknown}


@given(histories)
def test_orphaned_pods_are_removed_eventually(history: list[Entry]) -> None:
    shell = shell_after(history)
    for _ in range(2):
        shell.housekeeping(set())
        shell.complete_syncs()
    assert shell.workers.sync_known_pods(set()).known == {}


@given(histories, histories)
def test_a_signal_is_set_at_most_once_and_always_when_the_pod_has_stopped(
    before: list[Entry], after: list[Entry]
) -> None:
    shell = shell_after(before)
    signal = FakeSignal()
    state_at_kill = shell.workers.state(API)
    shell.update(update_for(API, "kill", signal))
    if isinstance(state_at_kill, Terminated):
        assert shell.signals_set[signal] == 1
    for entry in after:
        termination = termination_of(shell.workers.state(API))
        apply(shell, entry)
        pending = termination is not None and signal in termination.signals
        assert shell.signals_set[signal] <= 1
        if pending and isinstance(shell.workers.state(API), Terminated):
            assert shell.signals_set[signal] == 1


@given(st.lists(st.tuples(st.sampled_from(STARTS), st.none() | st.floats(0, 100)), min_size=1, max_size=8))
def test_the_latest_update_is_pending_with_the_oldest_start_time(
    updates: list[tuple[str, float | None]],
) -> None:
    shell = Shell()
    shell.update(update_for(API, "create"))
    for what, start_time in updates:
        shell.update(replace(update_for(API, what), start_time=start_time))
    busy = busy_in(shell.workers.state(API))
    assert busy is not None
    assert busy.pending is not None
    assert busy.pending.update_type == updates[-1][0]
    assert busy.pending.start_time == min((time for _, time in updates if time is not None), default=None)


def has_started(state: State) -> bool:
    """Return whether a static pod has begun a sync and has not finished."""
    return isinstance(state, ACTIVE) and isinstance(last_work(state.activity).subject, Pod)


@given(histories)
def test_two_static_pods_with_one_name_never_run_at_the_same_time(history: list[Entry]) -> None:
    shell = Shell()
    for entry in history:
        apply(shell, entry)
        assert sum(has_started(shell.workers.state(uid)) for uid in (OLD, NEW, NEWER)) <= 1


@given(st.permutations([OLD, NEW, NEWER]), st.lists(st.one_of(updates_, reported, reported), max_size=40))
def test_static_pods_with_one_name_start_in_the_order_received(arrival: list[PodUID], history: list[Entry]) -> None:
    shell = Shell()
    for uid in arrival:
        shell.update(update_for(uid, "create"))
    for entry in history:
        waiting = [uid for uid in arrival if isinstance(shell.workers.state(uid), Waiting)]
        apply(shell, entry)
        started = [uid for uid in waiting if isinstance(shell.workers.state(uid), Syncing)]
        assert started in ([], waiting[:1])
