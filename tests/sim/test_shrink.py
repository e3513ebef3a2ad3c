"""Shrinking: the remaining actions are enough to fail, and all of them are necessary."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.schedule import Schedule, Segment, TimedAction
from podkeeper.testing.sim.shrink import Shrunk, shrink
from podkeeper.testing.sim.world import Violation, World

HOUR = 3600.0
SEGMENTS = tuple(Segment(hour * HOUR, (hour + 0.75) * HOUR, (hour + 1) * HOUR) for hour in range(4))


@dataclass(frozen=True)
class Thing:
    kind: str

    def run(self, world: World) -> None:
        raise AssertionError("nothing is played here")


def schedule(actions: int) -> Schedule:
    """Return actions in four segments. Every third one is a fault."""
    every = 4 * HOUR / actions
    return Schedule(
        7,
        SEGMENTS,
        tuple(
            TimedAction(n, (n - 0.5) * every, Thing("fault" if n % 3 == 0 else "work")) for n in range(1, actions + 1)
        ),
    )


def is_fault(timed: TimedAction) -> bool:
    return timed.action.kind == "fault"


def numbers(of: Schedule) -> list[int]:
    return [timed.number for timed in of.actions]


class FakeRun:
    """Reports a violation just after the last of certain actions, if all of them are present. Counts its runs."""

    def __init__(self, *culprits: int, invariant: str = "I1", soonest: float = 0.0) -> None:
        self._culprits = set(culprits)
        self._invariant = invariant
        self._soonest = soonest
        self.trials: list[tuple[int, ...]] = []

    def __call__(self, of: Schedule) -> Violation | None:
        self.trials.append(tuple(numbers(of)))
        if not self._culprits <= set(numbers(of)):
            return None
        at = max(self._soonest, *(timed.at for timed in of.actions if timed.number in self._culprits))
        return Violation(self._invariant, at, PodUID("u"), f"broken with {len(of.actions)} acts")


def shrunk(of: Schedule, run_trial: Callable[[Schedule], Violation | None]) -> Shrunk:
    violation = run_trial(of)
    assert violation is not None
    return shrink(of, violation, run_trial, is_fault=is_fault)


CULPRITS = {
    "one workload action": (1,),
    "one fault": (3,),
    "the very last action": (100,),
    "neighbours": (49, 50, 51),
    "far apart": (1, 50, 100),
    "many of them": tuple(range(10, 100, 9)),
    "all faults and no workload": tuple(range(3, 100, 3)),
}


@pytest.mark.parametrize("culprits", CULPRITS.values(), ids=CULPRITS.keys())
def test_only_the_necessary_actions_remain(culprits: tuple[int, ...]) -> None:
    result = shrunk(schedule(100), FakeRun(*culprits))
    assert (numbers(result.schedule), result.minimal) == (list(culprits), True)


@given(st.sets(st.integers(1, 60), min_size=1, max_size=8), st.sets(st.integers(1, 60), min_size=1, max_size=8))
def test_every_remaining_action_is_necessary(these: set[int], or_those: set[int]) -> None:
    """There are two ways to fail, which may overlap. The result is exactly one of them."""
    ways = (FakeRun(*these), FakeRun(*or_those))

    def run_trial(of: Schedule) -> Violation | None:
        return ways[0](of) or ways[1](of)

    result = shrunk(schedule(60), run_trial)
    left = result.schedule
    assert run_trial(left) is not None
    assert all(run_trial(left.only(set(numbers(left)) - {number})) is None for number in numbers(left))


def test_an_action_that_needs_another_one_is_removed_with_it() -> None:
    """A deletion (9) without its pod (4) is another failure, so both must be left out together."""

    def run_trial(of: Schedule) -> Violation | None:
        kept = set(numbers(of))
        if 9 in kept and 4 not in kept:
            return Violation("I9", 1.0, PodUID("u"), "another invariant")
        return Violation("I1", of.actions[-1].at, PodUID("u"), "ours") if 20 in kept else None

    assert numbers(shrunk(schedule(20), run_trial).schedule) == [20]


def test_a_schedule_that_violates_another_invariant_does_not_count() -> None:
    def run_trial(of: Schedule) -> Violation | None:
        return Violation("I1" if len(of.actions) > 5 else "I2", 4 * HOUR, PodUID("u"), "")

    result = shrunk(schedule(20), run_trial)
    assert (len(result.schedule.actions), result.violation.invariant) == (6, "I1")


def test_nothing_after_the_failure_is_kept_or_tried() -> None:
    run_trial = FakeRun(30)  # of 100, so in the second of four segments
    result = shrunk(schedule(100), run_trial)
    assert result.schedule.segments == SEGMENTS[:2]
    assert all(max(tried, default=0) <= 30 for tried in run_trial.trials[1:])


def test_a_violation_at_the_end_of_a_segment_does_not_keep_the_next_segment() -> None:
    result = shrunk(schedule(100), FakeRun(20, soonest=HOUR))
    assert (result.violation.at, result.schedule.segments) == (HOUR, SEGMENTS[:1])


def test_earlier_segments_are_tried_first_and_faults_before_workload() -> None:
    run_trial = FakeRun(80, 81)
    shrunk(schedule(100), run_trial)
    everything, without_earlier, without_faults = run_trial.trials[:3]
    assert everything == tuple(range(1, 101))
    assert without_earlier == tuple(range(76, 82))
    assert without_faults == (76, 77, 79, 80)  # 78 and 81 are faults


def test_few_necessary_actions_among_many_are_found_in_few_runs() -> None:
    result = shrunk(schedule(1024), FakeRun(200, 700, 1000))
    assert numbers(result.schedule) == [200, 700, 1000]
    assert result.runs < 3 * 4 * ceil(log2(1024))


def test_the_best_result_is_returned_when_the_time_is_up() -> None:
    of, run_trial = schedule(100), FakeRun(50, 90)
    violation, runs = run_trial(of), count()
    assert violation is not None
    result = shrink(of, violation, run_trial, is_fault=is_fault, time_is_up=lambda: next(runs) >= 6)
    assert (result.runs, result.minimal) == (6, False)
    assert {50, 90} <= set(numbers(result.schedule)) < set(numbers(of))


def test_ctrl_c_returns_the_best_result() -> None:
    of, run_trial, runs = schedule(100), FakeRun(50, 90), count()

    def impatient(candidate: Schedule) -> Violation | None:
        if next(runs) == 6:
            raise KeyboardInterrupt
        return run_trial(candidate)

    violation = run_trial(of)
    assert violation is not None
    result = shrink(of, violation, impatient, is_fault=is_fault)
    assert (result.runs, result.minimal) == (6, False)
    assert {50, 90} <= set(numbers(result.schedule))


def test_each_trial_reports_the_best_result() -> None:
    of, run_trial = schedule(100), FakeRun(50)
    violation = run_trial(of)
    assert violation is not None
    reports: list[Shrunk] = []
    result = shrink(of, violation, run_trial, is_fault=is_fault, report=reports.append)
    assert [each.runs for each in reports] == list(range(1, result.runs + 1))
    sizes = [len(each.schedule.actions) for each in reports]
    assert sizes == sorted(sizes, reverse=True)


def test_the_order_of_the_trials_is_always_the_same() -> None:
    first, second = FakeRun(5, 41, 77), FakeRun(5, 41, 77)
    shrunk(schedule(100), first)
    shrunk(schedule(100), second)
    assert first.trials == second.trials


def test_a_failure_without_actions_shrinks_to_none() -> None:
    result = shrunk(schedule(10), lambda of: Violation("I6", HOUR, PodUID(""), "always"))
    assert (result.schedule.actions, result.minimal) == ((), True)
