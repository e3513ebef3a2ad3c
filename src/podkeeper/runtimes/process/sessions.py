"""Speaking with a process in a container: a command of one's own (`exec`), or the container itself (`attach`).

    async for channel, data in session: ...         what it writes, until it ends
    await session.write(b"hello\\n")                 its stdin; `close_stdin()` ends that
    session.resize(rows=40, columns=120)            its pseudo-terminal
    code = await session.wait()                     how a command ended

The bytes go through pipes and pseudo-terminals that the agent shares with the process: no keeper copies them. Whoever
does not fetch what comes holds up the writer, nobody else.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections import deque
from enum import StrEnum
from typing import Final

from podkeeper.model.errors import RuntimeRefused
from podkeeper.runtimes.process.links import Answer, Link

_CHUNK_BYTES: Final = 65536
_QUEUE_CHUNKS: Final = 16


class Channel(StrEnum):
    """Where output came from; a pseudo-terminal has only one."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Session:
    """One conversation. Close it, or use it as a context."""

    def __init__(self, outputs: dict[Channel, int], stdin: int, *, tty: bool) -> None:
        """Takes the files over; `stdin` -1: there is none."""
        self._loop = asyncio.get_running_loop()
        self._outputs = outputs
        self._stdin = stdin
        self._tty = tty
        self._queue: deque[tuple[Channel, bytes]] = deque()
        self._wake = asyncio.Event()
        self._end: asyncio.Future[Answer] | None = None
        self._link: Link | None = None
        self._number = 0
        for file in (*outputs.values(), *([stdin] if stdin >= 0 else [])):
            os.set_blocking(file, False)
        self._listen()

    def follow(self, link: Link, number: int, end: "asyncio.Future[Answer]") -> None:
        """This is a command: `end` will tell how it ends."""
        self._link, self._number, self._end = link, number, end
        end.add_done_callback(self._ended)

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> "Session":
        return self

    async def __anext__(self) -> tuple[Channel, bytes]:
        while not self._queue:
            if not self._outputs:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item = self._queue.popleft()
        self._listen()
        return item

    async def write(self, data: bytes) -> None:
        """Write to stdin, as fast as it is read. Raises RuntimeRefused when there is none (any more)."""
        while data:
            if self._stdin < 0:
                raise RuntimeRefused("cannot write to stdin: it is closed")
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                self.close_stdin()
                raise RuntimeRefused(f"cannot write to stdin: {error.strerror}") from error

    def close_stdin(self) -> None:
        """There will be no more input; a command at a pseudo-terminal is told so by the end-of-file key."""
        if self._stdin < 0:
            return
        if self._tty and self._end is not None:
            with contextlib.suppress(OSError):
                os.write(self._stdin, b"\x04")
        self._loop.remove_writer(self._stdin)
        os.close(self._stdin)
        self._stdin = -1

    def resize(self, rows: int, columns: int) -> None:
        """Tell the pseudo-terminal how large the window is."""
        file = next(iter(self._outputs.values()), -1) if self._stdin < 0 else self._stdin
        if self._tty and file >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """The exit code of a command. Raises TryLater when it could not be started, or its keeper died."""
        if self._end is None:
            raise RuntimeRefused("cannot tell how it ends: this is no command")
        answer, _ = await asyncio.shield(self._end)
        return int(answer["code"])

    async def aclose(self) -> None:
        """End the conversation; a command that still runs is ended too, a container is not."""
        if self._end is not None and not self._end.done() and self._link is not None:
            self._link.begin("kill_exec", {"request": self._number})
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        for channel in tuple(self._outputs):
            self._close(channel)

    def _listen(self) -> None:
        for channel, file in self._outputs.items():
            if len(self._queue) < _QUEUE_CHUNKS:
                self._loop.add_reader(file, self._read, channel)
            else:
                self._loop.remove_reader(file)

    def _read(self, channel: Channel) -> None:
        data = self._take(channel)
        if data:
            self._queue.append((channel, data))
            self._wake.set()
            if len(self._queue) >= _QUEUE_CHUNKS:
                self._listen()
        elif data is not None:
            self._close(channel)

    def _take(self, channel: Channel) -> bytes | None:
        try:
            return os.read(self._outputs[channel], _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # a pseudo-terminal that nobody has open any more
            return b""

    def _ended(self, end: "asyncio.Future[Answer]") -> None:
        """The command is over: what it wrote is here, and others who may hold its files open are not waited for."""
        if not end.cancelled():
            end.exception()  # nobody may ask how it ended
        for channel in tuple(self._outputs):
            while data := self._take(channel):
                self._queue.append((channel, data))
            self._close(channel)

    def _close(self, channel: Channel) -> None:
        if (file := self._outputs.pop(channel, None)) is not None:
            self._loop.remove_reader(file)
            os.close(file)
        self._wake.set()

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._stdin, _set, ready)
        try:
            await ready
        finally:
            if self._stdin >= 0:
                self._loop.remove_writer(self._stdin)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
