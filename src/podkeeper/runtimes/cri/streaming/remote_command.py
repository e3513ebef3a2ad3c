"""A process in a container that is talked with: `exec` has started it, `attach` joins it.

Streams, each with its `streamType`: `stdin` (ours; its end is the end of the input), `stdout`, `stderr` (without a
terminal), `resize` (with one: {"Width": 80, "Height": 24}), and `error`, on which a Status with the exit code comes
when all is over. That is v4.channel.k8s.io; over SPDY, v5 is the same, and not every runtime knows it. The Go
ancestor is client-go's `tools/remotecommand`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.meta import Status
from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.rules.logline import STDERR, STDOUT
from podkeeper.runtimes.cri.streaming.connection import Connection, Inbox, Stream, StreamClosed, StreamsLost

PROTOCOL: Final = "v4.channel.k8s.io"
STREAM_TYPE: Final = "streamtype"
NON_ZERO_EXIT: Final = "NonZeroExitCode"
EXIT_CODE_CAUSE: Final = "ExitCode"
MAX_STATUS_BYTES: Final = 1024 * 1024


class RemoteCommand:
    """A conversation with a process; made by `open`."""

    def __init__(self, connection: Connection, streams: dict[str, Stream], said: Inbox, end: Inbox) -> None:
        self._connection = connection
        self._streams = streams
        self._said = said
        self._end = end
        self._ended: asyncio.Task[CommandEnd] | None = None

    @classmethod
    async def open(cls, connection: Connection, *, tty: bool, stdin: bool) -> "RemoteCommand":
        """Begin all streams, and talk. The connection is the conversation's from now on. Raises TryLater."""
        said, end, unheard = connection.inbox(), connection.inbox(), connection.inbox()
        try:
            streams = {"error": connection.begin({STREAM_TYPE: "error"}, end, finished=True)}
            for name in (STDOUT, *(() if tty else (STDERR,))):
                streams[name] = connection.begin({STREAM_TYPE: name}, said, finished=True)
            for name in (*(("stdin",) if stdin else ()), *(("resize",) if tty else ())):
                streams[name] = connection.begin({STREAM_TYPE: name}, unheard)
            # All are asked for before one is waited for: that is one way there and back, not five.
            for stream in streams.values():
                await stream.accepted()
        except BaseException:
            await connection.close()
            raise
        return cls(connection, streams, said, end)

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it writes, in the order in which it came; ends when all is said, or the connection is lost."""
        names = {self._streams[name]: name for name in (STDOUT, STDERR) if name in self._streams}
        with contextlib.suppress(StreamsLost):  # `wait` tells of it
            while names:
                stream, data = await self._said.take()
                if data:
                    yield names[stream], data
                else:
                    del names[stream]

    async def send(self, data: bytes) -> None:
        """Write to its input; to one that it has closed, nothing is written."""
        if (stdin := self._streams.get("stdin")) is not None:
            with contextlib.suppress(StreamClosed, StreamsLost):  # how it ended is still worth hearing
                await stdin.write(data)

    async def close_input(self) -> None:
        """Tell it that no more input comes."""
        if (stdin := self._streams.get("stdin")) is not None:
            stdin.finish()

    async def resize(self, columns: int, rows: int) -> None:
        """Tell it how large its terminal is."""
        if (sizes := self._streams.get("resize")) is not None:
            with contextlib.suppress(StreamClosed, StreamsLost):
                await sizes.write(json.dumps({"Width": columns, "Height": rows}).encode() + b"\n")

    async def wait(self) -> CommandEnd:
        """How it ended; a connection that broke before that was told is an end as well."""
        if self._ended is None:
            self._ended = asyncio.create_task(self._told_end())
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Hang up: its input ends, and what it writes is lost."""
        if self._ended is not None:
            self._ended.cancel()
        await self._connection.close()

    async def _told_end(self) -> CommandEnd:
        told = bytearray()
        try:
            while len(told) < MAX_STATUS_BYTES:
                _, data = await self._end.take()
                if not data:
                    break
                told += data
        except TryLater as error:
            if not told:
                return NotRun(f"cannot say how the command ended: {error}")
        return end_of(bytes(told))


def end_of(told: bytes) -> CommandEnd:
    """How a command ended, from the Status that a runtime sends."""
    try:
        status = msgspec.json.decode(told, type=Status)
    except msgspec.DecodeError:
        return NotRun(f"cannot say how the command ended: the runtime said {told[:200]!r}")
    if status.status == "Success":
        return Exited(0)
    causes = (status.details.causes if status.details is not None else None) or ()
    codes = (cause.message or "" for cause in causes if cause.reason == EXIT_CODE_CAUSE)
    code = next(codes, "") if status.reason == NON_ZERO_EXIT else ""
    if code.isascii() and code.isdigit():
        return Exited(int(code))
    return NotRun(status.message or "cannot say how the command ended: the runtime gave no reason")
