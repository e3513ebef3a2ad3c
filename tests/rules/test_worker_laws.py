"""Laws of the pod worker: true of every step from every state that can be reached, and of every history."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Cancel,
    Complete,
    Enqueue,
    Event,
    Failed,
    Order,
    Passed,
    PassEvent,
    ReadStatus,
    Record,
    StatusRead,
    StatusUnreadable,
    Swept,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
    Told,
)
from podkeeper.rules.worker.passes import taken
from podkeeper.rules.worker.questions import should_containers_be_terminating
from podkeeper.rules.worker.states import (
    Busy,
    Ending,
    Finished,
    Idle,
    NeverStarted,
    PassKind,
    Reading,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import Workers
from tools.worker_diagram import Transition, alphabet, page, pod_from, transitions

ACTIVE = (Syncing, TerminationRequested, Terminating, Terminated)
CALLS = (SyncPod, SyncTerminatingPod, SyncTerminatingRuntimePod, SyncTerminatedPod)
FROM_LEFT_TO_RIGHT = (Unknown, Waiting, *ACTIVE, Finished, NeverStarted)


# Every step.


def rich_alphabet(source: str) -> dict[str, Event]:
    """The diagram's events, and kills that shorten a grace or make use of the quirk that raises it."""
    pod = pod_from(source)
    graces = {
        f"deletion in {deletion} s, override {override}": Told(
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


def ending_of(state: State) -> Ending | None:
    return state.ending if isinstance(state, TerminationRequested | Terminating) else None


def wants_restart(state: State) -> bool:
    match state:
        case TerminationRequested(ending=ending) | Terminating(ending=ending):
            return ending.restart_requested
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


def test_the_walk_reaches_every_state() -> None:
    assert {type(before) for (before, _, _), _ in every_step()} == set(FROM_LEFT_TO_RIGHT)


def test_a_pod_only_moves_right_until_it_is_forgotten() -> None:
    for (before, name, after), _ in every_step():
        if not isinstance(after.state, Unknown):
            here, there = (FROM_LEFT_TO_RIGHT.index(type(state)) for state in (before, after.state))
            assert here <= there, (before, name)


def test_only_the_finished_the_waiting_and_the_runtime_only_are_forgotten() -> None:
    for (before, name, after), _ in every_step():
        if isinstance(after.state, Unknown) and isinstance(before, ACTIVE):
            busy = busy_in(before)
            assert busy is not None, (before, name)
            assert busy.kind is PassKind.TERMINATING_RUNTIME, (before, name)


def test_a_grace_never_grows_unless_the_deletion_says_at_once() -> None:
    for (before, name, after), _ in every_step():
        old, new = ending_of(before), ending_of(after.state)
        if old is not None and new is not None and old.grace_seconds is not None:
            assert new.grace_seconds is not None
            assert new.grace_seconds <= old.grace_seconds or name.startswith("deletion in 0 s"), (before, name)


def test_only_a_change_of_state_or_grace_preempts() -> None:  # or two kills could duel for ever
    for (before, name, after), _ in every_step():
        if Cancel() in after.orders:
            old, new = ending_of(before), ending_of(after.state)
            assert type(before) is not type(after.state) or (old and old.grace_seconds) != (
                new and new.grace_seconds
            ), (
                before,
                name,
            )


def test_only_a_pass_under_way_is_cancelled_and_it_is_not_forgotten() -> None:
    for (before, _, after), _ in every_step():
        if Cancel() in after.orders:
            busy = busy_in(before)
            assert busy is not None
            still = busy_in(after.state)
            assert still is not None
            assert (still.kind, still.work) == (busy.kind, busy.work)
            assert still.pending is not None


def test_the_finished_ignore_all_but_the_wish_for_a_restart_and_housekeeping() -> None:
    for (before, name, after), event in every_step():
        if isinstance(before, Finished | NeverStarted):
            assert after.orders == ()
            if name != "create" and not isinstance(event, Swept):
                assert after.state == before


def test_one_pass_at_a_time() -> None:
    for (before, name, after), event in every_step():
        begun = [order for order in after.orders if isinstance(order, (ReadStatus, *CALLS))]
        assert len(begun) <= 1, (before, name)
        if begun and busy_in(before) is not None:
            assert isinstance(event, StatusRead | StatusUnreadable | Passed | Failed), (before, name)


def test_a_busy_worker_is_one_that_was_ordered_to_be() -> None:
    for (before, name, after), _ in every_step():
        busy, was_busy = busy_in(after.state), busy_in(before)
        if busy is not None and (was_busy is None or (busy.kind, busy.work) != (was_busy.kind, was_busy.work)):
            assert isinstance(after.orders[-1], (ReadStatus, *CALLS)), (before, name)
            assert isinstance(after.orders[-1], ReadStatus) == isinstance(busy, Reading)


def test_no_worker_rests_before_its_first_pass() -> None:
    assert all(
        not isinstance(after.state, ACTIVE) or after.state.activity != Idle() for (_, _, after), _ in every_step()
    )


def test_nothing_starts_once_the_worker_has_seen_the_end() -> None:
    for (before, name, after), _ in every_step():
        if should_containers_be_terminating(before, synced=False):
            assert not any(isinstance(order, SyncPod) for order in after.orders), (before, name)
            if not isinstance(after.state, Unknown):
                assert should_containers_be_terminating(after.state, synced=False), (before, name)


def test_who_waits_is_told_when_the_containers_have_stopped_and_not_before() -> None:
    for (before, name, _), event in every_step():
        if isinstance(before, TerminationRequested | Terminating):
            alice = Waiter()
            after = step(replace(before, ending=replace(before.ending, signals=(alice,))), event)
            assert (Complete((alice,)) in after.orders) == isinstance(after.state, Terminated), (before, name)
            kept = ending_of(after.state)
            assert kept is None or kept.signals == (alice,), (before, name)


def test_a_requested_restart_is_kept_until_the_pod_is_forgotten() -> None:
    seen: set[type[State]] = set()
    for (before, name, after), _ in every_step():
        if wants_restart(before) and not isinstance(after.state, Unknown):
            assert wants_restart(after.state), (before, name)
            seen.add(type(after.state))
    assert seen == {TerminationRequested, Terminating, Terminated, Finished, NeverStarted}


def test_the_status_function_is_kept_until_the_containers_have_stopped() -> None:
    def verdict(status: PodStatus) -> PodStatus:
        raise AssertionError("rules hand the function over, they never call it")

    for (before, name, _), event in every_step():
        if isinstance(before, TerminationRequested | Terminating):
            after = step(replace(before, ending=replace(before.ending, status_function=verdict)), event)
            kept = ending_of(after.state)
            assert kept is None or kept.status_function is verdict, (before, name)


def test_the_diagram_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "worker-states.md"
    assert path.read_text() == page() + "\n", "run `python -m tools.worker_diagram > docs/worker-states.md`"


# Every history.


class Waiter:
    """Somebody who waits for a kill to complete."""

    def set(self) -> None:
        raise AssertionError("rules order signals, they never fire them")


class Shell:
    """Plays the shell: notes what is ordered, reports what a history says."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.fired: Counter[Waiter] = Counter()
        self.under_way: dict[PodUID, Order] = {}

    def tell(self, update: Update, runtime: PodRecord | None = None) -> None:
        self._obey(update.uid, self.workers.update(update, runtime))

    def report(self, uid: PodUID, event: PassEvent) -> None:
        """Report, if it can have happened."""
        order = self.under_way.get(uid)
        if order is None or isinstance(order, ReadStatus) != isinstance(event, StatusRead | StatusUnreadable):
            return
        if isinstance(event, Passed) and event.ended and not isinstance(order, SyncPod):
            return
        del self.under_way[uid]
        self._obey(uid, self.workers.report(uid, event))

    def sweep(self, desired: set[PodUID]) -> None:
        for uid, orders in self.workers.sync_known_pods(desired).orders.items():
            self._obey(uid, orders)

    def let_passes_succeed(self) -> None:
        while self.under_way:
            for uid, order in list(self.under_way.items()):
                self.report(uid, StatusRead() if isinstance(order, ReadStatus) else Passed(1.0))

    def _obey(self, uid: PodUID, orders: tuple[Order, ...]) -> None:
        for order in orders:
            match order:
                case Complete(signals=signals):
                    self.fired.update(each for each in signals if isinstance(each, Waiter))
                case Cancel():
                    assert uid in self.under_way
                case (
                    ReadStatus() | SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod()
                ):
                    assert uid not in self.under_way, "two passes at once"
                    self.under_way[uid] = order
                case Enqueue() | Record():
                    pass


API, OLD, NEW, NEWER = (PodUID(uid) for uid in ("api", "old", "new", "newer"))
UIDS = [API, OLD, NEW, NEWER]


def pod_called(uid: PodUID, **details: Any) -> Pod:
    """One from the API; the others are static and share a name."""
    pod = pod_from(API_SOURCE if uid == API else FILE_SOURCE, **details)
    name = "api" if uid == API else "static"
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid, name=name))


def update_for(uid: PodUID, what: str, waiter: Waiter | None = None) -> Update:
    kill = KillOptions(completed=waiter) if waiter is not None else None
    match what:
        case "deletion":
            return Update(type=UpdateType.UPDATE, pod=pod_called(uid, deleting=True), kill=kill)
        case "final phase":
            return Update(type=UpdateType.SYNC, pod=pod_called(uid, phase="Failed"), kill=kill)
        case "runtime kill":
            return Update(type=UpdateType.KILL, running_pod=PodRecord(uid=uid), kill=kill)
        case _:
            return Update(type=UpdateType(what), pod=pod_called(uid), kill=kill)


WISHES = ["create", "update", "sync"]
ENDS = ["kill", "deletion", "final phase", "runtime kill"]
NEWS: list[PassEvent] = [
    StatusRead(),
    StatusUnreadable("cache unavailable"),
    Passed(1.0),
    Passed(1.0, ended=True),
    Failed(1.0),
]

said = st.tuples(st.sampled_from(UIDS), st.sampled_from(WISHES + ENDS))
reported = st.tuples(st.sampled_from(UIDS), st.sampled_from(NEWS))
swept = st.sets(st.sampled_from(UIDS))
histories = st.lists(st.one_of(said, reported, reported, swept), max_size=40)
Happening = tuple[PodUID, str | PassEvent] | set[PodUID]


def happen(shell: Shell, happening: Happening) -> None:
    match happening:
        case set():
            shell.sweep(happening)
        case uid, str() as what:
            shell.tell(update_for(uid, what))
        case uid, (StatusRead() | StatusUnreadable() | Passed() | Failed()) as news:
            shell.report(uid, news)


def shell_after(history: list[Happening]) -> Shell:
    shell = Shell()
    for happening in history:
        happen(shell, happening)
    return shell


@given(histories, st.sampled_from(ENDS))
def test_a_killed_pod_finishes_once_its_passes_succeed(history: list[Happening], end: str) -> None:
    shell = shell_after(history)
    for uid in UIDS:
        shell.tell(update_for(uid, end))
    shell.let_passes_succeed()
    assert {type(shell.workers.state(uid)) for uid in UIDS} <= {Finished, NeverStarted, Unknown}


@given(histories)
def test_what_nobody_wants_is_gone_in_the_end(history: list[Happening]) -> None:
    shell = shell_after(history)
    for _ in range(2):
        shell.sweep(set())
        shell.let_passes_succeed()
    assert shell.workers.sync_known_pods(set()).known == {}


@given(histories, histories)
def test_a_waiter_is_told_at_most_once_and_surely_when_the_pod_was_stopped(
    before: list[Happening], after: list[Happening]
) -> None:
    shell = shell_after(before)
    waiter = Waiter()
    at_first = shell.workers.state(API)
    shell.tell(update_for(API, "kill", waiter))
    if isinstance(at_first, Terminated):
        assert shell.fired[waiter] == 1
    for happening in after:
        held = ending_of(shell.workers.state(API))
        happen(shell, happening)
        waits = held is not None and waiter in held.signals
        assert shell.fired[waiter] <= 1
        if waits and isinstance(shell.workers.state(API), Terminated):
            assert shell.fired[waiter] == 1


@given(st.lists(st.tuples(st.sampled_from(WISHES), st.none() | st.floats(0, 100)), min_size=1, max_size=8))
def test_of_many_updates_one_waits_the_latest_with_the_oldest_start_time(
    updates: list[tuple[str, float | None]],
) -> None:
    shell = Shell()
    shell.tell(update_for(API, "create"))
    for what, start_time in updates:
        shell.tell(replace(update_for(API, what), start_time=start_time))
    busy = busy_in(shell.workers.state(API))
    assert busy is not None
    assert busy.pending is not None
    assert busy.pending.update_type == updates[-1][0]
    assert busy.pending.start_time == min((time for _, time in updates if time is not None), default=None)


def has_started(state: State) -> bool:
    """Whether a static pod has taken its configuration up and not left."""
    return isinstance(state, ACTIVE) and isinstance(taken(state.activity).subject, Pod)


@given(histories)
def test_of_static_pods_with_one_name_never_two_have_started(history: list[Happening]) -> None:
    shell = Shell()
    for happening in history:
        happen(shell, happening)
        assert sum(has_started(shell.workers.state(uid)) for uid in (OLD, NEW, NEWER)) <= 1


@given(st.permutations([OLD, NEW, NEWER]), st.lists(st.one_of(said, reported, reported), max_size=40))
def test_static_pods_with_one_name_start_in_the_order_they_came(
    arrival: list[PodUID], history: list[Happening]
) -> None:
    shell = Shell()
    for uid in arrival:
        shell.tell(update_for(uid, "create"))
    for happening in history:
        waiting = [uid for uid in arrival if isinstance(shell.workers.state(uid), Waiting)]
        happen(shell, happening)
        started = [uid for uid in waiting if isinstance(shell.workers.state(uid), Syncing)]
        assert started in ([], waiting[:1])
