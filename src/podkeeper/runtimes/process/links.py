"""The agent's end of the line to a keeper: questions with answers, events, files that travel along.

Nothing blocks: the socket is read and written when the loop says that it can be. A link that breaks fails every
question that is still open, and says so once. See `keeper.protocol` for what is said.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.protocol import Inbox, encode, send_with


class LinkLost(RuntimeUnavailable):
    """The keeper is gone, or does not speak with us any more."""


class LaunchRefused(RuntimeRefused):
    """The keeper could not start a process; the message says why."""


class UnknownToKeeper(RuntimeRefused):
    """The keeper has no such container."""


_KINDS: dict[str, type[RuntimeRefused]] = {"launch": LaunchRefused, "unknown": UnknownToKeeper}

Answer = tuple[Json, list[int]]


class Link:
    """A connection with a keeper."""

    def __init__(
        self, connection: socket.socket, name: str, hear: Callable[[Json], None], lost: Callable[[], None]
    ) -> None:
        """`name` is the pod's, for messages; `hear` is told events, `lost` that the line is broken."""
        connection.setblocking(False)
        self._socket = connection
        self._name = name
        self._hear = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox()
        self._outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._closed = False
        self._loop.add_reader(connection.fileno(), self._read)

    async def ask(self, do: str, what: Json, timeout_seconds: float, files: Sequence[int] = ()) -> Answer:
        """Ask, and wait for the answer. Files given are closed here, those that come are the caller's.

        Raises CallTimedOut, LinkLost, or what the keeper refused with.
        """
        _, answer = self.begin(do, what, files)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except asyncio.CancelledError:
            _discard(answer)
            raise
        except TimeoutError as error:
            _discard(answer)
            text = f"cannot {do} in pod {self._name}: its keeper gave no answer within {timeout_seconds:g} s"
            raise CallTimedOut(text) from error

    def begin(self, do: str, what: Json, files: Sequence[int] = ()) -> tuple[int, "asyncio.Future[Answer]"]:
        """Ask, and wait later. Returns the question's number too, by which it can be named."""
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self._closed:
            _close_all(files)
            answer.set_exception(self._gone())
            answer.exception()  # somebody may not want to know
            return number, answer
        self._open[number] = answer
        message: Json = {"id": number, "do": do, **what}
        if files:
            message["fds"] = len(files)
        self._outbox.append((encode(message), files))
        self._write()
        return number, answer

    def close(self) -> None:
        """Hang up; the keeper does not mind."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._inbox.close()
        for _, files in self._outbox:
            _close_all(files)
        self._outbox.clear()
        questions, self._open = self._open, {}
        for answer in questions.values():
            if not answer.done():
                answer.set_exception(self._gone())
                answer.exception()  # somebody may have stopped waiting

    def _break(self) -> None:
        if not self._closed:
            self.close()
            self._lost()

    def _write(self) -> None:
        try:
            while self._outbox:
                data, files = self._outbox[0]
                sent = send_with(self._socket, data, files)
                _close_all(files)
                if sent < len(data):
                    self._outbox[0] = data[sent:], ()
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError:
            self._loop.call_soon(self._break)
            return
        self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        messages = self._inbox.receive(self._socket)
        if messages is None:
            self._break()
            return
        for message, files in messages:
            if "event" in message:
                self._hear(message)
            else:
                self._answered(message, files)

    def _answered(self, message: Json, files: list[int]) -> None:
        answer = self._open.pop(message.get("id", 0), None)
        if answer is None or answer.done():
            _close_all(files)
        elif "error" in message:
            answer.set_exception(_KINDS.get(message.get("kind", ""), RuntimeRefused)(message["error"]))
        else:
            answer.set_result((message.get("ok", {}), files))

    def _gone(self) -> LinkLost:
        return LinkLost(f"cannot reach the keeper of pod {self._name}: the connection is closed")


def _discard(answer: "asyncio.Future[Answer]") -> None:
    """Close the files of an answer that arrived in the same turn of the loop in which the caller stopped waiting."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        _close_all(answer.result()[1])


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
