"""Format the timeline of a pod: one line per step, with the time between steps.

Syncs are omitted, simultaneous entries share a line, and repeated entries are counted. If several pods had the same
name in succession, they are numbered.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podkeeper.engine.history import MOVED, NEXT_PASS, UNKNOWN, Entry, Explanation

TROUBLE: Final = "fault:"
"""The prefix of entries about faults."""

_PASSES: Final = frozenset({"pass begun", "pass ended", NEXT_PASS})
_TERSE: Final = frozenset({"Pulling", "Pulled", "Created", "Started", "BackOff"})  # shown without their messages
_ARROW: Final = " -> "
_TOGETHER: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Noted:
    entry: Entry
    pod_number: int  # 1: the first pod with this name; 0: an entry about the node


def clock_face(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def span(length: timedelta) -> str:
    """Format a duration with its two largest units: 8s, 2m40s, 1h05m."""
    seconds = max(0, round(length.total_seconds()))
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


@dataclass(frozen=True, slots=True)
class _Step:
    """Entries of about the same time, and how often they were repeated."""

    at: datetime
    words: str
    pod_number: int
    times: int = 1
    last_at: datetime | None = None


def timeline(name: str, noted: Sequence[Noted], explanation: Explanation, *, plain: bool) -> RenderableType:
    passes = sum(each.entry.times for each in noted if each.entry.what == "pass begun")
    facts = [] if explanation.state == UNKNOWN else [_state(explanation)]
    facts += [f"syncs: {passes}"] if passes else []
    head = Text(f"timeline of {name}", "bold").append(": " + "; ".join(facts) if facts else "", "not bold")
    several = len({each.pod_number for each in noted} - {0}) > 1
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right", style="cyan")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before: datetime | None = None
    for step in _steps(noted):
        gap = "" if before is None or step.at - before < _TOGETHER else f"+{span(step.at - before)}"
        table.add_row(clock_face(step.at), gap, _mark(step, several, plain=plain), _told(step))
        before = step.at
    return Group(head, table)


def _state(explanation: Explanation) -> str:
    since = "" if explanation.since is None else f" for {span(explanation.asked_at - explanation.since)}"
    retry = explanation.next_retry
    then = "" if retry is None else f", next sync in {span(retry - explanation.asked_at)}"
    return f"{explanation.state}{since}{then}"


def _mark(step: _Step, several: bool, *, plain: bool) -> Text:
    if not step.pod_number:
        return Text(">" if plain else "▶", "bold red" if TROUBLE in step.words else "bold")
    dot = Text("*" if plain else "●", "green")
    return dot.append(f" #{step.pod_number}") if several else dot


def _told(step: _Step) -> Text:
    return Text(step.words + _again(step.times, step.at, step.last_at), "" if step.pod_number else "italic")


def _steps(noted: Iterable[Noted]) -> list[_Step]:
    """Omit syncs, join simultaneous entries, and count repeated ones."""
    steps: list[_Step] = []
    for group in _groups(each for each in noted if each.entry.what not in _PASSES):
        at, pod_number = group[0].entry.at, group[0].pod_number
        words = "; ".join(_chained(dict.fromkeys(_words(each.entry) for each in group)))
        if steps and (steps[-1].words, steps[-1].pod_number) == (words, pod_number):
            steps[-1] = replace(steps[-1], times=steps[-1].times + 1, last_at=at)
        else:
            steps.append(_Step(at, words, pod_number))
    return steps


def _groups(noted: Iterable[Noted]) -> Iterator[list[Noted]]:
    group: list[Noted] = []
    for each in noted:
        is_near = group and each.entry.at - group[0].entry.at < _TOGETHER
        if group and not (is_near and each.pod_number and each.pod_number == group[0].pod_number):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _chained(words: Iterable[str]) -> list[str]:
    """Join consecutive state changes: `a -> b`, `b -> c` becomes `a -> b -> c`."""
    told: list[str] = []
    for each in words:
        start, arrow, rest = each.partition(_ARROW)
        if arrow and told and told[-1].endswith(_ARROW + start):
            told[-1] += arrow + rest
        else:
            told.append(each)
    return told


def _words(entry: Entry) -> str:
    return _what(entry) + _again(entry.times, entry.at, entry.last_at)


def _what(entry: Entry) -> str:
    detail = " ".join(entry.detail.split())  # the output of a probe may have several lines
    if not detail or entry.what in _TERSE:
        return entry.what
    if entry.what == MOVED:
        return detail
    return f"{entry.what}, {detail}" if entry.what.startswith("phase ") else f"{entry.what}: {detail}"


def _again(times: int, at: datetime, last_at: datetime | None) -> str:
    """Format the number of repetitions, unless all of them were within a second."""
    return "" if last_at is None or last_at - at < _TOGETHER else f" ({times} times, last {clock_face(last_at)})"
