"""Speaking with a process in a container: a command of one's own (`exec`), or the container itself (`attach`).

    async for channel, data in session: ...         what it writes, until it ends
    await session.write(b"hello\\n")                 its stdin; `close_stdin()` ends that
    session.resize(rows=40, columns=120)            its pseudo-terminal
    code = await session.wait()                     how a command ended

The bytes of a command go through pipes and pseudo-terminals that the agent shares with it: no keeper copies them.
Whoever does not fetch what comes holds up the writer, nobody else. A command whose session is closed is hung up on, as
by a terminal that is gone: it gets HUP, and what has not ended soon is killed (the reference lets it run for ever). A
container that was attached to goes on; its stdin ends then if it is `stdinOnce`.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from podkeeper.model.errors import RuntimeRefused
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.terminal import receive_terminal
from podkeeper.runtimes.process.links import Answer, Link

_CHUNK_BYTES: Final = 65536
_QUEUE_CHUNKS: Final = 16
_LAST_BYTES: Final = 2**20  # what may still lie in a pipe when a command has ended


class Channel(StrEnum):
    """Where output came from; a pseudo-terminal has only one."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Session:
    """One conversation. Close it, or use it as a context."""

    def __init__(
        self, outputs: dict[Channel, int], stdin: int = -1, terminal: int = -1, *, ends_with_stdin: bool = False
    ) -> None:
        """Takes the files over; -1: there is none. `terminal` is there to be told of its size."""
        self._loop = asyncio.get_running_loop()
        self._outputs = outputs
        self._stdin = stdin
        self._terminal = terminal
        self._ends_with_stdin = ends_with_stdin
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
        if self._terminal >= 0 and self._end is not None:
            with contextlib.suppress(OSError):
                os.write(self._stdin, b"\x04")
        self._let_go_of_stdin()
        if self._ends_with_stdin:
            self._close_outputs()

    def resize(self, rows: int, columns: int) -> None:
        """Tell the pseudo-terminal how large the window is."""
        if self._terminal >= 0:
            with contextlib.suppress(OSError, struct.error):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """The exit code of a command. Raises TryLater when it could not be started, or its keeper died."""
        if self._end is None:
            raise RuntimeRefused("cannot tell how it ends: this is no command")
        answer, _ = await asyncio.shield(self._end)
        return int(answer["code"])

    async def aclose(self) -> None:
        """End the conversation; a command that still runs is hung up on, a container is not."""
        if self._end is not None and not self._end.done() and self._link is not None:
            self._link.begin("hang_up", {"request": self._number})
        self._let_go_of_stdin()
        self._close_outputs()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

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
        left = _LAST_BYTES  # who was left behind may go on writing for ever
        for channel in tuple(self._outputs):
            while left > 0 and (data := self._take(channel)):
                self._queue.append((channel, data))
                left -= len(data)
        self._close_outputs()

    def _let_go_of_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _close_outputs(self) -> None:
        for channel in tuple(self._outputs):
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


async def open_command(link: Link, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Session:
    """Start a command beside those of a container. Raises nothing for a bad one: its `wait()` does."""
    request: Json = {"container": container_id, "argv": list(command), "tty": tty}
    if tty:
        return await _open_at_terminal(link, request, stdin=stdin)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    reading, writing = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
    session = Session({Channel.STDOUT: out, Channel.STDERR: err}, writing)
    session.follow(link, *link.begin("exec", request, (reading, out_end, err_end)))
    return session


async def _open_at_terminal(link: Link, request: Json, *, stdin: bool) -> Session:
    """The same for one with a terminal, which it opens where it is, and sends us."""
    ours, console = socket.socketpair()
    with ours:
        number, end = link.begin("exec", request, (console.detach(),))
        try:
            master = await _terminal_from(ours)
        except BaseException:  # whoever asked is gone
            end.add_done_callback(_forget)
            link.begin("hang_up", {"request": number})
            raise
    outputs = {} if master < 0 else {Channel.STDOUT: master}
    files = () if master < 0 else (os.dup(master) if stdin else -1, os.dup(master))
    session = Session(outputs, *files)
    session.follow(link, number, end)
    return session


async def _terminal_from(console: socket.socket) -> int:
    """The master of a terminal, once it comes; -1: none does."""
    loop = asyncio.get_running_loop()
    console.setblocking(False)
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(console.fileno(), _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(console.fileno())
    return receive_terminal(console)


async def open_attached(link: Link, container_id: str, *, stdin: bool, timeout_seconds: float) -> Session:
    """Follow a container's output from now on, and its stdin if that is wanted. Raises TryLater."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    request: Json = {"container": container_id, "stdin": stdin}
    try:
        answer, files = await link.ask("attach", request, timeout_seconds, (out_end, err_end))
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    file = files[0] if files else -1
    terminal = file if answer["tty"] else -1
    input_file = -1 if not answer["stdin"] else os.dup(file) if answer["tty"] else file
    # As containerd has it: whose input ends is done, unless that is the end of the container's own input.
    done = bool(answer["stdin"]) and not answer["once"]
    return Session({Channel.STDOUT: out, Channel.STDERR: err}, input_file, terminal, ends_with_stdin=done)


def _forget(end: "asyncio.Future[Answer]") -> None:
    if not end.cancelled():
        end.exception()
