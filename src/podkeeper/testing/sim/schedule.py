"""Schedule of a run: all actions and faults with their times, as data.

A schedule is drawn from a seed before the run. Because it is data, it can be printed, cut short and run again. `only`
keeps some actions by number. This does not change the others, because each action has its own random seed.

A schedule consists of segments. In each segment, pods are created and deleted and faults happen, until a calm phase
begins. Then nothing new happens, all faults end, and the node must settle within a bounded time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from podkeeper.testing.sim.world import World


class Action(Protocol):
    """Something that users or faults do to the node. A frozen value with a short `str`."""

    @property
    def kind(self) -> str:
        """The name for `--workload` or `--faults`."""

    def run(self, world: World) -> None:
        """Run it now. Effects with a duration end by themselves (`World.begin_fault`). A missing target is no error."""


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action at a time. It keeps its number when others are left out."""

    number: int
    at: float
    action: Action


@dataclass(frozen=True, slots=True)
class Segment:
    """A period that ends with a calm phase. All times are virtual seconds since the start."""

    begins: float
    calm_from: float
    ends: float  # the node must have settled by then


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that happens in one run."""

    seed: int
    segments: tuple[Segment, ...]
    actions: tuple[TimedAction, ...]

    def only(self, numbers: Collection[int]) -> "Schedule":
        """Return a copy with only some of the actions."""
        return replace(self, actions=tuple(timed for timed in self.actions if timed.number in numbers))

    def until(self, at: float) -> "Schedule":
        """Return a copy that is cut after the segment that contains a time."""
        segments = tuple(segment for segment in self.segments if segment.begins <= at)
        return replace(
            self, segments=segments, actions=tuple(timed for timed in self.actions if timed.at < segments[-1].ends)
        )


def numbered(actions: Iterable[tuple[float, Action]]) -> tuple[TimedAction, ...]:
    """Sort actions by time and number them from 1."""
    return tuple(
        TimedAction(number, at, action)
        for number, (at, action) in enumerate(sorted(actions, key=lambda timed: timed[0]), start=1)
    )


def segments_of(hours: float, *, calm_seconds: float = 900.0) -> tuple[Segment, ...]:
    """Return segments of an hour each. The last one may be shorter. Calm takes at most half of a segment."""
    segments = []
    begins, end = 0.0, hours * 3600.0
    while begins < end - 1.0:
        # The last segment also takes a rest of less than half an hour.
        ends = end if end - begins < 5400.0 else begins + 3600.0
        calm = min(calm_seconds, (ends - begins) / 2)
        segments.append(Segment(begins, ends - calm, ends))
        begins = ends
    return tuple(segments)
