"""How agent and keeper speak: one JSON object per line, files travel beside the lines.

    agent -> keeper   {"id": 7, "do": "stop", "container": "...", "grace": 30}
    keeper -> agent   {"id": 7, "ok": {...}}   or   {"id": 7, "error": "why not", "kind": "launch"}
    keeper -> agent   {"event": "exited", "container": {...}}     to every connection, before the answer it goes with

A line that says `"fds": n` takes the next n files that came over the socket. Answers may come in any order. This file
is the keeper's side, which never waits; the agent has its own on top of asyncio and shares `encode` and `Inbox`.
"""

import array
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.loop import Loop

CHUNK_BYTES: Final = 65536
MAX_FILES: Final = 8
MAX_BACKLOG_BYTES: Final = 4 * 2**20
"""Who does not read so much is cut off: it may come again and ask how things are."""


class Garbled(Exception):
    """The other side does not speak this protocol."""


def encode(message: Json) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def send_with(connection: socket.socket, data: bytes, files: Sequence[int]) -> int:
    """Send what fits; the files go with the first byte."""
    if not files:
        return connection.send(data)
    return connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])


class Inbox:
    """What has come over a socket: bytes in, messages with their files out."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._files: deque[int] = deque()

    def receive(self, connection: socket.socket) -> list[tuple[Json, list[int]]] | None:
        """Whole messages, perhaps none; None: the other side is gone, or talks nonsense."""
        try:
            data, ancillary, _, _ = connection.recvmsg(CHUNK_BYTES, socket.CMSG_SPACE(4 * MAX_FILES))
        except BlockingIOError:
            return []
        except OSError:
            return None
        for level, kind, files in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(files[: len(files) - len(files) % numbers.itemsize])
                self._files.extend(numbers)
        if not data:
            return None
        try:
            return [self._message(line) for line in self._lines(data)]
        except Garbled:
            return None

    def close(self) -> None:
        """Let go of files that nobody asked for."""
        while self._files:
            os.close(self._files.popleft())

    def _lines(self, data: bytes) -> list[bytes]:
        self._parts.append(data)
        if b"\n" not in data:
            return []
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest] if rest else []
        return lines

    def _message(self, line: bytes) -> tuple[Json, list[int]]:
        try:
            message = json.loads(line)
            files = [self._files.popleft() for _ in range(message.get("fds", 0))]
        except (ValueError, AttributeError, TypeError, IndexError) as error:
            raise Garbled(f"{line[:80]!r}: {error}") from error
        return message, files


class Connection:
    """One agent that a keeper is connected with."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        handle: "Callable[[Connection, Json, list[int]], None]",
        gone: "Callable[[Connection], None]",
    ) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._socket = connection
        self._writer = -1  # a second name for the socket while we wait to write
        self._handle = handle
        self._gone = gone
        self._inbox = Inbox()
        self._backlog = b""
        self.closed = False
        loop.on_readable(connection.fileno(), self._read)

    def send(self, message: Json, files: Sequence[int] = ()) -> None:
        """Say something. What does not fit now waits; who does not listen at all is cut off."""
        if self.closed:
            return
        data = encode(message)
        try:
            if not self._backlog:
                data = data[send_with(self._socket, data, files) :]
                files = ()
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        self._backlog += data
        if files or len(self._backlog) > MAX_BACKLOG_BYTES:  # files cannot wait
            self._close()
        elif self._backlog and self._writer < 0:
            try:
                self._writer = os.dup(self._socket.fileno())
            except OSError:  # too many files are open
                self._close()
            else:
                self._loop.on_writable(self._writer, self._flush)

    def answer(self, to: Json, value: Json | None = None, files: Sequence[int] = ()) -> None:
        """Say that it is done."""
        message: Json = {"id": to.get("id"), "ok": value or {}}
        self.send({**message, "fds": len(files)} if files else message, files)

    def refuse(self, to: Json, error: str, kind: str = "refused") -> None:
        """Say why it cannot be done."""
        self.send({"id": to.get("id"), "error": error, "kind": kind})

    @property
    def backlog(self) -> int:
        """How much waits to be sent."""
        return len(self._backlog)

    def _flush(self) -> None:
        try:
            self._backlog = self._backlog[self._socket.send(self._backlog) :]
        except BlockingIOError:
            return
        except OSError:
            self._close()
            return
        if not self._backlog:
            self._stop_writing()

    def _read(self) -> None:
        messages = self._inbox.receive(self._socket)
        if messages is None:
            self._close()
            return
        for message, files in messages:
            self._handle(self, message, files)

    def _stop_writing(self) -> None:
        if self._writer >= 0:
            self._loop.forget(self._writer)
            os.close(self._writer)
            self._writer = -1

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stop_writing()
        self._loop.forget(self._socket.fileno())
        self._inbox.close()
        with contextlib.suppress(OSError):
            self._socket.close()
        self._gone(self)
