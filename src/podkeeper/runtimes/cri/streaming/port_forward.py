"""TCP connections to a port inside a pod: any number of them over one connection to the runtime.

Each has two streams with the same `requestid` and `port`: `data`, both ways, and `error`, on which the runtime says
in words why it could not forward. A forwarded connection is had as a conversation is: what comes back is its output,
and its end says whether it came about. The Go ancestor is client-go's `tools/portforward`.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.rules.logline import STDOUT
from podkeeper.runtimes.cri.streaming.connection import Connection, Stream, StreamClosed, StreamsLost
from podkeeper.runtimes.cri.streaming.remote_command import STREAM_TYPE

PROTOCOL: Final = "portforward.k8s.io"
MAX_WORDS_BYTES: Final = 64 * 1024


class PortForward:
    """Forwards to the ports of one pod; whoever has it closes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._requests = 0

    async def open(self, port: int, *, alone: bool = False) -> "Forwarded":
        """Connect to a port; whether somebody listens there is told by the end. Raises TryLater.

        `alone`: there will be no other, and this is closed with it.
        """
        headers = {"port": str(port), "requestid": str(self._requests)}
        self._requests += 1
        answers, trouble = self._connection.inbox(), self._connection.inbox()
        error = self._connection.begin({**headers, STREAM_TYPE: "error"}, trouble, finished=True)
        # A runtime forwards once it has both, and may say only then that it has taken them.
        data = self._connection.begin({**headers, STREAM_TYPE: "data"}, answers, vouches_for=error)
        forwarded = Forwarded(data, error, self if alone else None)
        try:
            await error.accepted()
            await data.accepted()
        except BaseException:
            await forwarded.close()
            raise
        return forwarded

    async def close(self) -> None:
        """End all connections."""
        await self._connection.close()


class Forwarded:
    """One forwarded connection."""

    def __init__(self, data: Stream, error: Stream, owned: PortForward | None) -> None:
        self._data = data
        self._error = error
        self._owned = owned
        self._end: CommandEnd | None = None

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What comes back, until the other end has said all, or the connection is lost."""
        with contextlib.suppress(StreamsLost):  # `wait` tells of it
            while piece := (await self._data.inbox.take())[1]:
                yield STDOUT, piece

    async def send(self, data: bytes) -> None:
        """Pass bytes on; what the other end does not want any more is dropped."""
        if self._data.ended:
            return  # spdystream would never get rid of it, and stop to read
        with contextlib.suppress(StreamClosed, StreamsLost):
            await self._data.write(data)

    async def close_input(self) -> None:
        """Tell the other end that no more comes."""
        self._data.finish()

    async def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""

    async def wait(self) -> CommandEnd:
        """How it ended: with 0, or why it did not come about. No more is sent or received."""
        if self._end is None:
            self._data.reset()
            self._data.inbox.close()  # else what nobody reads would stand before the words
            self._end = await self._told_end()
        return self._end

    async def close(self) -> None:
        """Let go of it."""
        for stream in (self._data, self._error):
            stream.reset()
            stream.inbox.close()
        if self._owned is not None:
            await self._owned.close()

    async def _told_end(self) -> CommandEnd:
        words = bytearray()
        try:
            while (piece := (await self._error.inbox.take())[1]) and len(words) < MAX_WORDS_BYTES:
                words += piece
        except StreamsLost as error:
            if not words:
                return NotRun(str(error))
        return NotRun(words.decode(errors="replace").strip()) if words else Exited(0)
