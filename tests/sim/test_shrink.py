"""Shrinking: what is left of a failing history is enough to fail, and nothing of it can be spared."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.history import Act, Chapter, History
from podkeeper.testing.sim.shrink import Shrunk, shrink
from podkeeper.testing.sim.world import Violation, World

HOUR = 3600.0
CHAPTERS = tuple(Chapter(hour * HOUR, (hour + 0.75) * HOUR, (hour + 1) * HOUR) for hour in range(4))


@dataclass(frozen=True)
class Thing:
    kind: str

    def play(self, world: World) -> None:
        raise AssertionError("nothing is played here")


def history(acts: int) -> History:
    """Acts spread over four chapters; every third one is a fault."""
    every = 4 * HOUR / acts
    return History(
        7,
        CHAPTERS,
        tuple(Act(n, (n - 0.5) * every, Thing("fault" if n % 3 == 0 else "work")) for n in range(1, acts + 1)),
    )


def is_fault(act: Act) -> bool:
    return act.deed.kind == "fault"


def numbers(of: History) -> list[int]:
    return [act.number for act in of.acts]


class Judge:
    """Says that a promise is broken by certain acts together, an instant after the last of them; keeps count."""

    def __init__(self, *culprits: int, invariant: str = "I1", soonest: float = 0.0) -> None:
        self._culprits = set(culprits)
        self._invariant = invariant
        self._soonest = soonest
        self.judged: list[tuple[int, ...]] = []

    def __call__(self, of: History) -> Violation | None:
        self.judged.append(tuple(numbers(of)))
        if not self._culprits <= set(numbers(of)):
            return None
        at = max(self._soonest, *(act.at for act in of.acts if act.number in self._culprits))
        return Violation(self._invariant, at, PodUID("u"), f"broken with {len(of.acts)} acts")


def shrunk(of: History, judge: Callable[[History], Violation | None]) -> Shrunk:
    violation = judge(of)
    assert violation is not None
    return shrink(of, violation, judge, is_fault=is_fault)


CULPRITS = {
    "one work": (1,),
    "one fault": (3,),
    "the very last act": (100,),
    "neighbours": (49, 50, 51),
    "far apart": (1, 50, 100),
    "many of them": tuple(range(10, 100, 9)),
    "all faults and no work": tuple(range(3, 100, 3)),
}


@pytest.mark.parametrize("culprits", CULPRITS.values(), ids=CULPRITS.keys())
def test_what_is_left_are_the_culprits(culprits: tuple[int, ...]) -> None:
    result = shrunk(history(100), Judge(*culprits))
    assert (numbers(result.history), result.minimal) == (list(culprits), True)


@given(st.sets(st.integers(1, 60), min_size=1, max_size=8), st.sets(st.integers(1, 60), min_size=1, max_size=8))
def test_no_single_act_of_the_result_can_be_spared(these: set[int], or_those: set[int]) -> None:
    """Two ways to fail, one perhaps hidden in the other: the result is one of them, whole and alone."""
    ways = (Judge(*these), Judge(*or_those))

    def judge(of: History) -> Violation | None:
        return ways[0](of) or ways[1](of)

    result = shrunk(history(60), judge)
    left = result.history
    assert judge(left) is not None
    assert all(judge(left.only(set(numbers(left)) - {number})) is None for number in numbers(left))


def test_an_act_that_needs_another_goes_with_it() -> None:
    """A deletion (9) without its pod (4) is another failure; only leaving both out keeps this one."""

    def judge(of: History) -> Violation | None:
        kept = set(numbers(of))
        if 9 in kept and 4 not in kept:
            return Violation("I9", 1.0, PodUID("u"), "another promise")
        return Violation("I1", of.acts[-1].at, PodUID("u"), "ours") if 20 in kept else None

    assert numbers(shrunk(history(20), judge).history) == [20]


def test_a_history_that_breaks_another_promise_does_not_count() -> None:
    def judge(of: History) -> Violation | None:
        return Violation("I1" if len(of.acts) > 5 else "I2", 4 * HOUR, PodUID("u"), "")

    result = shrunk(history(20), judge)
    assert (len(result.history.acts), result.violation.invariant) == (6, "I1")


def test_nothing_after_the_failure_is_kept_nor_tried() -> None:
    judge = Judge(30)  # of 100, so in the second of four chapters
    result = shrunk(history(100), judge)
    assert result.history.chapters == CHAPTERS[:2]
    assert all(max(tried, default=0) <= 30 for tried in judge.judged[1:])


def test_a_promise_broken_at_the_end_of_a_chapter_does_not_keep_the_next_chapter() -> None:
    result = shrunk(history(100), Judge(20, soonest=HOUR))
    assert (result.violation.at, result.history.chapters) == (HOUR, CHAPTERS[:1])


def test_earlier_chapters_are_tried_first_and_faults_before_work() -> None:
    judge = Judge(80, 81)
    shrunk(history(100), judge)
    everything, without_earlier, without_faults = judge.judged[:3]
    assert everything == tuple(range(1, 101))
    assert without_earlier == tuple(range(76, 82))
    assert without_faults == (76, 77, 79, 80)  # 78 and 81 are faults


def test_few_culprits_among_many_acts_are_found_in_few_plays() -> None:
    result = shrunk(history(1024), Judge(200, 700, 1000))
    assert numbers(result.history) == [200, 700, 1000]
    assert result.plays < 3 * 4 * ceil(log2(1024))


def test_when_time_is_up_the_best_so_far_is_given_back() -> None:
    of, judge = history(100), Judge(50, 90)
    violation, plays = judge(of), count()
    assert violation is not None
    result = shrink(of, violation, judge, is_fault=is_fault, time_is_up=lambda: next(plays) >= 6)
    assert (result.plays, result.minimal) == (6, False)
    assert {50, 90} <= set(numbers(result.history)) < set(numbers(of))


def test_ctrl_c_gives_back_the_best_so_far() -> None:
    of, judge, plays = history(100), Judge(50, 90), count()

    def impatient(candidate: History) -> Violation | None:
        if next(plays) == 6:
            raise KeyboardInterrupt
        return judge(candidate)

    violation = judge(of)
    assert violation is not None
    result = shrink(of, violation, impatient, is_fault=is_fault)
    assert (result.plays, result.minimal) == (6, False)
    assert {50, 90} <= set(numbers(result.history))


def test_each_trial_is_told_with_the_best_so_far() -> None:
    of, judge = history(100), Judge(50)
    violation = judge(of)
    assert violation is not None
    told: list[Shrunk] = []
    result = shrink(of, violation, judge, is_fault=is_fault, tell=told.append)
    assert [each.plays for each in told] == list(range(1, result.plays + 1))
    sizes = [len(each.history.acts) for each in told]
    assert sizes == sorted(sizes, reverse=True)


def test_the_order_of_the_trials_is_always_the_same() -> None:
    first, second = Judge(5, 41, 77), Judge(5, 41, 77)
    shrunk(history(100), first)
    shrunk(history(100), second)
    assert first.judged == second.judged


def test_a_failure_without_any_act_is_left_with_none() -> None:
    result = shrunk(history(10), lambda of: Violation("I6", HOUR, PodUID(""), "always"))
    assert (result.history.acts, result.minimal) == ((), True)
