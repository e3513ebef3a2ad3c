"""Drawing: pictures, and the hour of every pod; for a terminal, or as plain lines.

Everything is a rich renderable; what differs between the two are boxes, glyphs and colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podkeeper.app.demo.recorder import Look, Picture, Row
from podkeeper.app.demo.story import Act
from podkeeper.app.timeline import TROUBLE, clock_face, span
from podkeeper.testing.virtual_time import BEGINNING


@dataclass(frozen=True, slots=True)
class _Sign:
    """How a look is shown."""

    glyph: str
    plain: str
    style: str
    meaning: str


_SIGNS: Final = {
    Look.WAITING: _Sign("░", "-", "yellow", "pending"),
    Look.RUNNING: _Sign("▒", "+", "cyan", "running, not ready"),
    Look.READY: _Sign("█", "#", "green", "ready"),
    Look.ENDING: _Sign("▼", "v", "magenta", "terminating"),
    Look.SUCCEEDED: _Sign("✓", "S", "blue", "succeeded"),
    Look.FAILED: _Sign("✗", "F", "red", "failed"),
    Look.GONE: _Sign("·", ".", "dim", "gone"),
}
_ABSENT: Final = _Sign(" ", " ", "", "not yet there")


def story_clock(at_seconds: float) -> str:
    """A moment of the story, as its virtual clock shows it."""
    return clock_face(BEGINNING + timedelta(seconds=at_seconds))


def news_line(act: Act) -> Text:
    """What happened, in a line."""
    style = "bold red" if TROUBLE in act.news else ""
    return Text.assemble((story_clock(act.at_seconds), "dim"), "  ", (act.news, style))


def node_table(picture: Picture, *, plain: bool, fold: bool) -> Table:
    """The node at one moment; what does not fit is folded, or cut."""
    table = Table(
        title=f"the node at {story_clock(picture.at_seconds)}",
        title_justify="left",
        title_style="bold",
        box=None if plain else box.SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    rows = [*map(_cells, picture.rows), _visitors(picture), *map(_trouble, picture.troubles)]
    for index, heading in enumerate(("POD", "PHASE", "READY", "RESTARTS", "AGE")):
        # Told how wide it must be, or rich would rather squeeze these than the last one.
        table.add_column(heading, no_wrap=True, width=max(len(heading), *(len(row[index]) for row in rows)))
    table.add_column("WHY, OR WHAT IT WAITS FOR", ratio=1, no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


_Cells = tuple[Text, Text, Text, Text, Text, Text]


def _cells(row: Row) -> _Cells:
    is_gone = row.look is Look.GONE
    return (
        Text(row.name),
        Text(row.phase, _SIGNS.get(row.look, _ABSENT).style),
        Text(row.ready),
        Text("" if is_gone else str(row.restarts), "yellow" if row.restarts else ""),
        Text("" if row.age is None else span(row.age)),
        Text(row.why, "dim" if is_gone else ""),
    )


def _visitors(picture: Picture) -> _Cells:
    return Text("visitors", "dim"), Text(f"{picture.visitors} here", "dim"), Text(), Text(), Text(), Text()


def _trouble(trouble: str) -> _Cells:
    return Text("the agent", "bold red"), Text(), Text(), Text(), Text(), Text(trouble, "bold red")


def lives(pictures: Sequence[Picture], *, plain: bool) -> RenderableType:
    """Every pod's life at a glance: one sign per picture."""

    def drawn(sign: _Sign) -> tuple[str, str]:
        return (sign.plain if plain else sign.glyph), sign.style

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for name in (row.name for row in pictures[-1].rows):
        signs = (_SIGNS.get(picture.looks[name], _ABSENT) for picture in pictures)
        table.add_row(name, Text.assemble(*map(drawn, signs)))
    legend = Text("  ").join(Text.assemble(drawn(sign), (f" {sign.meaning}", "dim")) for sign in _SIGNS.values())
    each = span(timedelta(seconds=pictures[0].at_seconds))
    return Group(Text.assemble(("the whole time, pod by pod", "bold"), f": one sign is {each}"), table, legend)
