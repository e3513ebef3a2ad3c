"""Shrink a failing schedule: leave out actions that are not needed.

The same invariant must still be violated.

    cut after the failure -> drop the segments before it -> drop faults -> drop workload -> drop one by one

This is delta debugging: first large groups, then smaller ones, early actions before late ones, faults before workload.
`run_trial` runs a schedule, and `time_is_up` reads the clock. With enough time the result is minimal: without any one
of its actions, the invariant holds. The order of the trials is always the same.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import nextafter

from podkeeper.testing.sim.schedule import Schedule, TimedAction
from podkeeper.testing.sim.world import Violation

RunTrial = Callable[[Schedule], Violation | None]
"""Runs a schedule. Returns the first violation, if any. Actions after it have no influence."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest schedule found that violates the invariant."""

    schedule: Schedule
    violation: Violation
    runs: int
    minimal: bool  # all actions are necessary; False: the time was up


def shrink(
    schedule: Schedule,
    violation: Violation,
    run_trial: RunTrial,
    *,
    is_fault: Callable[[TimedAction], bool],
    time_is_up: Callable[[], bool] = lambda: False,
    report: Callable[[Shrunk], None] = lambda shrunk: None,
) -> Shrunk:
    """Find a smaller schedule that violates the same invariant. Ctrl-C returns the best one so far.

    `report` is called after each trial.
    """
    shrinking = _Shrinking(schedule, violation, run_trial, time_is_up, report)
    try:
        shrinking.run(is_fault)
    except (_TimeIsUp, KeyboardInterrupt):
        return shrinking.best(minimal=False)
    return shrinking.best(minimal=True)


class _TimeIsUp(Exception):
    """The time limit was reached."""


class _Shrinking:
    def __init__(
        self,
        schedule: Schedule,
        violation: Violation,
        run_trial: RunTrial,
        time_is_up: Callable[[], bool],
        report: Callable[[Shrunk], None],
    ) -> None:
        self._run_trial = run_trial
        self._time_is_up = time_is_up
        self._report = report
        self._runs = 0
        self._rejected: set[frozenset[int]] = set()
        self._keep(schedule, violation)

    def best(self, *, minimal: bool) -> Shrunk:
        """Return the best result so far."""
        return Shrunk(self._schedule, self._violation, self._runs, minimal)

    def run(self, is_fault: Callable[[TimedAction], bool]) -> None:
        """Try until no action can be left out."""
        # Earlier segments ended with a check that the node had settled, so they are usually not needed.
        began = self._schedule.segments[-1].begins  # of the segment that failed
        if not self._try_without([timed for timed in self._schedule.actions if timed.at < began]):
            self._try_without([timed for timed in self._schedule.actions if timed.at < began and is_fault(timed)])
        self._drop([timed for timed in self._schedule.actions if is_fault(timed)])
        self._drop([timed for timed in self._schedule.actions if not is_fault(timed)])
        while sum(self._try_without([timed]) for timed in self._schedule.actions):
            pass  # an action may become unnecessary when another one is left out

    def _drop(self, actions: Sequence[TimedAction]) -> None:
        """Leave out as many of these actions as possible: all, then halves, quarters and so on."""
        size = len(actions)
        while size:
            for first in range(0, len(actions), size):
                self._try_without(actions[first : first + size])
            still_there = {timed.number for timed in self._schedule.actions}
            actions = [timed for timed in actions if timed.number in still_there]
            size = min(size // 2, len(actions))

    def _try_without(self, actions: Collection[TimedAction]) -> bool:
        """Leave out some actions if the schedule still fails. Return false if it does not or they are gone already."""
        gone = {timed.number for timed in actions}
        kept = frozenset(timed.number for timed in self._schedule.actions) - gone
        # A trial takes seconds, and the same set can be reached in several ways.
        if len(kept) == len(self._schedule.actions) or kept in self._rejected:
            return False
        if self._time_is_up():
            raise _TimeIsUp
        candidate = self._schedule.only(kept)
        found = self._run_trial(candidate)
        self._runs += 1
        # Another invariant may be another bug.
        still_fails = found is not None and found.invariant == self._violation.invariant
        if found is not None and still_fails:
            self._keep(candidate, found)
        else:
            self._rejected.add(kept)
        self._report(self.best(minimal=False))
        return still_fails

    def _keep(self, schedule: Schedule, violation: Violation) -> None:
        """Keep a failing schedule, up to the failure."""
        self._violation = violation
        # A violation at the very end of a segment does not belong to the next one.
        cut = schedule.until(max(0.0, nextafter(violation.at, 0.0)))
        self._schedule = replace(cut, actions=tuple(timed for timed in cut.actions if timed.at <= violation.at))
