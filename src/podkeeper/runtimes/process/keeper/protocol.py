"""The protocol between agent and keeper: JSON lines and file descriptors.

    agent -> keeper   {"id": 7, "do": "stop", "container": "...", "grace": 30}
    keeper -> agent   {"id": 7, "ok": {...}}   or   {"id": 7, "error": "reason", "kind": "launch"}
    keeper -> agent   {"event": "exited", "container": {...}}     to all connections, before the answer that it causes

A line with `"fds": n` belongs to the next n files from the socket. Answers may come in any order. A keeper may be
older or newer than its agent, so the format must stay compatible. This is the keeper's side, which never blocks. The
agent's side (`keeper_link`) shares `encode` and `MessageBuffer`.
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
"""An agent with a larger backlog is disconnected. It may reconnect and request the state."""


class ProtocolError(Exception):
    """The other side sent a message that does not follow the protocol."""


def encode(message: Json) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def send_with_files(connection: socket.socket, data: bytes, files: Sequence[int]) -> int:
    """Send as much as fits and return its size. The files go with the first byte."""
    if not files:
        return connection.send(data)
    return connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])


class MessageBuffer:
    """Splits the bytes from a socket into messages, each with its files."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._files: deque[int] = deque()

    def receive(self, connection: socket.socket) -> list[tuple[Json, list[int]]] | None:
        """Return the complete messages, possibly none. Return None if the socket closed or a message is invalid."""
        try:
            data, ancillary, _, _ = connection.recvmsg(CHUNK_BYTES, socket.CMSG_SPACE(4 * MAX_FILES))
        except BlockingIOError:
            return []
        except OSError:
            return None
        for level, kind, files in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                # The kernel may cut the list if it does not fit, in the middle of a number.
                numbers.frombytes(files[: len(files) - len(files) % numbers.itemsize])
                self._files.extend(numbers)
        if not data:
            return None
        try:
            return [self._message(line) for line in self._lines(data)]
        except ProtocolError:
            return None

    def close(self) -> None:
        """Close files that no message has taken."""
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
            raise ProtocolError(f"{line[:80]!r}: {error}") from error
        return message, files


class AgentConnection:
    """The keeper's connection to one agent."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        on_message: "Callable[[AgentConnection, Json, list[int]], None]",
        on_close: "Callable[[AgentConnection], None]",
    ) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._socket = connection
        self._writer = -1  # a duplicate of the socket's descriptor while we wait to write
        self._on_message = on_message
        self._on_close = on_close
        self._buffer = MessageBuffer()
        self._backlog = b""
        self.closed = False
        loop.on_readable(connection.fileno(), self._read)

    def send(self, message: Json, files: Sequence[int] = ()) -> None:
        """Send a message. Queue what does not fit now, and disconnect an agent that does not read."""
        if self.closed:
            return
        data = encode(message)
        try:
            if not self._backlog:
                data = data[send_with_files(self._socket, data, files) :]
                files = ()
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        self._backlog += data
        if files or len(self._backlog) > MAX_BACKLOG_BYTES:  # files cannot be queued
            self._close()
        elif self._backlog and self._writer < 0:
            try:
                self._writer = os.dup(self._socket.fileno())
            except OSError:  # too many open files
                self._close()
            else:
                self._loop.on_writable(self._writer, self._flush)

    def answer(self, to: Json, value: Json | None = None, files: Sequence[int] = ()) -> None:
        """Report success."""
        message: Json = {"id": to.get("id"), "ok": value or {}}
        self.send({**message, "fds": len(files)} if files else message, files)

    def refuse(self, to: Json, error: str, kind: str = "refused") -> None:
        """Report an error."""
        self.send({"id": to.get("id"), "error": error, "kind": kind})

    @property
    def backlog(self) -> int:
        """The number of bytes that wait to be sent."""
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
        messages = self._buffer.receive(self._socket)
        if messages is None:
            self._close()
            return
        for message, files in messages:
            self._on_message(self, message, files)

    def _stop_writing(self) -> None:
        if self._writer >= 0:
            self._loop.unregister(self._writer)
            os.close(self._writer)
            self._writer = -1

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stop_writing()
        self._loop.unregister(self._socket.fileno())
        self._buffer.close()
        with contextlib.suppress(OSError):
            self._socket.close()
        self._on_close(self)
