"""Output of `podkeeper run` on a terminal: a table of the pods that is redrawn after changes.

Only this module of `run` imports rich, so output to a file or pipe does not load it. The table is redrawn at most five
times per second after changes, and once per second for the ages (less often if it is long).

If the terminal is too small, the table omits in this order: ages, restarts, ready counts, ends of names, pods.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from podkeeper.app.cli.run_screen import somebody_may_read, still_stopping
from podkeeper.app.local.board import Board, Shown
from podkeeper.app.local.gate import Since
from podkeeper.app.local.printing import born_at, human_duration, is_ready, shown_name, summary_of
from podkeeper.model.errors import Problem
from podkeeper.model.messages import PodUID

_AT_MOST_EVERY_SECONDS = 0.2
_AGES_EVERY_SECONDS = 1.0
_SLOWER_PER_POD_SECONDS = 0.02  # a table of a hundred pods is redrawn every two seconds
_LINES_AROUND = 4  # the heading, its rule, and an empty line before and after
_HEADINGS = ("POD", "READY", "STATUS", "RESTARTS", "AGE")
_DROPPED = ((), ("AGE",), ("AGE", "RESTARTS"), ("AGE", "RESTARTS", "READY"))  # columns to omit, for less and less width
_ROOM_FOR_WHY = 16
_SHORTEST_NAME = 12
_GAP = 3
_MOST_PROBLEMS = 5


class LiveTable:
    """A table at the bottom of the terminal, with permanent lines above it."""

    def __init__(self, program: str = "podkeeper", which_agent: str = "") -> None:
        """`which_agent` is the option that other commands need to find this agent."""
        elsewhere = f"In another terminal: {program} ps{which_agent}, or logs, exec, explain POD."
        self._hint = f"Ctrl-C stops the pods. {elsewhere}"
        self._all = f"'{program} ps{which_agent}' shows all"
        self._console = Console(highlight=False, markup=False)
        self._plain = not self._console.encoding.startswith("utf")
        self._overflow: OverflowMethod = "crop" if self._plain else "ellipsis"
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._news = asyncio.Event()
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._stopping = ""
        self.closed = False

    def say(self, words: str = "") -> None:
        with somebody_may_read():
            self._console.print(words, soft_wrap=True)

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        """Show the problems below the table until they are fixed."""
        if problems:
            self._problems[place] = tuple(problems)
        else:
            self._problems.pop(place, None)
        self.changed()

    def changed(self) -> None:
        self._news.set()

    async def run(self, board: Board) -> None:
        with somebody_may_read(), self._live:
            while not self.closed:
                self.look(board)
                await asyncio.sleep(_AT_MOST_EVERY_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(_AGES_EVERY_SECONDS, len(board.pods()) * _SLOWER_PER_POD_SECONDS)):
                        await self._news.wait()
                self._news.clear()

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        self._stopping = still_stopping(leaving, now)
        self.changed()

    def look(self, board: Board) -> None:
        if not self.closed:
            with somebody_may_read():
                self._live.update(self._picture(board.shown(), board), refresh=True)

    def close(self, board: Board) -> None:
        """Stop redrawing and leave the last table on the terminal."""
        if self.closed:
            return
        self.closed = True
        with somebody_may_read():
            self._live.stop()
            if shown := board.shown():
                self._console.print(self._table(shown, board.now()))

    def _picture(self, shown: Sequence[Shown], board: Board) -> RenderableType:
        below = list(self._below(board))
        lines = sum(len(self._console.render_lines(each, pad=False)) for each in below)
        room = max(1, self._console.size.height - _LINES_AROUND - lines - 1)
        parts: list[RenderableType] = [self._table(shown[:room], board.now())]
        if len(shown) > room:
            parts.append(self._line(f"... and {len(shown) - room} more: {self._all}", "dim"))
        return Group(*parts, *below)

    def _below(self, board: Board) -> Iterator[Text]:
        problems = [problem for several in self._problems.values() for problem in several]
        yield from (Text(f"error: {problem}", "red") for problem in problems[:_MOST_PROBLEMS])
        if len(problems) > _MOST_PROBLEMS:
            yield self._line(f"... and {len(problems) - _MOST_PROBLEMS} more errors", "red")
        yield from (Text(f"agent: {trouble}", "bold red") for trouble in board.health())
        if self._stopping:
            yield Text(f"still stopping: {self._stopping}", "magenta")
            yield self._line("Press Ctrl-C again to exit and leave the remaining pods running.", "magenta")
        else:
            yield self._line(self._hint, "dim")

    def _line(self, words: str, style: str) -> Text:
        """Return a text of one line, cut to the width of the terminal."""
        return Text(words, style, no_wrap=True, overflow=self._overflow)

    def _table(self, shown: Sequence[Shown], now: datetime) -> Table:
        table = Table(box=None if self._plain else box.SIMPLE_HEAD, pad_edge=False, expand=True)
        rows = [_cells(each, now) for each in shown]
        # Set the widths, because rich would otherwise shrink these columns instead of the last one.
        widths = _widths(rows, self._console.width)
        for heading, width in widths.items():
            table.add_column(heading, no_wrap=True, width=width, overflow=self._overflow)
        table.add_column("WHY", ratio=1, no_wrap=True, overflow=self._overflow)
        for row in rows:
            table.add_row(*(row[heading] for heading in (*widths, "WHY")))
        return table


def _widths(rows: Sequence[Mapping[str, Text]], room: int) -> dict[str, int]:
    """Return the widths of the columns that fit beside WHY."""
    full = {heading: max(len(heading), *(row[heading].cell_len for row in rows), 0) for heading in _HEADINGS}
    widths = full
    for dropped in _DROPPED:
        widths = {heading: width for heading, width in full.items() if heading not in dropped}
        others = sum(widths.values()) - widths["POD"] + _GAP * len(widths) + _ROOM_FOR_WHY
        widths["POD"] = min(widths["POD"], max(_SHORTEST_NAME, room - others))
        if others + widths["POD"] <= room:
            break
    return widths


def _cells(shown: Shown, now: datetime) -> dict[str, Text]:
    pod, summary, born = shown.pod, summary_of(shown.pod), born_at(shown.pod)
    return {
        "POD": Text(shown_name(pod)),
        "STATUS": Text(summary.status, _style(shown)),
        "READY": Text(summary.ready_of_total()),
        "RESTARTS": Text(summary.restarts_told(now), "yellow" if summary.restarts else ""),
        "AGE": Text("" if born is None else human_duration(now - born)),
        "WHY": Text(shown.why, "dim"),
    }


def _style(shown: Shown) -> str:
    pod = shown.pod
    match pod.status.phase:
        case "Succeeded":
            return "blue"
        case "Failed":
            return "red"
        case _ if pod.metadata.deletion_timestamp:
            return "magenta"
        case "Running":
            return "green" if is_ready(pod.status) else "cyan"
        case _:
            return "yellow"
