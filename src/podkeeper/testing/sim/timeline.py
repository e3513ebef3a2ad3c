"""Timelines: the part of a trace that concerns one pod, shortened if it is long.

Pure functions: lines in, lines out. All pods with the same full name share a timeline: a static pod and its mirror pod,
a deleted pod and its successor.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from podkeeper.testing.sim.trace import TraceLine

FIRST, LAST, BETWEEN = 12, 60, 24  # the number of lines that are printed of a long timeline
BEFORE_SECONDS = 60.0  # how long before the pod's creation the lines of the node begin

_NAMED = re.compile(r"(?:API: pod|receives \S+) (\S+_\S+)")  # in the format of `trace_writer`
_LANDMARKS = ("====", "****", "!!!!")


def pod_lines(lines: Iterable[TraceLine], pod: str) -> list[TraceLine]:
    """Return the lines of a pod (name or UID), of all pods with its name, and of the node. Empty: only the node."""
    lines = list(lines)
    names = {(line.uid, named[1]) for line in lines if line.uid and (named := _NAMED.search(line.text))}
    wanted = sorted({name for uid, name in names if pod and pod in (uid, *_name_forms(name))})
    uids = {pod, *(uid for uid, name in names if name in wanted)}
    about = re.compile("|".join(rf"\.\w+ {re.escape(name.partition('_')[0])}(?![^\s:])" for name in wanted) or "$^")
    found = [line for line in lines if (line.uid in uids if line.uid else _is_of_node(line) or about.search(line.text))]
    came = next((line.at for line in found if line.uid), 0.0)
    return [line for line in found if line.at >= came - BEFORE_SECONDS]


def _name_forms(full_name: str) -> tuple[str, ...]:
    name, _, namespace = full_name.partition("_")
    return full_name, name, f"{namespace}/{name}"


def _is_of_node(line: TraceLine) -> bool:
    return line.text.startswith(_LANDMARKS) or " receives " in line.text


def shortened(lines: Sequence[TraceLine]) -> Iterator[str]:
    """Format a timeline. If it is long, print only crashes, actions and faults of its middle part."""
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
