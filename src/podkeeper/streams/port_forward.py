"""Port forwarding: TCP connections to a port of a pod.

Many TCP connections share one connection to the runtime.

Each TCP connection has two streams with the same `requestid` and `port`: `data` in both directions, and `error`, on
which the runtime reports why it could not forward. A forwarded connection has the interface of an exec session:
received data is its output, and its exit status is 0 or the reported error. Go counterpart: client-go's
`tools/portforward`.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from podkeeper.linux.logline import STDOUT
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.streams.connection import SpdyConnection, Stream, StreamClosed, StreamsLost
from podkeeper.streams.remote_command import STREAM_TYPE

PROTOCOL: Final = "portforward.k8s.io"
# A bound for a peer that never ends its message.
MAX_ERROR_BYTES: Final = 64 * 1024


class PortForward:
    """Forwards to the ports of one pod. The owner closes it."""

    def __init__(self, connection: SpdyConnection) -> None:
        self._connection = connection
        self._requests = 0

    async def open(self, port: int, *, alone: bool = False) -> "ForwardedConnection":
        """Connect to a port. If nothing listens there, the exit status reports it. Raises TryLater.

        `alone`: closing the forwarded connection closes this object, too.
        """
        headers = {"port": str(port), "requestid": str(self._requests)}
        self._requests += 1
        # Two buffers, because `output` and `wait` have different consumers.
        answers, messages = self._connection.buffer(), self._connection.buffer()
        error = self._connection.open_stream({**headers, STREAM_TYPE: "error"}, messages, finished=True)
        # A runtime needs both streams before it forwards, and may accept them only then.
        data = self._connection.open_stream({**headers, STREAM_TYPE: "data"}, answers, accepted_with=error)
        forwarded = ForwardedConnection(data, error, self if alone else None)
        try:
            await error.accepted()
            await data.accepted()
        except BaseException:
            await forwarded.close()
            raise
        return forwarded

    async def close(self) -> None:
        await self._connection.close()


class ForwardedConnection:
    def __init__(self, data: Stream, error: Stream, owned: PortForward | None) -> None:
        self._data = data
        self._error = error
        self._owned = owned
        self._end: CommandEnd | None = None

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield received data until the peer closes or the connection is lost."""
        with contextlib.suppress(StreamsLost):  # `wait` reports it
            while piece := (await self._data.buffer.take())[1]:
                yield STDOUT, piece

    async def send(self, data: bytes) -> None:
        """Send data. Data after the peer has closed is dropped."""
        if self._data.ended:
            return  # spdystream would block on the unread data and stop reading the whole connection
        with contextlib.suppress(StreamClosed, StreamsLost):
            await self._data.write(data)

    async def close_input(self) -> None:
        """Send the end of the data."""
        self._data.finish()

    async def resize(self, columns: int, rows: int) -> None:
        """Do nothing: there is no terminal."""

    async def wait(self) -> CommandEnd:
        """End the connection. Return exit status 0, or why the runtime could not forward."""
        if self._end is None:
            # The runtime ends the error stream only after the data stream is over.
            self._data.reset()
            self._data.buffer.close()  # unread data would block the error stream
            self._end = await self._read_end()
        return self._end

    async def close(self) -> None:
        for stream in (self._data, self._error):
            stream.reset()
            stream.buffer.close()
        if self._owned is not None:
            await self._owned.close()

    async def _read_end(self) -> CommandEnd:
        message = bytearray()
        try:
            while (piece := (await self._error.buffer.take())[1]) and len(message) < MAX_ERROR_BYTES:
                message += piece
        except StreamsLost as error:
            if not message:
                return NotRun(str(error))
        return NotRun(message.decode(errors="replace").strip()) if message else CommandExited(0)
