"""Talking with a process in a container: `exec` starts one, `attach` joins the one that runs.

    Streams.exec, Streams.attach -> Conversation:  send, close_input, resize -->  process  --> output, wait

A runtime that can talk offers `Streams` itself. For one that cannot there is `PlainStreams`: a command is run to its
end and its output told then, and attaching means reading the log on; what needs an open input is refused with the
reason.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from podkeeper.app.build import Agent
from podkeeper.app.local.logs import LogFile, is_running, read_file
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from podkeeper.rules.logline import STDOUT
from podkeeper.rules.logread import LogOptions

NO_TIMEOUT = 0.0


class Conversation(Protocol):
    """A process that is talked with. Whoever has one closes it; that takes the process's input away, and its output."""

    def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it writes, each piece with its stream (`stdout`, `stderr`); ends when all is said."""

    async def send(self, data: bytes) -> None:
        """Write to its input; returns when there is room for more."""

    async def close_input(self) -> None:
        """Tell it that no more input comes."""

    async def resize(self, columns: int, rows: int) -> None:
        """Tell it how large its terminal is; without one, nothing happens."""

    async def wait(self) -> CommandEnd:
        """How it ended; for one that was only joined, that it goes on is an end as well."""

    async def close(self) -> None:
        """Stop talking. A process that was started for this conversation is told so, and killed if it goes on."""


class Streams(Protocol):
    """A runtime that can talk with processes."""

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Conversation:
        """Start a process beside those of a container that runs. Raises RuntimeRefused with the reason."""

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> Conversation:
        """Join a container's first process, from now on. Raises RuntimeRefused with the reason."""


class PlainStreams:
    """Streams on a runtime that can only run commands to their end."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Conversation:
        """Run a command; what it wrote is told when it has ended."""
        if tty or stdin:
            raise RuntimeRefused(
                f"cannot keep an input open: the runtime {self._agent.runtime.name!r} has no terminals"
            )
        end = asyncio.ensure_future(self._agent.ports.runtime.exec_sync(container_id, command, NO_TIMEOUT))
        return _Told(end)

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> Conversation:
        """Read the log on from its end."""
        if stdin:
            raise RuntimeRefused(f"cannot keep an input open: the runtime {self._agent.runtime.name!r} has none")
        return _LogRead(self._agent, log)


class _Mute:
    """Takes no input."""

    async def send(self, data: bytes) -> None:
        """There is nobody to read it."""

    async def close_input(self) -> None:
        """It never was open."""

    async def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""


class _Told(_Mute):
    """A command that is told of when it has ended."""

    def __init__(self, end: asyncio.Future[CommandEnd]) -> None:
        self._end = end

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        if isinstance(end := await self.wait(), Exited) and end.output:
            yield STDOUT, end.output

    async def wait(self) -> CommandEnd:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        self._end.cancel()


class _LogRead(_Mute):
    """A container whose log is read on."""

    def __init__(self, agent: Agent, log: LogFile) -> None:
        self._agent = agent
        self._log = log

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        options = LogOptions(tail_lines=0, follow=True)
        async for data in read_file(self._log.path, options, goes_on=lambda: is_running(self._agent, self._log)):
            yield STDOUT, data

    async def wait(self) -> CommandEnd:
        return Exited(0)

    async def close(self) -> None:
        """Nothing is open."""


def end_in_words(end: CommandEnd) -> str:
    """Why a command gave no exit code; empty when it did."""
    match end:
        case Exited():
            return ""
        case TimedOut(message) | NotRun(message):
            return message
