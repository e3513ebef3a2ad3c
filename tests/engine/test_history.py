"""A pod's history: bounded, counted where it repeats itself, and readable."""

import asyncio
import weakref
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.history import (
    LONGEST_TIMELINE,
    MOVED,
    NEXT_PASS,
    PASS_ENDED,
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


# Bounds, exactly.


@pytest.mark.parametrize("count", [49, 50, 51, 52])
def test_a_timeline_holds_the_latest_fifty_notes(count: int) -> None:
    async def scenario() -> Explanation:
        history = History(clock=VirtualClock())
        for number in range(count):
            history.note(WEB, f"what {number}", f"detail {number}")
            await asyncio.sleep(1)
        return history.explain(WEB)

    assert simulate(scenario())[0].timeline == tuple(
        Entry(BEGINNING + timedelta(seconds=number), f"what {number}", f"detail {number}")
        for number in range(max(0, count - 50), count)
    )


@pytest.mark.parametrize("between, times", [(0, [2]), (1, [2, 1]), (5, [2, 1, 1, 1, 1, 1]), (6, [1] * 8)])
def test_a_note_is_counted_if_it_is_among_the_last_six(between: int, times: list[int]) -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, "event", "Pulled")
        for number in range(between):
            history.note(WEB, "other", str(number))
        history.note(WEB, "event", "Pulled")

    assert [entry.times for entry in told(script).timeline] == times


def test_notes_that_differ_in_their_detail_or_their_subject_are_kept_apart() -> None:
    def script(history: History, _: VirtualClock) -> None:
        for what, detail in (("event", "a"), ("event", "b"), ("probe", "b"), ("event", "a")):
            history.note(WEB, what, detail)

    assert words(told(script)) == ["event: a x2", "event: b", "probe: b"]


@pytest.mark.parametrize("length, kept", [(255, 255), (256, 256), (257, 256)])
def test_a_detail_has_at_most_256_characters(length: int, kept: int) -> None:
    (entry,) = told(lambda history, _: history.note(WEB, "event", "x" * length)).timeline
    assert entry.detail == "x" * kept


def test_by_default_a_thousand_pods_without_a_worker_are_remembered() -> None:
    async def scenario() -> list[bool]:
        history = History(clock=VirtualClock())
        uids = [PodUID(f"uid-{number}") for number in range(1001)]
        for uid in uids[:1000]:
            history.note(uid, "rejected")
        all_kept = bool(history.explain(uids[0]).timeline)
        history.note(uids[1000], "rejected")
        return [all_kept, *(bool(history.explain(uid).timeline) for uid in (uids[0], uids[1], uids[1000]))]

    assert simulate(scenario())[0] == [True, False, True, True]


def remembered(script: Callable[[History], object], *uids: str) -> list[str]:
    """Which of some pods a history that remembers two still knows."""
    known: list[str] = []

    def look(history: History, _: VirtualClock) -> None:
        script(history)
        known.extend(uid for uid in uids if history.explain(PodUID(uid)).timeline)

    told(look, most_remembered=2)
    return known


def test_the_pod_whose_last_note_is_oldest_is_forgotten_first() -> None:
    def script(history: History) -> None:
        for uid in ("a", "b", "a", "c"):
            history.note(PodUID(uid), "rejected")

    assert remembered(script, "a", "b", "c") == ["a", "c"]


def test_a_pod_that_waits_for_a_retry_counts_as_noted() -> None:
    def script(history: History) -> None:
        for uid in ("a", "b"):
            history.note(PodUID(uid), "rejected")
        history.will_retry(PodUID("a"), 5)
        history.note(PodUID("c"), "rejected")

    assert remembered(script, "a", "b", "c") == ["a", "c"]


def test_pods_whose_workers_have_forgotten_them_are_bounded_too() -> None:
    def script(history: History) -> None:
        for uid in ("a", "b", "c"):
            history.note(PodUID(uid), MOVED, "unknown -> syncing")
        for uid in ("a", "b", "c"):
            history.note(PodUID(uid), MOVED, "syncing -> unknown")

    assert remembered(script, "a", "b", "c") == ["b", "c"]


def test_a_pod_with_a_worker_takes_no_place_of_those_without() -> None:
    def script(history: History) -> None:
        for uid in ("a", "b", "c"):
            history.note(PodUID(uid), MOVED, "unknown -> syncing")
            history.note(PodUID(uid), "event", "Pulled")
            history.will_retry(PodUID(uid), 5)
        for uid in ("d", "e"):
            history.note(PodUID(uid), "rejected")

    assert remembered(script, "a", "b", "c", "d", "e") == ["a", "b", "c", "d", "e"]


def test_a_pod_that_gets_a_worker_leaves_its_place_to_others() -> None:
    def script(history: History) -> None:
        history.note(PodUID("a"), "rejected")
        history.note(PodUID("b"), MOVED, "unknown -> syncing")
        history.note(PodUID("c"), "rejected")

    assert remembered(script, "a", "b", "c") == ["a", "b", "c"]


class Text(str):
    """A text that can be watched from outside: plain ones take no weak references."""


def test_texts_that_no_timeline_shows_any_more_are_freed() -> None:
    alive: weakref.WeakSet[Text] = weakref.WeakSet()
    found: list[int] = []

    def script(history: History, _: VirtualClock) -> None:
        for number in range(2048):
            what = Text(f"what {number}")
            alive.add(what)
            history.note(WEB, what)
            if number >= 2046:
                found.append(len(alive))

    told(script)
    assert found == [2047, 50]  # with the empty detail 2048 texts; then those of the timeline


# What a pod waits for.


@pytest.mark.parametrize(
    "what, detail, waiting_for, expected",
    [
        (PASS_ENDED, "failed: no image", None, "no image"),
        (PASS_ENDED, "failed: failed: twice", None, "failed: twice"),
        (PASS_ENDED, "done", None, ""),
        (PASS_ENDED, "it failed: no image", None, ""),
        (PASS_ENDED, "failed: no image", "image web:1", "image web:1"),
        (PASS_ENDED, "failed: no image", "", ""),
        ("event", "failed: no image", None, "before"),
        ("event", "done", "volume data", "volume data"),
    ],
)
def test_what_a_pod_waits_for(what: str, detail: str, waiting_for: str | None, expected: str) -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, "event", waiting_for="before")
        history.note(WEB, what, detail, waiting_for=waiting_for)

    assert told(script).waiting_for == expected


SOON, LATER = BEGINNING + timedelta(seconds=10), BEGINNING + timedelta(seconds=20)


@pytest.mark.parametrize(
    "note, expected",
    [
        (lambda history: history.note(WEB, "event", "Pulled"), SOON),
        (lambda history: history.note(WEB, PASS_ENDED, "done"), None),
        (lambda history: history.note(WEB, "event", waiting_for="image"), None),
        (lambda history: history.note(WEB, "event", waiting_for="image", retry_at=LATER), LATER),
        (lambda history: history.note(WEB, "event", retry_at=LATER), LATER),
        (lambda history: history.will_retry(WEB, 20), LATER),
        (lambda history: history.note(WEB, MOVED, "syncing -> terminating"), None),
        (lambda history: history.note(WEB, MOVED, "syncing -> unknown"), None),
    ],
    ids=["an event", "a sync ends", "a wait", "a wait with a retry", "a retry", "no note", "a move", "the worker ends"],
)
def test_the_next_retry_after(note: Callable[[History], object], expected: object) -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, MOVED, "unknown -> syncing")
        history.note(WEB, "held back", retry_at=SOON)
        note(history)

    assert told(script).next_retry == expected


def test_a_retry_is_in_the_future_until_its_very_instant() -> None:
    async def scenario() -> list[bool]:
        history = History(clock=VirtualClock())
        history.will_retry(WEB, 2)
        found = []
        for _ in range(3):
            found.append(history.explain(WEB).next_retry is None)
            await asyncio.sleep(1)
        return found

    assert simulate(scenario())[0] == [False, False, True]


def test_the_state_is_what_follows_the_last_arrow() -> None:
    explanation = told(lambda history, _: history.note(WEB, MOVED, "unknown -> syncing -> terminating"))
    assert (explanation.state, explanation.since) == ("terminating", BEGINNING)


def test_a_pod_without_a_worker_that_moves_nowhere_keeps_its_notes() -> None:
    def script(history: History, _: VirtualClock) -> None:
        history.note(WEB, "rejected", "OutOfcpu", waiting_for="room")
        history.note(WEB, MOVED, "unknown -> unknown")

    assert told(script) == Explanation(
        uid=WEB,
        asked_at=BEGINNING,
        timeline=(Entry(BEGINNING, "rejected", "OutOfcpu"), Entry(BEGINNING, MOVED, "unknown -> unknown")),
    )


# Lines for the terminal.


@pytest.mark.parametrize(
    "seconds, expected",
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (0.6, "1 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (3660, "1 h 1 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 0 h"),
        (90000, "1 d 1 h"),
        (180000, "2 d 2 h"),
    ],
)
def test_a_span_is_shown_in_its_two_largest_units(seconds: float, expected: str) -> None:
    span = timedelta(seconds=seconds)
    explanation = Explanation(uid=WEB, asked_at=BEGINNING, since=BEGINNING - span, next_retry=BEGINNING + span)
    assert timeline_lines(explanation) == [f"unknown for {expected}", f"next try in {expected}"]


def test_a_line_ends_with_its_last_word_or_its_count() -> None:
    explanation = Explanation(
        uid=WEB,
        asked_at=BEGINNING,
        timeline=(
            Entry(BEGINNING, "seen"),
            Entry(BEGINNING, "rejected", times=2, last_at=BEGINNING + timedelta(seconds=1)),
            Entry(BEGINNING, "event", "Pulled"),
        ),
    )
    assert timeline_lines(explanation) == [
        "unknown",
        "",
        "2026-01-01 00:00:00  seen",
        "2026-01-01 00:00:00  rejected  (2 times, last 00:00:01)",
        "2026-01-01 00:00:00  event     Pulled",
    ]
