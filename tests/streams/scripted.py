"""A scripted streaming server, for behaviour that a real server does not show on demand.

async with serving(script) as url:        # the script gets a Peer for each connection
    connection = await open_connection(url, PROTOCOL)
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from podkeeper.streams.frames import Decoder, Encoder, Frame, SynReply, SynStream
from podkeeper.streams.remote_command import PROTOCOL
from podkeeper.streams.upgrade import PROTOCOL_HEADER

TOKEN = "a-secret-token"
SWITCHED = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n{PROTOCOL_HEADER}: {{}}\r\n\r\n"
TIMEOUT_SECONDS = 10.0


class Gone(Exception):
    """The client hung up."""


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.request = b""
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    async def switch(self, protocol: str = PROTOCOL, *frames: Frame) -> None:
        """Answer the request as a runtime does; frames may come in the same breath."""
        self.request = await self.reader.readuntil(b"\r\n\r\n")
        self.writer.write(SWITCHED.format(protocol).encode() + b"".join(map(self._encoder.encode, frames)))

    async def frame(self) -> Frame:
        """Return the next frame of the client. Raise Gone at the end."""
        while not self._frames:
            data = await self.reader.read(65536)
            if not data:
                raise Gone
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def send(self, *frames: Frame) -> None:
        """Send frames."""
        for frame in frames:
            self.writer.write(self._encoder.encode(frame))
            await self.writer.drain()

    async def accept(self, count: int, by: str = "streamtype") -> dict[str, int]:
        """Take so many streams; their numbers by one of their headers."""
        taken = {}
        for _ in range(count):
            stream = await self.frame()
            assert isinstance(stream, SynStream)
            taken[stream.headers[by]] = stream.stream
            await self.send(SynReply(stream.stream, {}))
        return taken

    async def until_gone(self) -> list[Frame]:
        """All that still comes."""
        frames = []
        with contextlib.suppress(Gone, ConnectionError):
            while True:
                frames.append(await self.frame())
        return frames


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server during the context. A script that fails or is still running at its end fails the test."""
    failed: list[BaseException] = []
    running: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await script(Peer(reader, writer))
        except Exception as error:
            failed.append(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            running.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/exec/{TOKEN}"
        while running:
            await asyncio.wait(set(running), timeout=TIMEOUT_SECONDS)
    finally:
        server.close()
        await server.wait_closed()
    if failed:
        raise failed[0]
