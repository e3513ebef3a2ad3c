"""What `podkeeper run` shows while it runs: lines, one per change. A terminal gets a table instead (`run_table`).

    10:04:31  web-n1    Running            ready 1/1  restarts 0
    10:04:33  crash-n1  CrashLoopBackOff   ready 0/1  restarts 1  app: CrashLoopBackOff, last exit code 2, ...

A status that changes wakes the screen; where nothing changes nothing is computed. What varies by itself (ages, "next
look in 8 s") is no change.
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

_STOPPING_SECONDS = 5.0  # how often it is said who is still stopping
_MOST_NAMED = 8


class Screen(Protocol):
    """Where the life of an agent is shown."""

    closed: bool  # the end has been shown

    def say(self, words: str = "") -> None:
        """Tell something that stays."""

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        """Tell what is wrong with a manifest; nothing: it is mended, or gone."""

    def changed(self) -> None:
        """Learn that a pod changed. Never waits."""

    async def run(self, board: Board) -> None:
        """Show the pods until cancelled."""

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        """Show who is being stopped; called a few times a second."""

    def look(self, board: Board) -> None:
        """Show at once what changed."""

    def close(self, board: Board) -> None:
        """Show how it was in the end."""


class Lines:
    """Plain lines on stdout, complaints on stderr."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._told: dict[str, tuple[object, ...]] = {}
        self.closed = False
        self._stopping_told: tuple[float, frozenset[PodUID]] = (0.0, frozenset())

    def say(self, words: str = "") -> None:
        """A line."""
        with somebody_may_read():
            click.echo(words)

    def complain(self, place: str, problems: Sequence[Problem]) -> None:
        """A line each."""
        with somebody_may_read():
            for problem in problems:
                click.echo(f"error: {problem}", err=True)
            if not problems:
                click.echo(f"{place} is mended or gone", err=True)

    def changed(self) -> None:
        """Look at the pods soon."""
        self._news.set()

    async def run(self, board: Board) -> None:
        """A line whenever a pod changed."""
        while True:
            await self._news.wait()
            self._news.clear()
            self.look(board)

    def stopping(self, leaving: Mapping[PodUID, Since], now: datetime) -> None:
        """Who left; and every few seconds, who has not."""
        moment = asyncio.get_running_loop().time()
        said_at, before = self._stopping_told
        if leaving and (moment - said_at >= _STOPPING_SECONDS or not before <= leaving.keys()):
            self.say(f"{now.astimezone():%H:%M:%S}  still stopping: {still_stopping(leaving, now)}")
            self._stopping_told = moment, frozenset(leaving)

    def close(self, board: Board) -> None:
        """What was not said yet."""
        self.look(board)
        self.closed = True

    def look(self, board: Board) -> None:
        """A line for each pod that changed."""
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
            self.say(f"{now.astimezone():%H:%M:%S}  {name:{width}}  gone")


def _line(name: str, shown: Shown, now: datetime, width: int) -> str:
    summary = summary_of(shown.pod)
    told = f"ready {summary.ready_of_total()}  restarts {summary.restarts}"
    return f"{now.astimezone():%H:%M:%S}  {name:{width}}  {summary.status:17}  {told}  {shown.why}".rstrip()


def widest(names: Iterable[str]) -> int:
    """How wide a column of names is."""
    return max(map(len, names), default=0)


def still_stopping(leaving: Mapping[PodUID, Since], now: datetime) -> str:
    """Who is being stopped, and for how long."""
    told = [
        f"{shown_name(since.pod)} ({human_duration(now - since.at)} of {since.grace_seconds} s)"
        for since in leaving.values()
    ]
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return ", ".join(told[:_MOST_NAMED]) + more


@contextlib.contextmanager
def somebody_may_read() -> Iterator[None]:
    """Write to stdout or stderr; that nobody reads any more, or a disk is full, is no reason for an agent to end."""
    try:
        yield
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        with contextlib.suppress(OSError):
            os.write(2, f"cannot write any more: {error.strerror}; the agent goes on in silence\n".encode())
        os.close(nowhere)
