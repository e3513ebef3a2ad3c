"""A pod's history: bounded, counted where it repeats itself, and readable."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.history import (
    LONGEST_TIMELINE,
    MOVED,
    NEXT_PASS,
    UNKNOWN,
    Entry,
    Explanation,
    History,
    timeline_lines,
)
from podkeeper.model.messages import PodUID
from podkeeper.rules.worker.states import Unknown, in_words
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate

WEB, DB = PodUID("uid-web"), PodUID("uid-db")


def told(script: Callable[[History, VirtualClock], object], most_remembered: int = 10) -> Explanation:
    """What a history explains after a script that takes no time."""

    async def scenario() -> Explanation:
        clock = VirtualClock()
        history = History(clock=clock, most_remembered=most_remembered)
        script(history, clock)
        return history.explain(WEB)

    return simulate(scenario())[0]


def words(explanation: Explanation) -> list[str]:
    return [f"{entry.what}: {entry.detail}" + f" x{entry.times}" * (entry.times > 1) for entry in explanation.timeline]


def test_a_pod_never_heard_of_is_unknown() -> None:
    explanation = told(lambda *_: None)
    assert explanation == Explanation(uid=WEB, asked_at=BEGINNING)
    assert timeline_lines(explanation) == ["unknown"]


def test_a_pod_tells_its_state_since_when_and_how_it_came_there() -> None:
    async def scenario() -> Explanation:
        history = History(clock=VirtualClock())
        history.note(WEB, "seen", "from api")
        history.note(WEB, MOVED, "unknown -> syncing")
        await asyncio.sleep(90)
        history.note(WEB, MOVED, "syncing -> terminating (deleted)")
        await asyncio.sleep(5)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    later = BEGINNING + timedelta(seconds=90)
    assert (explanation.state, explanation.since) == ("terminating (deleted)", later)
    assert explanation.timeline == (
        Entry(BEGINNING, "seen", "from api"),
        Entry(BEGINNING, MOVED, "unknown -> syncing"),
        Entry(later, MOVED, "syncing -> terminating (deleted)"),
    )


def test_what_repeats_itself_is_counted() -> None:
    async def scenario() -> Explanation:
        history = History(clock=VirtualClock())
        history.note(WEB, MOVED, "unknown -> syncing")
        for minute in range(60):
            history.note(WEB, "pass begun", "sync (sync)")
            history.note(WEB, "pass ended", "done")
            history.note(WEB, NEXT_PASS, f"in {minute} s")
            await asyncio.sleep(60)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    assert words(explanation) == [
        "moved: unknown -> syncing",
        "pass begun: sync (sync) x60",
        "pass ended: done x60",
        "next pass: in 59 s x60",
    ]
    assert explanation.timeline[1].at == BEGINNING
    assert explanation.timeline[1].last_at == BEGINNING + timedelta(minutes=59)


def test_a_change_of_state_begins_a_new_count() -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, "pass ended", "done")
        history.note(WEB, MOVED, "syncing -> terminating (deleted)")
        history.note(WEB, "pass ended", "done")

    assert words(told(script)) == ["pass ended: done", "moved: syncing -> terminating (deleted)", "pass ended: done"]


def test_waiting_ends_when_something_else_is_said_or_the_pod_moves() -> None:
    waits: list[str] = []

    def script(history: History, clock: VirtualClock) -> None:
        def look() -> None:
            waits.append(history.explain(WEB).waiting_for)

        history.note(WEB, "pass ended", "failed", waiting_for="volume data")
        look()
        history.note(WEB, "event", "Pulled")
        look()
        history.note(WEB, "pass ended", "done", waiting_for="")
        look()
        history.note(WEB, "pass ended", "failed", waiting_for="volume data")
        history.note(WEB, MOVED, "syncing -> terminating (deleted)")
        look()

    told(script)
    assert waits == ["volume data", "volume data", "", ""]


def test_a_retry_is_told_until_it_is_due() -> None:
    async def scenario() -> list[timedelta | None]:
        clock = VirtualClock()
        history = History(clock=clock)

        def left(uid: PodUID) -> timedelta | None:
            retry = history.explain(uid).next_retry
            return None if retry is None else retry - clock.now()

        history.note(WEB, "held back", "back-off 40 s", retry_at=clock.now() + timedelta(seconds=40))
        history.will_retry(DB, 30)
        seen = [left(WEB), left(DB)]
        await asyncio.sleep(40)
        return [*seen, left(WEB), left(DB)]

    assert simulate(scenario())[0] == [timedelta(seconds=40), timedelta(seconds=30), None, None]


def test_a_corrected_wall_clock_corrects_what_is_shown() -> None:
    async def scenario() -> Explanation:
        clock = VirtualClock()
        history = History(clock=clock)
        history.note(WEB, MOVED, "unknown -> syncing")
        await asyncio.sleep(10)
        clock.jump(3600)
        return history.explain(WEB)

    explanation = simulate(scenario())[0]
    assert explanation.since == BEGINNING + timedelta(hours=1)
    assert timeline_lines(explanation)[0] == "syncing for 10 s"


def test_a_forgotten_pod_still_explains_why_it_went() -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, MOVED, "unknown -> syncing")
        history.note(WEB, MOVED, "syncing -> finished (evicted)")
        history.note(WEB, MOVED, f"finished (evicted) -> {in_words(Unknown())}")

    explanation = told(script)
    assert explanation.state == "finished (evicted)"
    assert len(explanation.timeline) == 3


def test_only_so_many_pods_without_a_worker_are_remembered_and_a_living_one_is_never_dropped() -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, MOVED, "unknown -> syncing")
        for number in range(20):
            gone = PodUID(f"uid-{number}")
            history.note(gone, MOVED, "unknown -> syncing")
            history.note(gone, MOVED, "syncing -> unknown")
            history.note(PodUID(f"rejected-{number}"), "rejected", "OutOfcpu")
        remembered = [bool(history.explain(PodUID(f"uid-{number}")).timeline) for number in (0, 14, 15, 19)]
        assert remembered == [False, False, True, True]

    assert told(script).state == "syncing"


def test_a_pod_that_comes_back_goes_on_with_its_history() -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, MOVED, "unknown -> syncing")
        history.note(WEB, MOVED, "finished (deleted) -> unknown")
        history.note(WEB, MOVED, "unknown -> syncing")
        for number in range(20):
            history.note(PodUID(f"uid-{number}"), "rejected")

    explanation = told(script)
    assert (explanation.state, len(explanation.timeline)) == ("syncing", 3)


def test_the_state_of_a_pod_without_a_worker_is_named_as_the_workers_name_it() -> None:
    assert in_words(Unknown()) == UNKNOWN


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.integers(0, 3)), max_size=200))
def test_a_timeline_is_bounded_in_order_and_counts_every_note(notes: list[tuple[str, str, int]]) -> None:
    async def scenario() -> Explanation:
        history = History(clock=VirtualClock())
        for what, detail, move in notes:
            await asyncio.sleep(1)
            history.note(WEB, MOVED if move == 0 else what, f"s -> {detail}" if move == 0 else detail)
        return history.explain(WEB)

    timeline = simulate(scenario())[0].timeline
    assert len(timeline) <= LONGEST_TIMELINE
    assert list(timeline) == sorted(timeline, key=lambda entry: entry.at)
    counted = sum(entry.times for entry in timeline)
    assert counted == len(notes) or (len(timeline) == LONGEST_TIMELINE and counted < len(notes))


def test_texts_that_many_pods_share_are_kept_once() -> None:
    async def scenario() -> tuple[str, str]:
        history = History(clock=VirtualClock())
        for uid in (WEB, DB):
            history.note(uid, "".join(["pa", "ss"]), "".join(["do", "ne"]))
        return history.explain(WEB).timeline[0].detail, history.explain(DB).timeline[0].detail

    one, other = simulate(scenario())[0]
    assert one is other


def test_a_very_long_detail_is_cut() -> None:
    (entry,) = told(lambda history, _: history.note(WEB, "pass ended", "x" * 100_000)).timeline
    assert 100 < len(entry.detail) < 1000


def test_lines_for_the_terminal() -> None:
    async def scenario() -> list[str]:
        clock = VirtualClock()
        history = History(clock=clock)
        history.note(WEB, MOVED, "unknown -> syncing")
        await asyncio.sleep(3 * 3600 + 61)
        history.note(WEB, "pass ended", "failed: no image")
        history.note(WEB, "pass ended", "failed: no image", waiting_for="image web:1")
        history.will_retry(WEB, 75)
        return timeline_lines(history.explain(WEB))

    assert simulate(scenario())[0] == [
        "syncing for 3 h 1 min",
        "waiting for image web:1",
        "next try in 1 min 15 s",
        "",
        "2026-01-01 00:00:00  moved       unknown -> syncing",
        "2026-01-01 03:01:01  pass ended  failed: no image  (2 times, last 03:01:01)",
    ]
