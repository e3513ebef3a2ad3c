"""What `podkeeper run` shows on a terminal: a table of the pods, drawn again whenever something changes.

The only module of `run` that knows rich: who writes to a file or a pipe does not load it. A table that changes is drawn
a few times a second at most; one that does not, once a second for the ages, and more rarely where it is long.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from podkeeper.app.cli.run_screen import still_stopping
from podkeeper.app.local.board import Board, Shown
from podkeeper.app.local.gate import Since
from podkeeper.app.local.printing import born_at, human_duration, is_ready, shown_name, summary_of
from podkeeper.model.errors import Problem
from podkeeper.model.messages import PodUID

_AT_MOST_EVERY_SECONDS = 0.2
_AGES_EVERY_SECONDS = 1.0
_SLOWER_PER_POD_SECONDS = 0.02  # a table of a hundred pods is drawn every two seconds
_LINES_AROUND = 6
_HINT = "Ctrl-C stops the pods. In another terminal: podkeeper ps, logs, exec, explain POD."


class LiveTable:
    """A table at the bottom of the terminal, and what is said above it."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        self._plain = not self._console.encoding.startswith("utf")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._news = asyncio.Event()
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._stopping = ""
        self._closed = False

    def say(self, words: str = "") -> None:
        """Above the table."""
        self._console.print(words)

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        """Below the table, until it is mended."""
        if problems:
            self._problems[place] = tuple(problems)
        else:
            self._problems.pop(place, None)
        self.changed()

    def changed(self) -> None:
        """Draw anew soon."""
        self._news.set()

    async def run(self, board: Board) -> None:
        """Draw until cancelled."""
        with self._live:
            while not self._closed:
                self.look(board)
                await asyncio.sleep(_AT_MOST_EVERY_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(_AGES_EVERY_SECONDS, len(board.pods()) * _SLOWER_PER_POD_SECONDS)):
                        await self._news.wait()
                self._news.clear()

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        """Below the table."""
        self._stopping = still_stopping(leaving, now)
        self.changed()

    def look(self, board: Board) -> None:
        """Draw anew."""
        if not self._closed:
            self._live.update(self._picture(board.shown(), board), refresh=True)

    def close(self, board: Board) -> None:
        """The table as it was in the end stays."""
        self._closed = True
        self._live.stop()
        if shown := board.shown():
            self._console.print(self._table(shown, board.now()))

    def _picture(self, shown: Sequence[Shown], board: Board) -> RenderableType:
        room = max(3, self._console.size.height - _LINES_AROUND - sum(map(len, self._problems.values())))
        parts: list[RenderableType] = [self._table(shown[:room], board.now())]
        if len(shown) > room:
            parts.append(Text(f"... and {len(shown) - room} more: 'podkeeper ps' shows all", "dim"))
        parts += [Text(f"error: {problem}", "red") for several in self._problems.values() for problem in several]
        parts += [Text(f"the agent: {trouble}", "bold red") for trouble in board.health()]
        if self._stopping:
            parts.append(Text(f"still stopping: {self._stopping}\nCtrl-C again leaves them running.", "magenta"))
        else:
            parts.append(Text(_HINT, "dim"))
        return Group(*parts)

    def _table(self, shown: Sequence[Shown], now: datetime) -> Table:
        table = Table(box=None if self._plain else box.SIMPLE_HEAD, pad_edge=False, expand=True)
        rows = [_cells(each, now) for each in shown]
        for index, heading in enumerate(("POD", "READY", "STATUS", "RESTARTS", "AGE")):
            # Told how wide it must be, or rich would rather squeeze these than the last one.
            width = max(len(heading), *(len(row[index]) for row in rows)) if rows else len(heading)
            table.add_column(heading, no_wrap=True, width=width)
        table.add_column("WHY", ratio=1, no_wrap=True, overflow="crop" if self._plain else "ellipsis")
        for row in rows:
            table.add_row(*row)
        return table


def _cells(shown: Shown, now: datetime) -> tuple[Text, ...]:
    pod, summary, born = shown.pod, summary_of(shown.pod), born_at(shown.pod)
    return (
        Text(shown_name(pod)),
        Text(summary.ready_of_total()),
        Text(summary.status, _style(shown)),
        Text(summary.restarts_told(now), "yellow" if summary.restarts else ""),
        Text("" if born is None else human_duration(now - born)),
        Text(shown.why, "dim"),
    )


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
