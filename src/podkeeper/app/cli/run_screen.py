"""Output of `podkeeper run`: one line per change of a pod. On a terminal, `run_table` shows a table instead.

    10:04:31  web-n1    Running            ready 1/1  restarts 0
    10:04:33  crash-n1  CrashLoopBackOff   ready 0/1  restarts 1  app: CrashLoopBackOff, last exit code 2, ...

Only a change of a pod's status wakes the screen, so an idle node needs no CPU time. Values that depend on the time
(age, "next sync in 8 s") do not count as changes.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import click

from podkeeper.app.local.board import Board, Shown
from podkeeper.app.local.gate import Since
from podkeeper.app.local.printing import human_duration, shown_name, summary_of
from podkeeper.model.errors import Problem
from podkeeper.model.messages import PodUID

_STOPPING_SECONDS = 5.0  # how often to print the pods that are still stopping
_MOST_NAMED = 8


class Screen(Protocol):
    """The output of a running agent."""

    closed: bool  # the last state has been shown

    def say(self, words: str = "") -> None:
        """Print a permanent line."""

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        """Show the problems of a manifest. No problems means that it was fixed or removed."""

    def changed(self) -> None:
        """Record that a pod changed. Returns at once."""

    async def run(self, board: Board) -> None:
        """Show the pods until cancelled."""

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        """Show the pods that are being stopped. The caller repeats this several times per second."""

    def look(self, board: Board) -> None:
        """Show changes at once."""

    def close(self, board: Board) -> None:
        """Show the last state. Later calls of `look` show nothing."""


class Lines:
    """Lines on stdout, problems on stderr."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._told: dict[str, tuple[object, ...]] = {}
        self.closed = False
        self._stopping_told: tuple[float, frozenset[PodUID]] = (0.0, frozenset())

    def say(self, words: str = "") -> None:
        with somebody_may_read():
            click.echo(words)

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        with somebody_may_read():
            for problem in problems:
                click.echo(f"error: {problem}", err=True)
            if not problems:
                click.echo(f"{place}: fixed or removed", err=True)

    def changed(self) -> None:
        self._news.set()

    async def run(self, board: Board) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self.look(board)

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        """Print the stopping pods when one is new, and every few seconds."""
        moment = asyncio.get_running_loop().time()
        said_at, before = self._stopping_told
        if leaving and (moment - said_at >= _STOPPING_SECONDS or not before <= leaving.keys()):
            self.say(f"{now.astimezone():%H:%M:%S}  still stopping: {still_stopping(leaving, now)}")
            self._stopping_told = moment, frozenset(leaving)

    def close(self, board: Board) -> None:
        self.look(board)
        self.closed = True

    def look(self, board: Board) -> None:
        if self.closed:
            return
        now, seen = board.now(), {shown_name(shown.pod): shown for shown in board.shown()}
        width = widest([*seen, *self._told])
        for name, shown in seen.items():
            summary = summary_of(shown.pod)
            state = (shown.pod.metadata.uid, summary.status, summary.ready, summary.restarts)
            if self._told.get(name) != state:
                self._told[name] = state
                self.say(_line(name, shown, now, width))
        for name in sorted(self._told.keys() - seen.keys()):
            del self._told[name]
            self.say(f"{now.astimezone():%H:%M:%S}  {name:{width}}  removed")


def _line(name: str, shown: Shown, now: datetime, width: int) -> str:
    summary = summary_of(shown.pod)
    told = f"ready {summary.ready_of_total()}  restarts {summary.restarts}"
    return f"{now.astimezone():%H:%M:%S}  {name:{width}}  {summary.status:17}  {told}  {shown.why}".rstrip()


def widest(names: Iterable[str]) -> int:
    return max(map(len, names), default=0)


def still_stopping(leaving: Mapping[PodUID, Since], now: datetime) -> str:
    told = [
        f"{shown_name(since.pod)} ({human_duration(now - since.at)} of {since.grace_seconds} s)"
        for since in leaving.values()
    ]
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return ", ".join(told[:_MOST_NAMED]) + more


@contextlib.contextmanager
def somebody_may_read() -> Iterator[None]:
    """Discard further output if stdout or stderr fails, because a closed pipe or full disk must not end the agent."""
    try:
        yield
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        with contextlib.suppress(OSError):
            os.write(2, f"cannot write output: {error.strerror}; the agent continues without output\n".encode())
        os.close(nowhere)
