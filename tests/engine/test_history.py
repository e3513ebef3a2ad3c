"""Pod history: state, timeline and next retry, bounded, with repeated events counted."""

import asyncio
import weakref
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.history import LONGEST_TIMELINE, Explanation, PodHistory, TimelineEntry
from podkeeper.model.history import (
    UNKNOWN_STATE,
    Cause,
    EventRecorded,
    HistoryEvent,
    Moved,
    PodHeld,
    PodRejected,
    PodState,
    RetryScheduled,
    StatusChanged,
    SyncEnded,
    SyncError,
    SyncKind,
    SyncResult,
    SyncStarted,
    WorkerState,
)
from podkeeper.model.k8s.core import PodCondition, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.worker.states import Unknown, pod_state
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate

WEB, DB = PodUID("uid-web"), PodUID("uid-db")
STARTED = Moved(PodState(WorkerState.UNKNOWN), PodState(WorkerState.SYNCING))
DELETED = Moved(PodState(WorkerState.SYNCING), PodState(WorkerState.TERMINATING, Cause.DELETED))
FORGOTTEN = Moved(PodState(WorkerState.FINISHED, Cause.DELETED), PodState(WorkerState.UNKNOWN))
REJECTED = PodRejected("OutOfcpu", "no CPU")
PULLED = EventRecorded("Pulled", "image web:1")
DONE = SyncEnded(SyncResult.DONE)


def explained(script: Callable[[PodHistory, VirtualClock], object], max_pods_without_worker: int = 10) -> Explanation:
    """Return the explanation of WEB after a script that takes no time."""

    async def scenario() -> Explanation:
        clock = VirtualClock()
        history = PodHistory(clock=clock, max_pods_without_worker=max_pods_without_worker)
        script(history, clock)
        return history.explain(WEB)

    return simulate(scenario())[0]


def after(*events: HistoryEvent) -> Explanation:
    def script(history: PodHistory, _: VirtualClock) -> None:
        for event in events:
            history.add(WEB, event)

    return explained(script)


def counted(explanation: Explanation) -> list[tuple[HistoryEvent, int]]:
    return [(entry.event, entry.times) for entry in explanation.timeline]


def test_a_pod_without_events_is_unknown() -> None:
    assert after() == Explanation(uid=WEB, asked_at=BEGINNING)


def test_an_explanation_has_the_state_since_when_and_the_timeline() -> None:
    async def scenario() -> Explanation:
        history = PodHistory(clock=VirtualClock())
        history.add(WEB, PULLED)
        history.add(WEB, STARTED)
        await asyncio.sleep(90)
        history.add(WEB, DELETED)
        await asyncio.sleep(5)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    later = BEGINNING + timedelta(seconds=90)
    assert (str(explanation.state), explanation.since) == ("terminating (deleted)", later)
    assert explanation.timeline == (
        TimelineEntry(BEGINNING, PULLED),
        TimelineEntry(BEGINNING, STARTED),
        TimelineEntry(later, DELETED),
    )


def test_repeated_events_are_counted() -> None:
    async def scenario() -> Explanation:
        history = PodHistory(clock=VirtualClock())
        history.add(WEB, STARTED)
        for minute in range(60):
            history.add(WEB, SyncStarted(SyncKind.SYNC, UpdateType.SYNC))
            history.add(WEB, DONE)
            history.add(WEB, RetryScheduled(minute))
            await asyncio.sleep(60)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    assert counted(explanation) == [
        (STARTED, 1),
        (SyncStarted(SyncKind.SYNC, UpdateType.SYNC), 60),
        (DONE, 60),
        (RetryScheduled(59), 60),
    ]
    assert explanation.timeline[1].at == BEGINNING
    assert explanation.timeline[1].last_at == BEGINNING + timedelta(minutes=59)


def test_a_state_change_begins_a_new_count() -> None:
    assert counted(after(DONE, DELETED, DONE)) == [(DONE, 1), (DELETED, 1), (DONE, 1)]


def test_a_corrected_wall_clock_corrects_the_shown_times() -> None:
    async def scenario() -> Explanation:
        clock = VirtualClock()
        history = PodHistory(clock=clock)
        history.add(WEB, STARTED)
        await asyncio.sleep(10)
        clock.jump(3600)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    assert explanation.since == BEGINNING + timedelta(hours=1)
    assert explanation.asked_at - explanation.since == timedelta(seconds=10)


def test_a_forgotten_pod_keeps_its_last_state() -> None:
    evicted = Moved(PodState(WorkerState.SYNCING), PodState(WorkerState.FINISHED, Cause.EVICTED))
    explanation = after(STARTED, evicted, Moved(evicted.after, UNKNOWN_STATE))
    assert str(explanation.state) == "finished (evicted)"
    assert len(explanation.timeline) == 3


def test_pods_without_a_worker_are_bounded_and_pods_with_one_are_kept() -> None:
    def script(history: PodHistory, _: VirtualClock) -> None:
        history.add(WEB, STARTED)
        for number in range(20):
            gone = PodUID(f"uid-{number}")
            history.add(gone, STARTED)
            history.add(gone, Moved(PodState(WorkerState.SYNCING), PodState(WorkerState.UNKNOWN)))
            history.add(PodUID(f"rejected-{number}"), REJECTED)
        kept = [bool(history.explain(PodUID(f"uid-{number}")).timeline) for number in (0, 14, 15, 19)]
        assert kept == [False, False, True, True]

    assert explained(script).state == STARTED.after


def test_a_pod_that_gets_a_worker_again_keeps_its_timeline() -> None:
    def script(history: PodHistory, _: VirtualClock) -> None:
        for event in (STARTED, FORGOTTEN, STARTED):
            history.add(WEB, event)
        for number in range(20):
            history.add(PodUID(f"uid-{number}"), REJECTED)

    explanation = explained(script)
    assert (explanation.state, len(explanation.timeline)) == (STARTED.after, 3)


def test_a_pod_without_a_worker_is_in_the_unknown_state_of_the_workers() -> None:
    assert pod_state(Unknown()) == UNKNOWN_STATE


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["waiting", "syncing"]), st.integers(0, 3)), max_size=200
    )
)
def test_a_timeline_is_bounded_in_order_and_counts_every_event(notes: list[tuple[str, str, int]]) -> None:
    async def scenario() -> Explanation:
        history = PodHistory(clock=VirtualClock())
        for reason, message, move in notes:
            await asyncio.sleep(1)
            history.add(
                WEB,
                Moved(STARTED.after, PodState(WorkerState(message))) if move == 0 else EventRecorded(reason, message),
            )
        return history.explain(WEB)

    timeline = simulate(scenario())[0].timeline
    assert len(timeline) <= LONGEST_TIMELINE
    assert list(timeline) == sorted(timeline, key=lambda entry: entry.at)
    total = sum(entry.times for entry in timeline)
    assert total == len(notes) or (len(timeline) == LONGEST_TIMELINE and total < len(notes))


def test_equal_events_of_several_pods_are_stored_once() -> None:
    async def scenario() -> tuple[HistoryEvent, HistoryEvent]:
        history = PodHistory(clock=VirtualClock())
        for uid in (WEB, DB):
            history.add(uid, EventRecorded("Pulled", "".join(["do", "ne"])))
        return history.explain(WEB).timeline[0].event, history.explain(DB).timeline[0].event

    one, other = simulate(scenario())[0]
    assert one is other


# Bounds, exactly.


@pytest.mark.parametrize("count", [49, 50, 51, 52])
def test_a_timeline_holds_the_latest_fifty_events(count: int) -> None:
    async def scenario() -> Explanation:
        history = PodHistory(clock=VirtualClock())
        for number in range(count):
            history.add(WEB, EventRecorded(f"reason {number}", f"message {number}"))
            await asyncio.sleep(1)
        return history.explain(WEB)

    assert simulate(scenario())[0].timeline == tuple(
        TimelineEntry(BEGINNING + timedelta(seconds=number), EventRecorded(f"reason {number}", f"message {number}"))
        for number in range(max(0, count - 50), count)
    )


@pytest.mark.parametrize("between, times", [(0, [2]), (1, [2, 1]), (5, [2, 1, 1, 1, 1, 1]), (6, [1] * 8)])
def test_an_event_is_counted_if_it_is_among_the_last_six(between: int, times: list[int]) -> None:
    others = [EventRecorded("Other", str(number)) for number in range(between)]
    assert [entry.times for entry in after(PULLED, *others, PULLED).timeline] == times


def test_events_that_differ_in_type_reason_or_message_are_kept_apart() -> None:
    a, b, other = EventRecorded("event", "a"), EventRecorded("event", "b"), EventRecorded("probe", "b")
    same_fields = PodRejected("event", "a")
    assert counted(after(a, b, other, same_fields, a)) == [(a, 2), (b, 1), (other, 1), (same_fields, 1)]


@pytest.mark.parametrize("length, kept", [(255, 255), (256, 256), (257, 256), (100_000, 256)])
def test_a_message_has_at_most_256_characters(length: int, kept: int) -> None:
    for event in (EventRecorded("Pulled", "x" * length), SyncError("x" * length), PodRejected("r", "x" * length)):
        (entry,) = after(event).timeline
        assert isinstance(entry.event, EventRecorded | SyncError | PodRejected)
        assert entry.event.message == "x" * kept


def test_by_default_a_thousand_pods_without_a_worker_are_kept() -> None:
    async def scenario() -> list[bool]:
        history = PodHistory(clock=VirtualClock())
        uids = [PodUID(f"uid-{number}") for number in range(1001)]
        for uid in uids[:1000]:
            history.add(uid, REJECTED)
        all_kept = bool(history.explain(uids[0]).timeline)
        history.add(uids[1000], REJECTED)
        return [all_kept, *(bool(history.explain(uid).timeline) for uid in (uids[0], uids[1], uids[1000]))]

    assert simulate(scenario())[0] == [True, False, True, True]


def kept_pods(script: Callable[[PodHistory], object], *uids: str) -> list[str]:
    """Return the pods of a history that keeps two pods without a worker."""
    known: list[str] = []

    def run(history: PodHistory, _: VirtualClock) -> None:
        script(history)
        known.extend(uid for uid in uids if history.explain(PodUID(uid)).timeline)

    explained(run, max_pods_without_worker=2)
    return known


def test_the_pod_whose_last_event_is_oldest_is_dropped_first() -> None:
    def script(history: PodHistory) -> None:
        for uid in ("a", "b", "a", "c"):
            history.add(PodUID(uid), REJECTED)

    assert kept_pods(script, "a", "b", "c") == ["a", "c"]


def test_a_scheduled_retry_counts_as_an_event() -> None:
    def script(history: PodHistory) -> None:
        for uid in ("a", "b"):
            history.add(PodUID(uid), REJECTED)
        history.add(PodUID("a"), RetryScheduled(5))
        history.add(PodUID("c"), REJECTED)

    assert kept_pods(script, "a", "b", "c") == ["a", "c"]


def test_pods_forgotten_by_their_workers_are_bounded() -> None:
    def script(history: PodHistory) -> None:
        for uid in ("a", "b", "c"):
            history.add(PodUID(uid), STARTED)
        for uid in ("a", "b", "c"):
            history.add(PodUID(uid), Moved(PodState(WorkerState.SYNCING), PodState(WorkerState.UNKNOWN)))

    assert kept_pods(script, "a", "b", "c") == ["b", "c"]


def test_pods_with_a_worker_do_not_count_against_the_bound() -> None:
    def script(history: PodHistory) -> None:
        for uid in ("a", "b", "c"):
            history.add(PodUID(uid), STARTED)
            history.add(PodUID(uid), PULLED)
            history.add(PodUID(uid), RetryScheduled(5))
        for uid in ("d", "e"):
            history.add(PodUID(uid), REJECTED)

    assert kept_pods(script, "a", "b", "c", "d", "e") == ["a", "b", "c", "d", "e"]


def test_a_pod_that_gets_a_worker_no_longer_counts_against_the_bound() -> None:
    def script(history: PodHistory) -> None:
        history.add(PodUID("a"), REJECTED)
        history.add(PodUID("b"), STARTED)
        history.add(PodUID("c"), REJECTED)

    assert kept_pods(script, "a", "b", "c") == ["a", "b", "c"]


class Text(str):
    """A text that can be weakly referenced."""


def test_events_that_no_timeline_shows_are_freed() -> None:
    existing: weakref.WeakSet[Text] = weakref.WeakSet()
    found: list[int] = []

    def script(history: PodHistory, _: VirtualClock) -> None:
        for number in range(2049):
            reason = Text(f"reason {number}")
            existing.add(reason)
            history.add(WEB, EventRecorded(reason, ""))
            if number >= 2047:
                found.append(len(existing))

    explained(script)
    assert found == [2048, 50]  # 2048 shared events, then those of the timeline


# What a pod waits for, and until when.

WAITS: dict[str, tuple[tuple[HistoryEvent, ...], str]] = {
    "a failed sync is waited for": ((SyncError("no image"),), "no image"),
    "an event changes nothing": ((SyncError("no image"), PULLED), "no image"),
    "a status changes nothing": ((SyncError("no image"), StatusChanged("Pending", False)), "no image"),
    "a hold changes nothing": ((SyncError("no image"), PodHeld(1)), "no image"),
    "a new sync changes nothing": ((SyncError("no image"), SyncStarted(SyncKind.SYNC, UpdateType.SYNC)), "no image"),
    "another failure replaces it": ((SyncError("no image"), SyncError("no volume")), "no volume"),
    "a sync that is done ends it": ((SyncError("no image"), DONE), ""),
    "a cancelled sync ends it": ((SyncError("no image"), SyncEnded(SyncResult.CANCELLED)), ""),
    "a state change ends it": ((SyncError("no image"), DELETED), ""),
}


@pytest.mark.parametrize("events, expected", WAITS.values(), ids=WAITS.keys())
def test_what_a_pod_waits_for(events: tuple[HistoryEvent, ...], expected: str) -> None:
    assert after(STARTED, *events).waiting_for == expected


def test_waiting_for_shows_a_long_error_completely() -> None:
    assert after(SyncError("x" * 1000)).waiting_for == "x" * 1000


SOON, LATER = BEGINNING + timedelta(seconds=10), BEGINNING + timedelta(seconds=20)
RETRIES: dict[str, tuple[HistoryEvent, object]] = {
    "an event": (PULLED, SOON),
    "a sync ends": (DONE, None),
    "a sync fails": (SyncError("no image"), None),
    "another retry": (RetryScheduled(20), LATER),
    "a state change": (DELETED, None),
    "the worker ends": (Moved(PodState(WorkerState.SYNCING), PodState(WorkerState.UNKNOWN)), None),
}


@pytest.mark.parametrize("event, expected", RETRIES.values(), ids=RETRIES.keys())
def test_the_next_retry_after(event: HistoryEvent, expected: object) -> None:
    assert after(STARTED, RetryScheduled(10), event).next_retry == expected


def test_a_retry_is_in_the_future_until_it_is_due() -> None:
    async def scenario() -> list[bool]:
        history = PodHistory(clock=VirtualClock())
        history.add(WEB, RetryScheduled(2))
        found = []
        for _ in range(3):
            found.append(history.explain(WEB).next_retry is None)
            await asyncio.sleep(1)
        return found

    assert simulate(scenario())[0] == [False, False, True]


def test_a_pod_without_a_worker_that_stays_unknown_keeps_its_timeline() -> None:
    nowhere = Moved(PodState(WorkerState.UNKNOWN), PodState(WorkerState.UNKNOWN))
    assert after(REJECTED, nowhere) == Explanation(
        uid=WEB, asked_at=BEGINNING, timeline=(TimelineEntry(BEGINNING, REJECTED), TimelineEntry(BEGINNING, nowhere))
    )


READY, NOT_READY, OTHER = (
    PodCondition(type="Ready", status="True"),
    PodCondition(type="Ready", status="False"),
    PodCondition(type="Initialized", status="True"),
)
STATUSES: dict[str, tuple[PodStatus, StatusChanged]] = {
    "ready": (PodStatus(phase="Running", conditions=(OTHER, READY)), StatusChanged("Running", True)),
    "not ready": (PodStatus(phase="Running", conditions=(OTHER, NOT_READY)), StatusChanged("Running", False)),
    "no condition": (PodStatus(phase="Pending"), StatusChanged("Pending", False)),
    "no phase": (PodStatus(), StatusChanged("", False)),
}


@pytest.mark.parametrize("status, expected", STATUSES.values(), ids=STATUSES.keys())
def test_a_published_status_is_added(status: PodStatus, expected: StatusChanged) -> None:
    explanation = explained(lambda history, _: history.status_changed(WEB, status))
    assert counted(explanation) == [(expected, 1)]
