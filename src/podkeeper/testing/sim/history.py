"""A history: what happens to a node and when, as data, drawn from a seed before anything is played.

Because it is data it can be shown, cut short and played again: `only` keeps some acts of it, by number, and what the
others drew is not disturbed (each deed brings the seed of its own chance with it). A history is made of chapters: so
long things happen, pods come and go and trouble is made; then comes calm, in which nothing new happens, all trouble
ends and the node must come to rest within a bounded time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from podkeeper.testing.sim.world import World


class Deed(Protocol):
    """Something done to the node, by its users or by misfortune. A frozen value; `str` says it in a few words."""

    @property
    def kind(self) -> str:
        """What `--workload` and `--faults` choose by."""

    def play(self, world: World) -> None:
        """Do it now. What ends later ends by itself (`World.trouble`); a target that is gone is no error."""


@dataclass(frozen=True, slots=True)
class Act:
    """A deed at its moment; the number stays its own when others are left out."""

    number: int
    at: float
    deed: Deed


@dataclass(frozen=True, slots=True)
class Chapter:
    """A stretch of time that ends in calm; all in virtual seconds since the beginning."""

    begins: float
    calm_from: float
    ends: float  # by then the node must have come to rest


@dataclass(frozen=True, slots=True)
class History:
    """All that happens in one play."""

    seed: int
    chapters: tuple[Chapter, ...]
    acts: tuple[Act, ...]

    def only(self, numbers: Collection[int]) -> "History":
        """The same with some of its acts left out."""
        return replace(self, acts=tuple(act for act in self.acts if act.number in numbers))

    def until(self, at: float) -> "History":
        """The same, cut short after the chapter in which a moment lies."""
        chapters = tuple(chapter for chapter in self.chapters if chapter.begins <= at)
        return replace(self, chapters=chapters, acts=tuple(act for act in self.acts if act.at < chapters[-1].ends))


def numbered(deeds: Iterable[tuple[float, Deed]]) -> tuple[Act, ...]:
    """Deeds in the order of their moments, numbered from 1."""
    return tuple(
        Act(number, at, deed) for number, (at, deed) in enumerate(sorted(deeds, key=lambda timed: timed[0]), start=1)
    )


def chapters_of(hours: float, *, calm_seconds: float = 900.0) -> tuple[Chapter, ...]:
    """Chapters of an hour each, the last one perhaps shorter; each has at least as much of things as of calm."""
    chapters = []
    begins, end = 0.0, hours * 3600.0
    while begins < end - 1.0:
        ends = end if end - begins < 5400.0 else begins + 3600.0
        calm = min(calm_seconds, (ends - begins) / 2)
        chapters.append(Chapter(begins, ends - calm, ends))
        begins = ends
    return tuple(chapters)
