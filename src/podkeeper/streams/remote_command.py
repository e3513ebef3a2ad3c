"""Exec and attach: streams to a process in a container.

Each stream has a `streamType`: `stdin` (its end is the end of the input), `stdout`, `stderr` (only without a terminal),
`resize` (only with a terminal: {"Width": 80, "Height": 24}), and `error`, on which the runtime sends a Status with the
exit code at the end. This is v4.channel.k8s.io. v5 is the same over SPDY, but not all runtimes support it.
Go counterpart: client-go's `tools/remotecommand`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from podkeeper.linux.logline import STDERR, STDOUT
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.meta import Status
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.streams.connection import ReceiveBuffer, SpdyConnection, Stream, StreamClosed, StreamsLost

# Not v5: over SPDY it is the same, and not all runtimes support it.
PROTOCOL: Final = "v4.channel.k8s.io"
# Lower case, as SPDY requires. Go's header names ignore the case.
STREAM_TYPE: Final = "streamtype"
NON_ZERO_EXIT: Final = "NonZeroExitCode"
EXIT_CODE_CAUSE: Final = "ExitCode"
# A bound for a peer that never ends its message.
MAX_STATUS_BYTES: Final = 1024 * 1024


class RemoteCommand:
    """A session with a process. Use `open` to create one."""

    def __init__(
        self, connection: SpdyConnection, streams: dict[str, Stream], output: ReceiveBuffer, end: ReceiveBuffer
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._output = output
        self._end = end
        self._ended: asyncio.Task[CommandEnd] | None = None

    @classmethod
    async def open(cls, connection: SpdyConnection, *, tty: bool, stdin: bool) -> "RemoteCommand":
        """Open all streams. The session owns the connection from now on. Raises TryLater."""
        # Separate buffers, because `output` and `wait` have different consumers. The peer sends nothing on stdin and
        # resize.
        output, end, unused = connection.buffer(), connection.buffer(), connection.buffer()
        try:
            streams = {"error": connection.open_stream({STREAM_TYPE: "error"}, end, finished=True)}
            for name in (STDOUT, *(() if tty else (STDERR,))):
                streams[name] = connection.open_stream({STREAM_TYPE: name}, output, finished=True)
            for name in (*(("stdin",) if stdin else ()), *(("resize",) if tty else ())):
                streams[name] = connection.open_stream({STREAM_TYPE: name}, unused)
            # Request all streams before waiting for replies: one round trip instead of five.
            for stream in streams.values():
                await stream.accepted()
        except BaseException:
            await connection.close()
            raise
        return cls(connection, streams, output, end)

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield stream names and output in the order of arrival, until the output ends or the connection is lost."""
        names = {self._streams[name]: name for name in (STDOUT, STDERR) if name in self._streams}
        with contextlib.suppress(StreamsLost):  # `wait` reports it
            while names:
                stream, data = await self._output.take()
                if data:
                    yield names[stream], data
                else:
                    del names[stream]

    async def send(self, data: bytes) -> None:
        """Write to stdin. Data after the process has closed its stdin is dropped."""
        if (stdin := self._streams.get("stdin")) is not None:
            with contextlib.suppress(StreamClosed, StreamsLost):  # `wait` still returns the exit status
                await stdin.write(data)

    async def close_input(self) -> None:
        """Send the end of stdin."""
        if (stdin := self._streams.get("stdin")) is not None:
            stdin.finish()

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        if (sizes := self._streams.get("resize")) is not None:
            with contextlib.suppress(StreamClosed, StreamsLost):
                await sizes.write(json.dumps({"Width": columns, "Height": rows}).encode() + b"\n")

    async def wait(self) -> CommandEnd:
        """Return the exit status, or `NotRun` if the connection was lost before it arrived."""
        if self._ended is None:
            # One reader for all callers of `wait`, because the buffer gives each piece only once.
            self._ended = asyncio.create_task(self._read_end())
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Close the connection. The process gets the end of stdin, and its further output is lost."""
        if self._ended is not None:
            self._ended.cancel()
        await self._connection.close()

    async def _read_end(self) -> CommandEnd:
        received = bytearray()
        try:
            while len(received) < MAX_STATUS_BYTES:
                _, data = await self._end.take()
                if not data:
                    break
                received += data
        except TryLater as error:
            if not received:
                return NotRun(f"cannot read the exit status: {error}")
        return end_of(bytes(received))


def end_of(received: bytes) -> CommandEnd:
    """Return the exit status in the Status object that a runtime sends."""
    try:
        status = msgspec.json.decode(received, type=Status)
    except msgspec.DecodeError:
        return NotRun(f"cannot read the exit status: the runtime sent {received[:200]!r}")
    if status.status == "Success":
        return CommandExited(0)
    causes = (status.details.causes if status.details is not None else None) or ()
    codes = (cause.message or "" for cause in causes if cause.reason == EXIT_CODE_CAUSE)
    code = next(codes, "") if status.reason == NON_ZERO_EXIT else ""
    # isdigit alone accepts digits that int() refuses, such as superscripts.
    if code.isascii() and code.isdigit():
        return CommandExited(int(code))
    return NotRun(status.message or "cannot read the exit status: the runtime gave no reason")
