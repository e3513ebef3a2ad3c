"""Format the timeline of a pod: one line per step, with the time between steps.

`app.history_words` formats the events. Syncs are omitted, simultaneous entries share a line, and repeated
entries are counted. If several pods had the same name in succession, they are numbered.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podkeeper.app.history_words import (
    ARROW,
    MOVED,
    NEXT_SYNC,
    SYNC_ENDED,
    SYNC_STARTED,
    PrintedEntry,
    PrintedExplanation,
)
from podkeeper.engine.history import Explanation
from podkeeper.model.history import WorkerState

TROUBLE: Final = "fault:"
"""The prefix of entries about faults."""

_SYNCS: Final = frozenset({SYNC_STARTED, SYNC_ENDED, NEXT_SYNC})
_TERSE: Final = frozenset({"Pulling", "Pulled", "Created", "Started", "BackOff"})  # shown without their messages
_TOGETHER: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Noted:
    entry: PrintedEntry
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
class _Row:
    """Entries of about the same time, and how often they were repeated."""

    at: datetime
    words: str
    pod_number: int
    times: int = 1
    last_at: datetime | None = None


def timeline(
    name: str, noted: Sequence[Noted], explanation: Explanation | PrintedExplanation, *, plain: bool
) -> RenderableType:
    syncs = sum(each.entry.times for each in noted if each.entry.what == SYNC_STARTED)
    facts = [] if str(explanation.state) == WorkerState.UNKNOWN else [_state(explanation)]
    facts += [f"syncs: {syncs}"] if syncs else []
    head = Text(f"timeline of {name}", "bold").append(": " + "; ".join(facts) if facts else "", "not bold")
    several = len({each.pod_number for each in noted} - {0}) > 1
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right", style="cyan")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before: datetime | None = None
    for row in _rows(noted):
        gap = "" if before is None or row.at - before < _TOGETHER else f"+{span(row.at - before)}"
        table.add_row(clock_face(row.at), gap, _mark(row, several, plain=plain), _text(row))
        before = row.at
    return Group(head, table)


def _state(explanation: Explanation | PrintedExplanation) -> str:
    since = "" if explanation.since is None else f" for {span(explanation.asked_at - explanation.since)}"
    retry = explanation.next_retry
    then = "" if retry is None else f", next sync in {span(retry - explanation.asked_at)}"
    return f"{explanation.state}{since}{then}"


def _mark(row: _Row, several: bool, *, plain: bool) -> Text:
    if not row.pod_number:
        return Text(">" if plain else "▶", "bold red" if TROUBLE in row.words else "bold")
    dot = Text("*" if plain else "●", "green")
    return dot.append(f" #{row.pod_number}") if several else dot


def _text(row: _Row) -> Text:
    return Text(row.words + _again(row.times, row.at, row.last_at), "" if row.pod_number else "italic")


def _rows(noted: Iterable[Noted]) -> list[_Row]:
    """Omit syncs, join simultaneous entries, and count repeated ones."""
    rows: list[_Row] = []
    for group in _groups(each for each in noted if each.entry.what not in _SYNCS):
        at, pod_number = group[0].entry.at, group[0].pod_number
        words = "; ".join(_chained(dict.fromkeys(_words(each.entry) for each in group)))
        if rows and (rows[-1].words, rows[-1].pod_number) == (words, pod_number):
            rows[-1] = replace(rows[-1], times=rows[-1].times + 1, last_at=at)
        else:
            rows.append(_Row(at, words, pod_number))
    return rows


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
    chained: list[str] = []
    for each in words:
        start, arrow, rest = each.partition(ARROW)
        if arrow and chained and chained[-1].endswith(ARROW + start):
            chained[-1] += arrow + rest
        else:
            chained.append(each)
    return chained


def _words(entry: PrintedEntry) -> str:
    return _what(entry) + _again(entry.times, entry.at, entry.last_at)


def _what(entry: PrintedEntry) -> str:
    detail = " ".join(entry.detail.split())  # the output of a probe may have several lines
    if not detail or entry.what in _TERSE:
        return entry.what
    if entry.what == MOVED:
        return detail
    return f"{entry.what}, {detail}" if entry.what.startswith("phase ") else f"{entry.what}: {detail}"


def _again(times: int, at: datetime, last_at: datetime | None) -> str:
    """Format the number of repetitions, unless all of them were within a second."""
    return "" if last_at is None or last_at - at < _TOGETHER else f" ({times} times, last {clock_face(last_at)})"
