"""Output of `podkeeper run` on a terminal: a table of the pods.

Only this module of `run` imports rich, so output to a file or pipe does not load it. The table is redrawn at most five
times per second after changes, and once per second for the ages (less often if it is long).

If the terminal is too small, the table omits columns and rows in this order: ages, restarts, ready counts, ends of
names, pods.
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

from podkeeper.app.cli.run_screen import ignore_output_errors, still_stopping
from podkeeper.app.local.pod_queries import PodQueries, PodRow
from podkeeper.app.local.pod_table import created_at, display_name, human_duration, is_ready, summary_of
from podkeeper.model.errors import Problem
from podkeeper.model.k8s.core import Pod

_MIN_REDRAW_SECONDS = 0.2
_AGE_REDRAW_SECONDS = 1.0
_REDRAW_SECONDS_PER_POD = 0.02  # a table of a hundred pods is redrawn every two seconds
_LINES_AROUND = 4  # the heading, its rule, and an empty line before and after
_HEADINGS = ("POD", "READY", "STATUS", "RESTARTS", "AGE")
_DROPPED = ((), ("AGE",), ("AGE", "RESTARTS"), ("AGE", "RESTARTS", "READY"))  # columns to omit, for less and less width
_WHY_WIDTH = 16
_SHORTEST_NAME = 12
_GAP = 3
_MAX_PROBLEMS = 5


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
        self._changed = asyncio.Event()
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._stopping = ""
        self.closed = False

    def print_line(self, text: str = "") -> None:
        with ignore_output_errors():
            self._console.print(text, soft_wrap=True)

    def show_problems(self, place: str, problems: Sequence[Problem]) -> None:
        """Show the problems below the table until they are fixed."""
        if problems:
            self._problems[place] = tuple(problems)
        else:
            self._problems.pop(place, None)
        self.pods_changed()

    def pods_changed(self) -> None:
        self._changed.set()

    async def run(self, queries: PodQueries) -> None:
        with ignore_output_errors(), self._live:
            while not self.closed:
                self.update(queries)
                await asyncio.sleep(_MIN_REDRAW_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(_AGE_REDRAW_SECONDS, len(queries.pods()) * _REDRAW_SECONDS_PER_POD)):
                        await self._changed.wait()
                self._changed.clear()

    def show_stopping(self, queries: PodQueries) -> None:
        self._stopping = still_stopping(queries)
        self.pods_changed()

    def update(self, queries: PodQueries) -> None:
        if not self.closed:
            with ignore_output_errors():
                self._live.update(self._render(queries.rows(), queries), refresh=True)

    def close(self, queries: PodQueries) -> None:
        """Stop redrawing and leave the last table on the terminal."""
        if self.closed:
            return
        self.closed = True
        with ignore_output_errors():
            self._live.stop()
            if rows := queries.rows():
                self._console.print(self._table(rows, queries.now()))

    def _render(self, rows: Sequence[PodRow], queries: PodQueries) -> RenderableType:
        footer = list(self._footer(queries))
        lines = sum(len(self._console.render_lines(each, pad=False)) for each in footer)
        space = max(1, self._console.size.height - _LINES_AROUND - lines - 1)
        parts: list[RenderableType] = [self._table(rows[:space], queries.now())]
        if len(rows) > space:
            parts.append(self._line(f"... and {len(rows) - space} more: {self._all}", "dim"))
        return Group(*parts, *footer)

    def _footer(self, queries: PodQueries) -> Iterator[Text]:
        problems = [problem for several in self._problems.values() for problem in several]
        yield from (Text(f"error: {problem}", "red") for problem in problems[:_MAX_PROBLEMS])
        if len(problems) > _MAX_PROBLEMS:
            yield self._line(f"... and {len(problems) - _MAX_PROBLEMS} more errors", "red")
        yield from (Text(f"agent: {problem}", "bold red") for problem in queries.health())
        if self._stopping:
            yield Text(f"still stopping: {self._stopping}", "magenta")
            yield self._line("Press Ctrl-C again to exit and leave the remaining pods running.", "magenta")
        else:
            yield self._line(self._hint, "dim")

    def _line(self, text: str, style: str) -> Text:
        """Return a text of one line, cut to the width of the terminal."""
        return Text(text, style, no_wrap=True, overflow=self._overflow)

    def _table(self, rows: Sequence[PodRow], now: datetime) -> Table:
        table = Table(box=None if self._plain else box.SIMPLE_HEAD, pad_edge=False, expand=True)
        cells = [_cells(row, now) for row in rows]
        # Set the widths, because rich would otherwise shrink these columns instead of the last one.
        widths = _widths(cells, self._console.width)
        for heading, width in widths.items():
            table.add_column(heading, no_wrap=True, width=width, overflow=self._overflow)
        table.add_column("WHY", ratio=1, no_wrap=True, overflow=self._overflow)
        for each in cells:
            table.add_row(*(each[heading] for heading in (*widths, "WHY")))
        return table


def _widths(rows: Sequence[Mapping[str, Text]], total: int) -> dict[str, int]:
    """Return the widths of the columns that fit beside WHY."""
    full = {heading: max(len(heading), *(row[heading].cell_len for row in rows), 0) for heading in _HEADINGS}
    widths = full
    for dropped in _DROPPED:
        widths = {heading: width for heading, width in full.items() if heading not in dropped}
        others = sum(widths.values()) - widths["POD"] + _GAP * len(widths) + _WHY_WIDTH
        widths["POD"] = min(widths["POD"], max(_SHORTEST_NAME, total - others))
        if others + widths["POD"] <= total:
            break
    return widths


def _cells(row: PodRow, now: datetime) -> dict[str, Text]:
    pod, summary, created = row.pod, summary_of(row.pod), created_at(row.pod)
    return {
        "POD": Text(display_name(pod)),
        "STATUS": Text(summary.status, _style(pod)),
        "READY": Text(summary.ready_of_total()),
        "RESTARTS": Text(summary.restarts_text(now), "yellow" if summary.restarts else ""),
        "AGE": Text("" if created is None else human_duration(now - created)),
        "WHY": Text(row.reason, "dim"),
    }


def _style(pod: Pod) -> str:
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
