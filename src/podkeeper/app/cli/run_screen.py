"""Output of `podkeeper run`: one line per change of a pod.

On a terminal, `run_table` shows a table instead.

    10:04:31  web-n1    Running            ready 1/1  restarts 0
    10:04:33  crash-n1  CrashLoopBackOff   ready 0/1  restarts 1  app: CrashLoopBackOff, last exit code 2, ...

Only a change of a pod wakes the screen, so an idle node needs no CPU time. Values that depend on the time (age, "next
sync in 8 s") do not count as changes.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import click

from podkeeper.app.local.pod_queries import PodQueries, PodRow
from podkeeper.app.local.pod_table import display_name, human_duration, summary_of
from podkeeper.model.errors import Problem
from podkeeper.model.messages import PodUID

_STOPPING_SECONDS = 5.0  # how often to print the pods that are still stopping
_MAX_NAMES = 8


class Screen(Protocol):
    """The output of a running agent."""

    closed: bool  # `close` was called: the last state was printed

    def print_line(self, text: str = "") -> None:
        """Print a permanent line."""

    def show_problems(self, place: str, problems: Sequence[Problem]) -> None:
        """Show the problems of a manifest. No problems means that it was fixed or removed."""

    def pods_changed(self) -> None:
        """Record that a pod changed. Returns at once."""

    async def run(self, queries: PodQueries) -> None:
        """Show the pods until cancelled."""

    def show_stopping(self, queries: PodQueries) -> None:
        """Show the pods that are being stopped. The caller calls it every second."""

    def update(self, queries: PodQueries) -> None:
        """Show changes at once."""

    def close(self, queries: PodQueries) -> None:
        """Show the last state. Later calls of `update` show nothing."""


class Lines:
    """Lines on stdout, problems on stderr."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._printed: dict[str, tuple[object, ...]] = {}  # the last printed state of each pod, by name
        self.closed = False
        self._stopping_printed: tuple[float, frozenset[PodUID]] = (0.0, frozenset())

    def print_line(self, text: str = "") -> None:
        with ignore_output_errors():
            click.echo(text)

    def show_problems(self, place: str, problems: Sequence[Problem]) -> None:
        with ignore_output_errors():
            for problem in problems:
                click.echo(f"error: {problem}", err=True)
            if not problems:
                click.echo(f"{place}: fixed or removed", err=True)

    def pods_changed(self) -> None:
        self._changed.set()

    async def run(self, queries: PodQueries) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.update(queries)

    def show_stopping(self, queries: PodQueries) -> None:
        """Print the stopping pods when one is new, and every few seconds."""
        now, terminating = queries.monotonic(), queries.terminating()
        printed_at, before = self._stopping_printed
        if terminating and (now - printed_at >= _STOPPING_SECONDS or not before <= terminating.keys()):
            self.print_line(f"{queries.now().astimezone():%H:%M:%S}  still stopping: {still_stopping(queries)}")
            self._stopping_printed = now, frozenset(terminating)

    def close(self, queries: PodQueries) -> None:
        self.update(queries)
        self.closed = True

    def update(self, queries: PodQueries) -> None:
        if self.closed:
            return
        now, rows = queries.now(), {display_name(row.pod): row for row in queries.rows()}
        width = widest([*rows, *self._printed])
        for name, row in rows.items():
            summary = summary_of(row.pod)
            state = (row.pod.metadata.uid, summary.status, summary.ready, summary.restarts)
            if self._printed.get(name) != state:
                self._printed[name] = state
                self.print_line(_line(name, row, now, width))
        for name in sorted(self._printed.keys() - rows.keys()):
            del self._printed[name]
            self.print_line(f"{now.astimezone():%H:%M:%S}  {name:{width}}  removed")


def _line(name: str, row: PodRow, now: datetime, width: int) -> str:
    summary = summary_of(row.pod)
    counts = f"ready {summary.ready_of_total()}  restarts {summary.restarts}"
    return f"{now.astimezone():%H:%M:%S}  {name:{width}}  {summary.status:17}  {counts}  {row.reason}".rstrip()


def widest(names: Iterable[str]) -> int:
    return max(map(len, names), default=0)


def still_stopping(queries: PodQueries) -> str:
    """Return the names of the terminating pods with the elapsed part of their grace periods."""
    now = queries.monotonic()
    pods = [
        f"{display_name(each.pod)} ({human_duration(timedelta(seconds=now - each.since))} of {each.grace_seconds} s)"
        for each in queries.terminating().values()
    ]
    more = f" and {len(pods) - _MAX_NAMES} more" if len(pods) > _MAX_NAMES else ""
    return ", ".join(pods[:_MAX_NAMES]) + more


@contextlib.contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Discard further output if stdout or stderr fails, because a closed pipe or full disk must not end the agent."""
    try:
        yield
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        with contextlib.suppress(OSError):
            os.write(2, f"cannot write output: {error.strerror}; the agent continues without output\n".encode())
        os.close(null)
