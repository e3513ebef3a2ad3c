"""Making a failing history smaller: acts are left out as long as the same promise is still broken.

    cut after the failure -> drop what came before its chapter -> drop faults -> drop workload -> drop one by one

This is delta debugging: first large pieces, then ever smaller ones, early acts before late ones, faults before
workload. Nothing is played here, `judge` does that; nor is a clock read, `time_is_up` does that. Given enough time the
result is minimal: without any one of its acts that promise holds. The order of the trials is always the same.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import nextafter

from podkeeper.testing.sim.history import Act, History
from podkeeper.testing.sim.world import Violation

Judge = Callable[[History], Violation | None]
"""Plays a history: what was broken first, if anything. What lies after that moment cannot have mattered."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest history found that breaks the promise."""

    history: History
    violation: Violation
    plays: int
    minimal: bool  # no single act can be spared; False: time was up first


def shrink(
    history: History,
    violation: Violation,
    judge: Judge,
    *,
    is_fault: Callable[[Act], bool],
    time_is_up: Callable[[], bool] = lambda: False,
    tell: Callable[[Shrunk], None] = lambda shrunk: None,
) -> Shrunk:
    """Find a smaller history that breaks the same promise; `tell` hears of every trial. Ctrl-C: the best so far."""
    shrinking = _Shrinking(history, violation, judge, time_is_up, tell)
    try:
        shrinking.run(is_fault)
    except (_TimeIsUp, KeyboardInterrupt):
        return shrinking.so_far(minimal=False)
    return shrinking.so_far(minimal=True)


class _TimeIsUp(Exception):
    """Enough was tried."""


class _Shrinking:
    def __init__(
        self,
        history: History,
        violation: Violation,
        judge: Judge,
        time_is_up: Callable[[], bool],
        tell: Callable[[Shrunk], None],
    ) -> None:
        self._judge = judge
        self._time_is_up = time_is_up
        self._tell = tell
        self._plays = 0
        self._in_vain: set[frozenset[int]] = set()
        self._keep(history, violation)

    def so_far(self, *, minimal: bool) -> Shrunk:
        """The best up to now."""
        return Shrunk(self._history, self._violation, self._plays, minimal)

    def run(self, is_fault: Callable[[Act], bool]) -> None:
        """Try until nothing can be left out any more."""
        began = self._history.chapters[-1].begins  # of the chapter in which it failed
        if not self._spare([act for act in self._history.acts if act.at < began]):
            self._spare([act for act in self._history.acts if act.at < began and is_fault(act)])
        self._drop([act for act in self._history.acts if is_fault(act)])
        self._drop([act for act in self._history.acts if not is_fault(act)])
        while sum(self._spare([act]) for act in self._history.acts):
            pass  # what one act was needed for may have gone with another

    def _drop(self, acts: Sequence[Act]) -> None:
        """Leave out what can be spared of some acts: all of them, halves, quarters, and so on."""
        size = len(acts)
        while size:
            for first in range(0, len(acts), size):
                self._spare(acts[first : first + size])
            still_there = {act.number for act in self._history.acts}
            acts = [act for act in acts if act.number in still_there]
            size = min(size // 2, len(acts))

    def _spare(self, acts: Collection[Act]) -> bool:
        """Leave out some acts if it still fails without them; false: it does not, or they are gone already."""
        gone = {act.number for act in acts}
        kept = frozenset(act.number for act in self._history.acts) - gone
        if len(kept) == len(self._history.acts) or kept in self._in_vain:
            return False
        if self._time_is_up():
            raise _TimeIsUp
        candidate = self._history.only(kept)
        found = self._judge(candidate)
        self._plays += 1
        still_fails = found is not None and found.invariant == self._violation.invariant
        if found is not None and still_fails:
            self._keep(candidate, found)
        else:
            self._in_vain.add(kept)
        self._tell(self.so_far(minimal=False))
        return still_fails

    def _keep(self, history: History, violation: Violation) -> None:
        """Keep a history that fails, up to the failure: what was to come after it never happened."""
        self._violation = violation
        # A promise broken at the very end of a chapter is not of the next one.
        cut = history.until(max(0.0, nextafter(violation.at, 0.0)))
        self._history = replace(cut, acts=tuple(act for act in cut.acts if act.at <= violation.at))
