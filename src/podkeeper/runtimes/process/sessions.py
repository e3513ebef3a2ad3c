"""Interactive streams to a container: a new command (`exec`) or `attach`.

    async for channel, data in session: ...         its output, until it ends
    await session.write(b"hello\\n")                 its stdin, which `close_stdin()` ends
    session.resize(rows=40, columns=120)            its terminal
    code = await session.wait()                     the exit code of a command

The bytes of a command go through pipes and terminals that the agent shares with it. No keeper copies them. A client
that does not read blocks only the writer. When a session is closed, its command receives SIGHUP, as from a closed
terminal. Processes that still run 10 s later are killed. With the kubelet, they keep running. An attached container
keeps running. With `stdinOnce`, its stdin ends.
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
from podkeeper.runtimes.process.keeper_link import Answer, KeeperLink

_CHUNK_BYTES: Final = 65536
# At most 1 MiB of output is buffered. After that, the writer blocks.
_QUEUE_CHUNKS: Final = 16
_LAST_BYTES: Final = 2**20  # read at most this much from the pipes after a command has ended


class Channel(StrEnum):
    """The source of output. A terminal has only stdout."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Session:
    """The streams of one exec or attach. Close it, or use it as a context manager."""

    def __init__(
        self, outputs: dict[Channel, int], stdin: int = -1, terminal: int = -1, *, ends_with_stdin: bool = False
    ) -> None:
        """Take ownership of the files. -1: none. `terminal` is only used to set the window size."""
        self._loop = asyncio.get_running_loop()
        self._outputs = outputs
        self._stdin = stdin
        self._terminal = terminal
        self._ends_with_stdin = ends_with_stdin
        self._queue: deque[tuple[Channel, bytes]] = deque()
        self._wake = asyncio.Event()
        self._end: asyncio.Future[Answer] | None = None
        self._link: KeeperLink | None = None
        self._request_id = 0
        for file in (*outputs.values(), *([stdin] if stdin >= 0 else [])):
            os.set_blocking(file, False)
        self._update_readers()

    def track_command(self, link: KeeperLink, request_id: int, end: "asyncio.Future[Answer]") -> None:
        """Make this the session of a command. `end` is the keeper's answer, with the exit code."""
        self._link, self._request_id, self._end = link, request_id, end
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
        self._update_readers()
        return item

    async def write(self, data: bytes) -> None:
        """Write to stdin. Wait while it is full. Raises RuntimeRefused if it is closed."""
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
        """End the input. A command with a terminal gets the end-of-file key."""
        if self._stdin < 0:
            return
        # A terminal has no half-close. The shell at its other end treats the key as the end of the input.
        if self._terminal >= 0 and self._end is not None:
            with contextlib.suppress(OSError):
                os.write(self._stdin, b"\x04")
        self._close_stdin_file()
        if self._ends_with_stdin:
            self._close_outputs()

    def resize(self, rows: int, columns: int) -> None:
        """Set the window size of the terminal."""
        if self._terminal >= 0:
            with contextlib.suppress(OSError, struct.error):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """Return the exit code of a command. Raises TryLater if it could not start or its keeper died."""
        if self._end is None:
            raise RuntimeRefused("cannot wait for an exit code: an attached container is not a command")
        # Shield: a cancelled caller must not cancel the future that the link completes.
        answer, _ = await asyncio.shield(self._end)
        return int(answer["code"])

    async def aclose(self) -> None:
        """Close all streams. A running command gets SIGHUP. A container is not affected."""
        if self._end is not None and not self._end.done() and self._link is not None:
            self._link.send_request("hang_up", {"request": self._request_id})
        self._close_stdin_file()
        self._close_outputs()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def _update_readers(self) -> None:
        for channel, file in self._outputs.items():
            if len(self._queue) < _QUEUE_CHUNKS:
                self._loop.add_reader(file, self._read, channel)
            else:
                self._loop.remove_reader(file)

    def _read(self, channel: Channel) -> None:
        data = self._read_chunk(channel)
        if data:
            self._queue.append((channel, data))
            self._wake.set()
            if len(self._queue) >= _QUEUE_CHUNKS:
                self._update_readers()
        elif data is not None:
            self._close(channel)

    def _read_chunk(self, channel: Channel) -> bytes | None:
        try:
            return os.read(self._outputs[channel], _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # a terminal reports EIO when its last user has closed it
            return b""

    def _ended(self, end: "asyncio.Future[Answer]") -> None:
        """Read the rest of a command's output. Do not wait for other processes that still have its files open."""
        if not end.cancelled():
            end.exception()  # mark as retrieved: wait() may never be called
        left = _LAST_BYTES  # a limit, because an orphaned process of the command may write forever
        for channel in tuple(self._outputs):
            while left > 0 and (data := self._read_chunk(channel)):
                self._queue.append((channel, data))
                left -= len(data)
        self._close_outputs()

    def _close_stdin_file(self) -> None:
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
        self._loop.add_writer(self._stdin, _set_done, ready)
        try:
            await ready
        finally:
            if self._stdin >= 0:
                self._loop.remove_writer(self._stdin)


def _set_done(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def open_command(
    link: KeeperLink, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool
) -> Session:
    """Run a command in a container. If it cannot start, `Session.wait()` raises the error."""
    request: Json = {"container": container_id, "argv": list(command), "tty": tty}
    if tty:
        return await _open_terminal_command(link, request, stdin=stdin)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    stdin_end, stdin_file = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
    session = Session({Channel.STDOUT: out, Channel.STDERR: err}, stdin_file)
    session.track_command(link, *link.send_request("exec", request, (stdin_end, out_end, err_end)))
    return session


async def _open_terminal_command(link: KeeperLink, request: Json, *, stdin: bool) -> Session:
    """Run a command with a terminal, which it opens inside the container and sends here."""
    ours, console = socket.socketpair()
    with ours:
        request_id, end = link.send_request("exec", request, (console.detach(),))
        try:
            master = await _receive_terminal(ours)
        except BaseException:  # the caller was cancelled
            end.add_done_callback(_ignore_result)
            link.send_request("hang_up", {"request": request_id})
            raise
    outputs = {} if master < 0 else {Channel.STDOUT: master}
    files = () if master < 0 else (os.dup(master) if stdin else -1, os.dup(master))
    session = Session(outputs, *files)
    session.track_command(link, request_id, end)
    return session


async def _receive_terminal(console: socket.socket) -> int:
    """Return the master of a terminal, -1 if the other end closed."""
    loop = asyncio.get_running_loop()
    console.setblocking(False)
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(console.fileno(), _set_done, ready)
    try:
        await ready
    finally:
        loop.remove_reader(console.fileno())
    return receive_terminal(console)


async def open_attached(link: KeeperLink, container_id: str, *, stdin: bool, timeout_seconds: float) -> Session:
    """Stream a container's output from now on, and its stdin if requested. Raises TryLater."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    request: Json = {"container": container_id, "stdin": stdin}
    try:
        answer, files = await link.call("attach", request, timeout_seconds, (out_end, err_end))
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    file = files[0] if files else -1
    terminal = file if answer["tty"] else -1
    input_file = -1 if not answer["stdin"] else os.dup(file) if answer["tty"] else file
    # As with containerd, the end of the client's input ends the session, unless it is the end of the container's input.
    done = bool(answer["stdin"]) and not answer["once"]
    return Session({Channel.STDOUT: out, Channel.STDERR: err}, input_file, terminal, ends_with_stdin=done)


def _ignore_result(end: "asyncio.Future[Answer]") -> None:
    if not end.cancelled():
        end.exception()
