"""Format the recorded tables and the overview of all pods.

Everything is a rich renderable. Terminal and plain text differ in boxes, glyphs and colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podkeeper.app.demo.recorder import Row, RowState, Snapshot
from podkeeper.app.demo.story import StoryEvent
from podkeeper.app.timeline import TROUBLE, clock_face, span
from podkeeper.testing.virtual_time import BEGINNING


@dataclass(frozen=True, slots=True)
class _Sign:
    """The sign of a `RowState`."""

    glyph: str
    plain: str
    style: str
    meaning: str


_SIGNS: Final = {
    RowState.PENDING: _Sign("░", "-", "yellow", "pending"),
    RowState.RUNNING: _Sign("▒", "+", "cyan", "running, not ready"),
    RowState.READY: _Sign("█", "#", "green", "ready"),
    RowState.TERMINATING: _Sign("▼", "v", "magenta", "terminating"),
    RowState.SUCCEEDED: _Sign("✓", "S", "blue", "succeeded"),
    RowState.FAILED: _Sign("✗", "F", "red", "failed"),
    RowState.REMOVED: _Sign("·", ".", "dim", "removed"),
}
_NOT_CREATED: Final = _Sign(" ", " ", "", "not created yet")


def story_clock(at_seconds: float) -> str:
    """Format a time of the story's virtual clock."""
    return clock_face(BEGINNING + timedelta(seconds=at_seconds))


def event_line(event: StoryEvent) -> Text:
    style = "bold red" if TROUBLE in event.text else ""
    return Text.assemble((story_clock(event.at_seconds), "dim"), "  ", (event.text, style))


def node_table(snapshot: Snapshot, *, plain: bool, fold: bool) -> Table:
    """Format the pods at one time. Long reasons are folded or cut."""
    table = Table(
        title=f"node at {story_clock(snapshot.at_seconds)}",
        title_justify="left",
        title_style="bold",
        box=None if plain else box.SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    rows = [*map(_cells, snapshot.rows), _visitors(snapshot), *map(_problem_cells, snapshot.problems)]
    for index, heading in enumerate(("POD", "PHASE", "READY", "RESTARTS", "AGE")):
        # Set the widths, because rich would otherwise shrink these columns instead of the last one.
        table.add_column(heading, no_wrap=True, width=max(len(heading), *(len(row[index]) for row in rows)))
    table.add_column("WHY", ratio=1, no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


_Cells = tuple[Text, Text, Text, Text, Text, Text]


def _cells(row: Row) -> _Cells:
    is_removed = row.state is RowState.REMOVED
    return (
        Text(row.name),
        Text(row.phase, _SIGNS.get(row.state, _NOT_CREATED).style),
        Text(row.ready),
        Text("" if is_removed else str(row.restarts), "yellow" if row.restarts else ""),
        Text("" if row.age is None else span(row.age)),
        Text(row.why, "dim" if is_removed else ""),
    )


def _visitors(snapshot: Snapshot) -> _Cells:
    return Text("visitors", "dim"), Text(f"{snapshot.visitors} pods", "dim"), Text(), Text(), Text(), Text()


def _problem_cells(problem: str) -> _Cells:
    return Text("agent", "bold red"), Text(), Text(), Text(), Text(), Text(problem, "bold red")


def overview(snapshots: Sequence[Snapshot], *, plain: bool) -> RenderableType:
    """Format the overview: one line per pod, one sign per recorded table."""

    def drawn(sign: _Sign) -> tuple[str, str]:
        return (sign.plain if plain else sign.glyph), sign.style

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for name in (row.name for row in snapshots[-1].rows):
        signs = (_SIGNS.get(snapshot.states[name], _NOT_CREATED) for snapshot in snapshots)
        table.add_row(name, Text.assemble(*map(drawn, signs)))
    legend = Text("  ").join(Text.assemble(drawn(sign), (f" {sign.meaning}", "dim")) for sign in _SIGNS.values())
    each = span(timedelta(seconds=snapshots[0].at_seconds))
    return Group(Text.assemble(("overview of all pods", "bold"), f": one sign is {each}"), table, legend)
