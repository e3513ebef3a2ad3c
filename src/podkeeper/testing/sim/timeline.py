"""Timelines: what of a trace concerns one pod, and how to show a long one.

All pure: lines in, lines out. A pod is rarely alone: a static pod has its mirror, a deleted one a successor
of the same name; whoever shares a full name is shown on one timeline.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from podkeeper.testing.sim.trace import Line

FIRST, LAST, BETWEEN = 12, 60, 24  # how many lines of a long timeline are shown
BEFORE_SECONDS = 60.0  # so long before a pod came the node is shown

_NAMED = re.compile(r"(?:API: pod|is told \S+) (\S+_\S+)")  # as the scribe writes it
_LANDMARKS = ("====", "****", "!!!!")


def concerned(lines: Iterable[Line], whom: str) -> list[Line]:
    """What concerned a pod (its name or UID), whoever bore its name, and the node meanwhile; nobody: the node alone."""
    lines = list(lines)
    names = {(line.uid, named[1]) for line in lines if line.uid and (named := _NAMED.search(line.text))}
    wanted = sorted({name for uid, name in names if whom and whom in (uid, *_spellings(name))})
    uids = {whom, *(uid for uid, name in names if name in wanted)}
    about = re.compile("|".join(rf"\.\w+ {re.escape(name.partition('_')[0])}(?![^\s:])" for name in wanted) or "$^")
    found = [line for line in lines if (line.uid in uids if line.uid else _is_of_node(line) or about.search(line.text))]
    came = next((line.at for line in found if line.uid), 0.0)
    return [line for line in found if line.at >= came - BEFORE_SECONDS]


def _spellings(full_name: str) -> tuple[str, ...]:
    name, _, namespace = full_name.partition("_")
    return full_name, name, f"{namespace}/{name}"


def _is_of_node(line: Line) -> bool:
    return line.text.startswith(_LANDMARKS) or " is told " in line.text


def elided(lines: Sequence[Line]) -> Iterator[str]:
    """A timeline as text; of the middle of a long one only the landmarks: deaths, acts, troubles."""
    shown = set(range(len(lines)))
    if len(lines) > FIRST + LAST + BETWEEN:
        middle = range(FIRST, len(lines) - LAST)
        landmarks = [index for index in middle if lines[index].text.startswith(_LANDMARKS)]
        shown -= set(middle)
        shown |= set(landmarks[-BETWEEN:])
    left_out = 0
    for index, line in enumerate(lines):
        if index in shown:
            if left_out:
                yield f"{'...':>12}  {left_out} lines left out"
            left_out = 0
            yield str(line)
        else:
            left_out += 1
