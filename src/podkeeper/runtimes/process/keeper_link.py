"""The agent's end of the connection to a keeper.

It carries requests, answers, events and file descriptors.

Nothing blocks: the event loop reports when the socket is readable or writable. If the connection breaks, every pending
request fails and `on_lost` is called once. `keeper.protocol` describes the messages.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.protocol import MessageBuffer, encode, send_with_files


class KeeperUnreachable(RuntimeUnavailable):
    """The connection to the keeper is closed, because it died or because the agent closed it."""


class LaunchFailed(RuntimeRefused):
    """The keeper could not start a process. The message gives the reason."""


class ContainerNotFound(RuntimeRefused):
    """The keeper has no such container."""


_ERRORS_BY_KIND: dict[str, type[RuntimeRefused]] = {"launch": LaunchFailed, "unknown": ContainerNotFound}

Answer = tuple[Json, list[int]]


class KeeperLink:
    def __init__(
        self, connection: socket.socket, name: str, on_event: Callable[[Json], None], on_lost: Callable[[], None]
    ) -> None:
        """`name` is the pod's name, for errors. `on_lost` is called if the connection breaks."""
        connection.setblocking(False)
        self._socket = connection
        self._name = name
        self._on_event = on_event
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._buffer = MessageBuffer()
        self._outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self._ids = count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._closed = False
        self._loop.add_reader(connection.fileno(), self._read)

    async def call(self, do: str, fields: Json, timeout_seconds: float, files: Sequence[int] = ()) -> Answer:
        """Send a request and wait for the answer. Closes `files` here. The caller owns the files in the answer.

        Raises CallTimedOut, KeeperUnreachable, or the keeper's error.
        """
        _, answer = self.send_request(do, fields, files)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except asyncio.CancelledError:
            # The answer may arrive in the same iteration of the loop in which the caller is cancelled. With an open
            # copy, the stdin of a container with `stdinOnce` would never end.
            _close_files_of(answer)
            raise
        except TimeoutError as error:
            _close_files_of(answer)
            text = f"cannot {do} in pod {self._name}: its keeper did not answer within {timeout_seconds:g} s"
            raise CallTimedOut(text) from error

    def send_request(self, do: str, fields: Json, files: Sequence[int] = ()) -> tuple[int, "asyncio.Future[Answer]"]:
        """Send a request. Return its ID and a future for the answer. Closes `files` here."""
        request_id = next(self._ids)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self._closed:
            _close_all(files)
            answer.set_exception(self._closed_error())
            answer.exception()  # mark as retrieved: the caller may not await it
            return request_id, answer
        self._pending[request_id] = answer
        message: Json = {"id": request_id, "do": do, **fields}
        if files:
            message["fds"] = len(files)
        self._outbox.append((encode(message), files))
        self._write()
        return request_id, answer

    def close(self) -> None:
        """Close the connection and fail all pending requests. The keeper keeps running."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._buffer.close()
        for _, files in self._outbox:
            _close_all(files)
        self._outbox.clear()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(self._closed_error())
                answer.exception()  # mark as retrieved: the caller may have stopped waiting

    def _break(self) -> None:
        if not self._closed:
            self.close()
            self._on_lost()

    def _write(self) -> None:
        try:
            while self._outbox:
                data, files = self._outbox[0]
                sent = send_with_files(self._socket, data, files)
                _close_all(files)
                if sent < len(data):
                    self._outbox[0] = data[sent:], ()
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError:
            # Later, so that `on_lost` does not run inside the call of the sender.
            self._loop.call_soon(self._break)
            return
        self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        messages = self._buffer.receive(self._socket)
        if messages is None:
            self._break()
            return
        for message, files in messages:
            if "event" in message:
                self._on_event(message)
            else:
                self._resolve(message, files)

    def _resolve(self, message: Json, files: list[int]) -> None:
        answer = self._pending.pop(message.get("id", 0), None)
        if answer is None or answer.done():
            _close_all(files)
        elif "error" in message:
            answer.set_exception(_ERRORS_BY_KIND.get(message.get("kind", ""), RuntimeRefused)(message["error"]))
        else:
            answer.set_result((message.get("ok", {}), files))

    def _closed_error(self) -> KeeperUnreachable:
        return KeeperUnreachable(f"cannot reach the keeper of pod {self._name}: the connection is closed")


def _close_files_of(answer: "asyncio.Future[Answer]") -> None:
    """Close the files of an answer that arrived just when the caller stopped waiting."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        _close_all(answer.result()[1])


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
