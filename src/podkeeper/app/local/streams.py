"""Streams to processes in containers: exec and attach.

`exec` starts a process, `attach` connects to the main process.

    Streams.exec, Streams.attach -> StreamSession:  send, close_input, resize -->  process  --> output, wait

Runtimes with streams implement `Streams`. `PlainStreams` is for the others: `exec` returns the output after the command
has exited, `attach` follows the log, and requests with stdin or a TTY are refused.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from podkeeper.app.agent import Agent
from podkeeper.app.local.logs import LogFile, is_running, read_file
from podkeeper.linux.logline import STDOUT
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.rules.logs.reading import LogOptions


class StreamSession(Protocol):
    """A connection to a process. The caller must close it, which closes the process's input and output."""

    def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the output in pieces with their stream (`stdout`, `stderr`) until the end of the output."""

    async def send(self, data: bytes) -> None:
        """Write to stdin. Returns when there is room for more."""

    async def close_input(self) -> None:
        """Close stdin."""

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the TTY. Without a TTY this is a no-op."""

    async def wait(self) -> CommandEnd:
        """Return the exit status of the process. After `attach`, return success, even if the process keeps running."""

    async def close(self) -> None:
        """Disconnect. A process started by `exec` receives SIGHUP and is killed if it does not exit."""


class Streams(Protocol):
    """A runtime that supports exec and attach."""

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> StreamSession:
        """Start a process in a running container. Raises RuntimeRefused with the reason."""

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> StreamSession:
        """Connect to a container's main process. Raises RuntimeRefused with the reason."""


class PlainStreams:
    """Streams for a runtime that only supports `exec_sync`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> StreamSession:
        if tty or stdin:
            raise RuntimeRefused(
                f"cannot use stdin or a TTY: the runtime {self._agent.runtime_name!r} does not support them"
            )
        end = asyncio.ensure_future(self._agent.run_command(container_id, command))
        return _CommandOutput(end)

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> StreamSession:
        if stdin:
            raise RuntimeRefused(f"cannot use stdin: the runtime {self._agent.runtime_name!r} does not support it")
        return _FollowedLog(self._agent, log)


class _SessionWithoutInput:
    """A session without stdin and TTY."""

    async def send(self, data: bytes) -> None:
        pass

    async def close_input(self) -> None:
        pass

    async def resize(self, columns: int, rows: int) -> None:
        pass


class _CommandOutput(_SessionWithoutInput):
    """A command whose output is available after its exit."""

    def __init__(self, end: asyncio.Future[CommandEnd]) -> None:
        self._end = end

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        if isinstance(end := await self.wait(), CommandExited) and end.output:
            yield STDOUT, end.output

    async def wait(self) -> CommandEnd:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        self._end.cancel()


class _FollowedLog(_SessionWithoutInput):
    """A container whose log is followed."""

    def __init__(self, agent: Agent, log: LogFile) -> None:
        self._agent = agent
        self._log = log

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        options = LogOptions(tail_lines=0, follow=True)
        async for data in read_file(self._log.path, options, may_grow=lambda: is_running(self._agent, self._log)):
            yield STDOUT, data

    async def wait(self) -> CommandEnd:
        return CommandExited(0)

    async def close(self) -> None:
        pass


def failure_message(end: CommandEnd) -> str:
    """Return why a command has no exit code, or "" if it has one."""
    match end:
        case CommandExited():
            return ""
        case TimedOut(message) | NotRun(message):
            return message
