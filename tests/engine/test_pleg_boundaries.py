"""PLEG at its boundaries: exact times, exact counts, and the state after each failure."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from math import inf, nextafter

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.pleg import Pleg, PlegTiming, SlowInspection
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.doubles import stand_in
from tests.engine.test_pleg import (
    CREATED,
    DB,
    DIED,
    EXITED,
    REMOVED,
    RUNNING,
    STARTED,
    SYNC,
    WEB,
    PlegHarness,
    Runtime,
    UnknownInListings,
    fail_inspections,
    now,
    run_scenario,
    runtime_with,
)

# Numbers.


def test_the_observer_receives_each_relist_inspection_and_stream_with_its_time() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.list_seconds, harness.runtime.inspection_seconds = 0.5, 0.25
        await asyncio.sleep(2)
        harness.runtime.break_streams()
        await asyncio.sleep(0.75)

    assert run_scenario(scenario, runtime_with(web=RUNNING), PlegTiming(poll_seconds=2.0)).counts.seen == [
        ("opened", 0.0),
        ("listed", ["web"], 0.5),
        ("relisted", 0.5, None),
        ("inspected", 0.25),
        ("broke", 2.0),
        ("listed", ["web"], 2.5),
        ("relisted", 0.5, 2.0),
    ]


def test_a_relist_that_fails_is_counted_and_shows_no_pods() -> None:
    runtime = runtime_with(web=RUNNING)
    runtime.list_error = RuntimeUnavailable("cannot list")

    async def scenario(harness: PlegHarness) -> None:
        runtime.list_seconds = 0.5
        await asyncio.sleep(1)
        runtime.list_error = None
        await asyncio.sleep(1.5)

    harness = run_scenario(scenario, runtime)
    assert [seen for seen in harness.counts.seen if seen[0] in ("listed", "relisted")] == [
        ("relisted", 0.5, None),
        ("listed", ["web"], 2.0),
        ("relisted", 0.5, None),
    ]


PAUSES = {0: 0.5, 1: 1.0, 2: 2.0, 3: 4.0, 5: 16.0, 6: 30.0, 7: 30.0, 10_000: 30.0}


@pytest.mark.parametrize("failures, seconds", PAUSES.items())
def test_the_pause_doubles_with_each_failure_up_to_half_a_minute(failures: int, seconds: float) -> None:
    assert PlegTiming().retry.after(failures) == seconds


# Health.


def test_pleg_is_unhealthy_three_minutes_after_the_last_successful_relist() -> None:
    runtime = runtime_with(web=RUNNING)

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(5.5)
        runtime.list_error = RuntimeUnavailable("cannot list")  # the last successful relist began at 5
        for at, health in (
            (185.0, None),
            (185.125, "the last successful relist began 180 s ago"),
            (190.0, "the last successful relist began 185 s ago"),
        ):
            await asyncio.sleep(at - now())
            assert harness.pleg.health() == health
        runtime.list_error = None
        await asyncio.sleep(30)
        assert harness.pleg.health() is None

    run_scenario(scenario, runtime)


def test_before_the_first_successful_relist_health_names_the_one_in_progress() -> None:
    runtime = Runtime()
    runtime.list_error = RuntimeUnavailable("cannot list")

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(0.5)
        assert harness.pleg.health() == "no relist has succeeded yet"
        runtime.list_hangs = True
        await asyncio.sleep(3.5)
        assert harness.pleg.health() == "no relist has succeeded yet; the current one has been running for 3 s"

    run_scenario(scenario, runtime)


@pytest.mark.parametrize(
    "hung, named", [(3, "a for 20 s, b for 20 s, c for 20 s"), (5, "a for 20 s, b for 20 s, c for 20 s and 2 more")]
)
def test_health_names_the_first_three_inspections_that_hang(hung: int, named: str) -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.list_hangs = True
        harness.runtime.hung = {PodUID(name) for name in "abcde"}
        await asyncio.sleep(1)
        for name in "abcde"[:hung]:
            harness.pleg.request(PodUID(name))
        await asyncio.sleep(15)
        harness.pleg.request(PodUID("young"))
        await asyncio.sleep(5)
        assert harness.pleg.health() == (
            f"no relist has succeeded yet; the current one has been running for 21 s; inspections that hang: {named}"
        )

    run_scenario(scenario)


def test_an_inspection_is_slow_from_the_end_of_its_lease_on() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.hung |= {WEB, DB}
        harness.pleg.request(WEB)
        await asyncio.sleep(1)
        harness.pleg.request(DB)
        for at, expected in (
            (39.5, ()),
            (40.0, (SlowInspection(WEB, "ns/web", 10.0),)),
            (40.5, (SlowInspection(WEB, "ns/web", 10.5),)),
            (41.0, (SlowInspection(WEB, "ns/web", 11.0), SlowInspection(DB, "db", 10.0))),
        ):
            await asyncio.sleep(at - now())
            assert harness.pleg.slow_inspections() == expected

    run_scenario(scenario, runtime_with(web=RUNNING))


# Requests and slots.


def test_a_request_made_before_pleg_runs_is_served_when_it_runs() -> None:
    async def scenario() -> list[tuple[PodUID, float]]:
        harness = PlegHarness(runtime_with(web=RUNNING))
        harness.runtime.list_hangs = True
        harness.pleg.request(WEB)
        await asyncio.sleep(3)
        assert harness.runtime.inspections == []
        running = asyncio.ensure_future(harness.pleg.run())
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait({running})
        return harness.runtime.inspections

    assert simulate(scenario())[0] == [(WEB, 3.0)]


@pytest.mark.parametrize("later, inspections", [(0, [30.0, 31.0]), (-1, [30.0])])
def test_an_inspection_serves_only_requests_about_actions_before_its_start(
    later: int, inspections: list[float]
) -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        await asyncio.sleep(30)
        harness.pleg.request(DB)
        await asyncio.sleep(0.5)
        began = harness.last
        harness.pleg.request(DB, nextafter(began, -inf) if later else began)
        await asyncio.sleep(5)

    assert [at for _, at in run_scenario(scenario).runtime.inspections] == inspections


def test_an_inspection_that_has_ended_serves_no_later_request() -> None:
    async def scenario(harness: PlegHarness) -> None:
        for at in (30.0, 31.0):
            await asyncio.sleep(at - now())
            harness.pleg.request(DB, 29.0)
        await asyncio.sleep(1)

    assert run_scenario(scenario).runtime.inspections == [(DB, 30.0), (DB, 31.0)]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_more_inspections_run_at_a_time_than_there_are_slots(slots: int) -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        await asyncio.sleep(30)
        for name in "abcdef":
            harness.pleg.request(PodUID(name))
        await asyncio.sleep(10)

    harness = run_scenario(scenario, timing=PlegTiming(inspection_slots=slots))
    assert harness.runtime.inspections == [(name, 30.0 + index // slots) for index, name in enumerate("abcdef")]


def test_by_default_sixteen_inspections_run_at_a_time() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        await asyncio.sleep(30)
        for number in range(17):
            harness.pleg.request(PodUID(str(number)))
        await asyncio.sleep(10)

    assert [at for _, at in run_scenario(scenario).runtime.inspections] == [30.0] * 16 + [31.0]


def test_each_hung_inspection_loses_its_slot_after_its_own_lease() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.hung |= {PodUID(name) for name in "abcd"}
        await asyncio.sleep(30)
        for name in "abcd":
            harness.pleg.request(PodUID(name))
        harness.pleg.request(WEB)
        await asyncio.sleep(50)

    harness = run_scenario(scenario, timing=PlegTiming(inspection_slots=1))
    assert harness.runtime.inspections == [
        (name, 30.0 + 10 * index) for index, name in enumerate(["a", "b", "c", "d", WEB])
    ]


def test_a_late_request_does_not_shorten_the_lease_of_a_hung_inspection() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.hung.add(DB)
        await asyncio.sleep(30)
        harness.pleg.request(DB)
        await asyncio.sleep(9.5)
        harness.pleg.request(WEB)
        await asyncio.sleep(5)

    assert run_scenario(scenario, timing=PlegTiming(inspection_slots=1)).runtime.inspections == [
        (DB, 30.0),
        (WEB, 40.0),
    ]


def test_a_removed_pod_that_waits_for_a_slot_is_still_inspected() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.has_stream = False
        harness.runtime.hung.add(DB)
        await asyncio.sleep(30.5)
        harness.pleg.request(DB)
        harness.pleg.request(WEB)
        harness.runtime.put(WEB, None, send=False)
        await asyncio.sleep(20)

    harness = run_scenario(scenario, runtime_with(web=RUNNING), PlegTiming(inspection_slots=1))
    assert [inspection for inspection in harness.runtime.inspections if inspection[1] > 30] == [(DB, 30.5), (WEB, 40.5)]
    assert harness.events_sent()[1:] == [(31.0, "web", DIED), (31.0, "web", REMOVED)]


def test_an_inspection_that_outlived_its_lease_frees_no_second_slot_when_it_ends() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.inspection_seconds = 12.0
        harness.pleg.request(PodUID("a"))
        await asyncio.sleep(0.5)
        harness.pleg.request(PodUID("b"))  # at the end of the lease, at 40
        await asyncio.sleep(0.5)
        harness.pleg.request(PodUID("c"))  # not when a ends, at 42
        await asyncio.sleep(30)

    harness = run_scenario(scenario, timing=PlegTiming(inspection_slots=1))
    assert harness.runtime.inspections == [("a", 30.0), ("b", 40.0), ("c", 50.0)]


# Failures of inspections.


def test_the_pauses_between_inspections_start_from_the_shortest_after_a_success() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        for _ in range(2):
            await fail_inspections(harness, seconds=5)
            await asyncio.sleep(5)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 30, 31, 33, 37, 40, 41, 43, 47]


def test_a_request_during_an_inspection_that_fails_causes_another_one_at_once() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        await asyncio.sleep(30)
        harness.runtime.refusing.add(WEB)
        harness.pleg.request(WEB)
        await asyncio.sleep(0.25)
        harness.pleg.request(WEB)
        await asyncio.sleep(0.5)
        harness.runtime.refusing.clear()
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 30, 30.5]
    assert harness.events_sent()[1:] == [(31.5, "web", SYNC)]


@pytest.mark.parametrize("error", [ValueError("a bug"), TimeoutError("its own")], ids=["a bug", "a timeout"])
def test_an_unexpected_inspection_error_is_stored_and_the_inspection_repeated(error: Exception) -> None:
    runtime = runtime_with(web=RUNNING)

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        runtime.inspection_error = error
        runtime.put(WEB, EXITED)
        with pytest.raises(type(error)) as caught:
            await harness.cache.get_newer_than(WEB, harness.moment())
        assert caught.value is error
        runtime.inspection_error = None
        await asyncio.sleep(2)

    harness = run_scenario(scenario, runtime)
    assert [at for _, at in harness.runtime.inspections] == [0, 30, 31]
    assert harness.events_sent()[1:] == [(31.0, "web", DIED)]


def test_only_the_first_of_several_failures_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.refusing.add(WEB)
        await asyncio.sleep(10)

    with caplog.at_level(logging.DEBUG, "podkeeper.engine.pleg"):
        run_scenario(scenario, runtime_with(web=RUNNING))
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING, logging.DEBUG, logging.DEBUG, logging.DEBUG]


def test_an_inspection_that_fails_after_a_listing_without_the_pod_is_not_repeated() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(64)
        harness.runtime.inspection_seconds = 20.0
        harness.pleg.request(WEB)  # until 74
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, None, send=False)  # the listing at 65 shows it
        await asyncio.sleep(20)
        assert await harness.cache.get_newer_than(WEB, 60) == PodRecord(uid=WEB)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 64]
    assert harness.events_sent()[1:] == [(65.0, "web", DIED), (65.0, "web", REMOVED)]


@pytest.mark.parametrize(
    ("requested_again", "inspections"),
    [(False, [0, 63, 64]), (True, [0, 63, 64, 84])],
    ids=["not repeated", "repeated on request"],
)
def test_an_inspection_that_succeeds_after_a_listing_without_the_pod_reports_nothing_more(
    requested_again: bool, inspections: list[float]
) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(63)
        await fail_inspections(harness, seconds=0.5)
        harness.runtime.inspection_seconds = 20.0  # from 64 to 84
        await asyncio.sleep(1)
        harness.runtime.put(WEB, None, send=False)  # the listing at 65 shows it
        await asyncio.sleep(1)
        if requested_again:
            harness.pleg.request(WEB)  # from 84 to 104
        await asyncio.sleep(40)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == inspections
    assert harness.events_sent()[1:] == [(65.0, "web", DIED), (65.0, "web", REMOVED)]


def test_a_pod_that_returns_after_failed_inspections_is_inspected_at_once() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.has_stream = False
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(8)
        harness.runtime.put(WEB, None)
        await asyncio.sleep(2)
        harness.runtime.refusing.clear()
        harness.runtime.put(WEB, RUNNING, "app-2")
        await asyncio.sleep(20)

    harness = run_scenario(scenario)
    assert [at for _, at in harness.runtime.inspections] == [0, 1, 3, 7, 10]
    assert harness.events_sent() == [(8.0, "web", SYNC), (10.0, "web", STARTED)]


def test_an_event_that_cannot_be_delivered_does_not_block_the_next() -> None:
    class FailOnDied(PlegHarness):
        def emit(self, event: LifecycleEvent) -> None:
            self.emit_fails = event.type is DIED
            super().emit(event)

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(1)
        harness.runtime.put(WEB, None)
        await asyncio.sleep(1)

    harness = run_scenario(scenario, runtime_with(web=RUNNING), kind=FailOnDied)
    assert (harness.counts.discarded_events, harness.events_sent()) == (
        1,
        [(0.0, "web", STARTED), (1.0, "web", REMOVED)],
    )


# Relists.


def test_the_pauses_between_relists_start_from_the_shortest_after_a_success() -> None:
    runtime = Runtime()

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(60)
        for _ in range(2):
            runtime.list_error = TimeoutError("its own")
            await asyncio.sleep(9)
            runtime.list_error = None
            await asyncio.sleep(60)

    assert run_scenario(scenario, runtime).runtime.lists == [*range(6), 65, 66, 68, 72, 132, 133, 135, 139]


LOGGED: dict[str, tuple[Exception, int]] = {
    "an error of the runtime": (RuntimeUnavailable("cannot list"), logging.WARNING),
    "a timeout": (TimeoutError("its own"), logging.WARNING),
    "a bug": (ValueError("a bug"), logging.ERROR),
}


@pytest.mark.parametrize("error, level", LOGGED.values(), ids=LOGGED.keys())
def test_a_relist_that_fails_is_logged_once(error: Exception, level: int, caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime()
    runtime.list_error = error
    with caplog.at_level(logging.WARNING, "podkeeper.engine.pleg"):
        run_scenario(lambda harness: asyncio.sleep(0.5), runtime)
    assert [(entry.levelno, entry.exc_info is not None) for entry in caplog.records] == [
        (level, level == logging.ERROR)
    ]


def test_a_stream_that_breaks_during_a_relist_causes_another_relist_at_once() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(64.5)
        harness.runtime.list_seconds = 4.0  # from 65 to 69
        await asyncio.sleep(3)
        harness.runtime.break_streams()
        await asyncio.sleep(3)

    assert run_scenario(scenario).runtime.lists == [*range(6), 65, 69]


def test_an_empty_record_in_a_listing_is_skipped() -> None:
    class WithEmptyRecords(Runtime):
        async def list_pods(self) -> Sequence[PodRecord]:
            return [PodRecord(uid="empty"), *await super().list_pods(), PodRecord(uid="empty-2")]

    runtime = WithEmptyRecords()
    runtime.put(WEB, RUNNING)
    harness = run_scenario(lambda harness: asyncio.sleep(70), runtime)
    assert harness.runtime.inspections == [(WEB, 0.0)]
    assert (harness.events_sent(), harness.counts.missed_pods) == ([(0.0, "web", STARTED)], 0)


def test_a_listing_without_changes_causes_no_inspection() -> None:
    runtime = UnknownInListings()
    runtime.put(WEB, CREATED)
    harness = run_scenario(lambda harness: asyncio.sleep(70), runtime)  # created and unknown count as the same
    assert harness.runtime.inspections == [(WEB, 0.0)]
    assert (harness.events_sent(), harness.counts.missed_pods) == ([], 0)


# Missed events: changes without an event while the stream was open.

each_fate = pytest.mark.parametrize("state", [EXITED, None], ids=["it exits", "it is removed"])


@each_fate
def test_after_a_missed_event_the_relist_is_quick_for_a_minute(state: RecordState | None) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(200)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert harness.counts.missed_pods == 1
    assert harness.runtime.lists == [*range(6), 65, *range(67, 128), 187]


@each_fate
@pytest.mark.parametrize("late, missed", [(0.0, 0), (1.75, 0), (2.25, 1)])
def test_an_event_that_comes_within_two_seconds_of_the_relist_was_not_missed(
    state: RecordState | None, late: float, missed: int
) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(64.5)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(0.5 + late)
        harness.runtime.send(WEB, state=state)
        await asyncio.sleep(10)

    assert run_scenario(scenario, runtime_with(web=RUNNING)).counts.missed_pods == missed


@each_fate
@pytest.mark.parametrize("happened, missed", [(64.0, 0), (65.0, 0), (65.25, 1)])
def test_an_event_of_something_after_the_relist_does_not_replace_the_missed_one(
    state: RecordState | None, happened: float, missed: int
) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(36)
        harness.runtime.send(WEB, state=state, happened=BEGINNING + timedelta(seconds=happened))
        await asyncio.sleep(10)

    assert run_scenario(scenario, runtime_with(web=RUNNING)).counts.missed_pods == missed


@each_fate
def test_a_change_while_there_is_no_stream_is_no_missed_event(state: RecordState | None) -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.has_stream = False
        await asyncio.sleep(40.5)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (len(harness.events_sent()) > 1, harness.counts.missed_pods) == (True, 0)


@each_fate
def test_a_change_before_the_stream_can_be_trusted_is_no_missed_event(state: RecordState | None) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30.0)
        harness.runtime.break_streams()
        await asyncio.sleep(2.5)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (harness.events_sent()[1][0], harness.counts.missed_pods) == (33.0, 0)


@each_fate
def test_a_change_after_a_new_stream_is_trusted_is_a_missed_event(state: RecordState | None) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30.0)
        harness.runtime.break_streams()
        await asyncio.sleep(6)
        harness.runtime.put(WEB, state, send=False)
        await asyncio.sleep(70)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (harness.events_sent()[1][0], harness.counts.missed_pods) == (95.0, 1)


@each_fate
def test_a_change_after_an_inspection_is_a_missed_event_even_if_relists_fail(state: RecordState | None) -> None:
    runtime = runtime_with(web=RUNNING)

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30.0)
        runtime.list_error = RuntimeUnavailable("cannot list")
        runtime.break_streams()
        await asyncio.sleep(6)
        harness.pleg.request(WEB)
        await asyncio.sleep(1)
        runtime.put(WEB, state, send=False)
        runtime.list_error = None
        await asyncio.sleep(40)

    assert run_scenario(scenario, runtime).counts.missed_pods == 1


@each_fate
def test_a_change_with_an_event_that_cannot_be_inspected_is_no_missed_event(state: RecordState | None) -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, state)
        await asyncio.sleep(60)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (len(harness.events_sent()) > 1, harness.counts.missed_pods) == (state is None, 0)


def test_a_change_that_no_inspection_confirms_in_time_is_not_counted_as_missed() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.inspection_seconds = 5.0  # from the relist at 65 to 70, and events may come until 67
        harness.runtime.put(WEB, EXITED, send=False)
        await asyncio.sleep(60)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (harness.events_sent()[1:], harness.counts.missed_pods) == ([(70.0, "web", DIED)], 0)


def test_a_change_with_an_event_after_a_wrong_listing_is_not_counted_as_missed() -> None:
    runtime = UnknownInListings()
    runtime.put(WEB, RUNNING)

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(66)  # the listing at 65 was wrong
        runtime.put(WEB, EXITED, send=False)
        runtime.send(WEB, state=EXITED, happened=BEGINNING + timedelta(seconds=66))
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime)
    assert (harness.events_sent()[1:], harness.counts.missed_pods) == ([(66.0, "web", DIED)], 0)


def test_several_pods_with_missed_events_are_counted_together() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, EXITED, send=False)
        harness.runtime.put(DB, None, send=False)
        harness.runtime.put(PodUID("cron"), EXITED, send=False)
        harness.runtime.put(PodUID("new"), RUNNING, send=False)
        await asyncio.sleep(35.5)
        harness.runtime.send(PodUID("cron"))
        await asyncio.sleep(40)

    harness = run_scenario(scenario, runtime_with(web=RUNNING, db=RUNNING, cron=RUNNING))
    assert harness.counts.missed_pods == 3


def test_a_request_for_a_pod_that_does_not_exist_is_no_missed_event() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.pleg.request(DB)
        await asyncio.sleep(100)

    harness = run_scenario(scenario)
    assert (harness.counts.missed_pods, harness.runtime.inspections) == (0, [(DB, 30.0)])


def test_pleg_needs_no_observer() -> None:
    async def scenario() -> list[tuple[float, str, LifecycleEventType]]:
        harness = PlegHarness(runtime_with(web=RUNNING))
        pleg = Pleg(
            runtime=stand_in(BoundedRuntime, harness.runtime),
            cache=harness.cache,
            emit=harness.emit,
            clock=harness.clock,
            inspection_clock=harness.moment,
        )
        running = asyncio.ensure_future(pleg.run())
        await asyncio.sleep(30)
        harness.runtime.put(WEB, EXITED, send=False)
        await asyncio.sleep(40)
        harness.runtime.put(DB, RUNNING)
        harness.runtime.break_streams()
        await asyncio.sleep(1)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
        return harness.events_sent()

    assert simulate(scenario())[0] == [(0.0, "web", STARTED), (65.0, "web", DIED), (70.0, "db", STARTED)]


# The stream.


FOR_EVER_SECONDS = 1e6


class LimitedStreams(Runtime):
    """Its streams end after these seconds, one after the other. The last one does not end."""

    def __init__(self, *stream_seconds: float) -> None:
        super().__init__()
        self.stream_seconds = list(stream_seconds)

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        await asyncio.sleep(self.stream_seconds.pop(0) if self.stream_seconds else FOR_EVER_SECONDS)
        return
        yield


STREAM_SECONDS: dict[str, tuple[tuple[float, ...], list[float]]] = {
    "streams that can be trusted are opened again at once": ((5, 7, 100), [0, 5, 12, 112]),
    "streams that end too soon are opened ever less often": ((1, 1, 1, 1), [0, 2, 5, 10, 19]),
    "a good one in between counts": ((1, 4.75, 5, 2, 1), [0, 2, 8.75, 13.75, 16.75, 19.75]),
}


@pytest.mark.parametrize("stream_seconds, opened", STREAM_SECONDS.values(), ids=STREAM_SECONDS.keys())
def test_a_stream_that_ends_too_soon_is_opened_again_after_a_pause(
    stream_seconds: tuple[float, ...], opened: list[float]
) -> None:
    harness = run_scenario(lambda harness: asyncio.sleep(200), LimitedStreams(*stream_seconds))
    streams = [seen for seen in harness.counts.seen if seen[0] in ("opened", "broke")]
    broke = [start + seconds for start, seconds in zip(opened, stream_seconds, strict=False)]
    assert streams == sorted([*(("opened", at) for at in opened), *(("broke", at) for at in broke)], key=_by_time)


def _by_time(seen: tuple[str, float]) -> tuple[float, str]:
    return seen[1], seen[0]  # at the same time, the old stream breaks first


@pytest.mark.parametrize("error", [None, RuntimeUnavailable("gone"), ValueError("a bug")])
def test_a_stream_is_opened_again_however_it_ends(error: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Runtime):
        opened = 0

        async def events(self) -> AsyncIterator[RuntimeEvent]:
            self.opened += 1
            if self.opened == 1:
                if error is not None:
                    raise error
                return
            async for event in super().events():
                yield event

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(10)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(1)

    with caplog.at_level(logging.WARNING, "podkeeper.engine.pleg"):
        harness = run_scenario(scenario, Broken())
    assert (harness.events_sent(), harness.counts.breaks) == ([(10.0, "web", STARTED)], 1)
    unexpected = [logging.ERROR] if isinstance(error, ValueError) else []
    assert [entry.levelno for entry in caplog.records] == [*unexpected, logging.WARNING]


# The end.


def test_a_request_made_after_pleg_has_stopped_is_not_served() -> None:
    async def scenario() -> list[tuple[PodUID, float]]:
        harness = PlegHarness(runtime_with(web=RUNNING))
        running = asyncio.ensure_future(harness.pleg.run())
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait({running})
        harness.pleg.request(WEB)
        await asyncio.sleep(100)
        return harness.runtime.inspections

    assert simulate(scenario())[0] == [(WEB, 0.0)]


BUSY: dict[str, Callable[[PlegHarness], None]] = {
    "an inspection waits for its next attempt": lambda harness: harness.runtime.refusing.add(WEB),
    "an inspection waits for a slot": lambda harness: harness.runtime.hung.update({WEB, DB}),
}


@pytest.mark.parametrize("make_busy", BUSY.values(), ids=BUSY.keys())
def test_no_task_or_timer_remains_after_the_stop(
    make_busy: Callable[[PlegHarness], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        harness = PlegHarness(Runtime(), PlegTiming(inspection_slots=1))
        gone = weakref.ref(harness.pleg)
        make_busy(harness)
        running = asyncio.ensure_future(harness.pleg.run())
        await asyncio.sleep(1)
        for uid in (WEB, DB, PodUID("cron")):
            harness.pleg.request(uid)
        await asyncio.sleep(0.5)
        running.cancel()
        await asyncio.wait({running})
        del harness, running
        gc.collect()
        assert gone() is None

    with caplog.at_level(logging.CRITICAL, "podkeeper.engine.pleg"):  # a stored log entry would refer to it
        simulate(scenario())
