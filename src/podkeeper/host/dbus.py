"""A connection to somebody who speaks D-Bus, over a unix socket: calls go out, answers and signals come in.

    connected(path, heard, lost) -> Connection        .call(...) -> the answer's values

Messages are jeepney's, and so is the way they are written and read; the socket is the event loop's. Nothing waits here
but for answers: whoever calls sets the time (`asyncio.timeout`). A connection that broke stays broken: every call under
way ends with ConnectionError, and so does every further one. No Hello is said: a bus wants one, as its first call.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Parser, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator

GREETING_SECONDS: Final = 10.0

Values = tuple[Any, ...]


class Refused(Exception):
    """The other side says no; `name` is D-Bus' own for the reason."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message or name)
        self.name = name


class Connection(asyncio.Protocol):
    """One connection. `heard` is told each signal by its full name, at once and in order; `lost`, that it broke."""

    def __init__(self, heard: Callable[[str, Values], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._greeting = Authenticator()
        self._parser = Parser()
        self._serials = count(1)
        self._transport: asyncio.WriteTransport | None = None
        self._answers: dict[int, tuple[asyncio.Future[Values], Callable[[Values], None] | None]] = {}
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = True

    async def call(
        self,
        where: tuple[str, str, str],
        method: str,
        signature: str = "",
        *values: Any,
        answered: Callable[[Values], None] | None = None,
    ) -> Values:
        """Call a method; `where` is a name, an object's path and an interface. Raises Refused, ConnectionError.

        `answered` is told the answer before any message that came after it is looked at.
        """
        if not self.is_open or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        name, path, interface = where
        serial = next(self._serials)
        message = new_method_call(DBusAddress(path, name, interface), method, signature or None, values)
        waiting: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        self._answers[serial] = (waiting, answered)
        try:
            self._transport.write(message.serialise(serial))
            return await waiting
        finally:
            self._answers.pop(serial, None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()
        self._end(ConnectionResetError("the connection is closed"))

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, in one breath with what ends the greeting, as systemd's own clients do.

        Said later, the end may reach systemd together with the first call; that call it would leave lying about.
        """
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._greeting.data_to_send() + BEGIN)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        try:
            if not self._greeting.authenticated:
                data = self._greet(data)
            self._parser.add_data(data)
            while (message := self._parser.get_next_message()) is not None:
                self._take(message)
        except (AuthenticationError, ValueError) as error:  # what no longer makes sense will not do so later
            self._end(ConnectionResetError(str(error)))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let those who wait know."""
        self._end(exc if isinstance(exc, ConnectionError) else ConnectionResetError("the other side hung up"))

    def _greet(self, data: bytes) -> bytes:
        """Take the answer to the greeting. Returns what came after it: signals may follow at once."""
        line, end, rest = data.partition(b"\r\n")
        self._greeting.feed(line + end)
        if self._greeting.authenticated and not self.greeted.done():
            self.greeted.set_result(None)
        return rest

    def _take(self, message: Message) -> None:
        fields, kind = message.header.fields, message.header.message_type
        if kind is MessageType.signal:
            name = f"{fields.get(HeaderFields.interface, '')}.{fields.get(HeaderFields.member, '')}"
            self._heard(name, message.body)
            return
        waiting, answered = self._answers.get(fields.get(HeaderFields.reply_serial, 0), (None, None))
        if waiting is None or waiting.done():
            return
        if kind is MessageType.error:
            words = message.body[0] if message.body and isinstance(message.body[0], str) else ""
            waiting.set_exception(Refused(fields.get(HeaderFields.error_name, ""), words))
            return
        if answered is not None:
            answered(message.body)
        waiting.set_result(message.body)

    def _end(self, error: ConnectionError) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for waiting, _ in self._answers.values():
            if not waiting.done():
                waiting.set_exception(error)
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # nobody may be waiting for it any more
        self._lost()


async def connected(path: str, heard: Callable[[str, Values], None], lost: Callable[[], None]) -> Connection:
    """Connect to a socket and say who we are. Raises OSError, TimeoutError among them."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(GREETING_SECONDS):
        _, connection = await loop.create_unix_connection(lambda: Connection(heard, lost), path)
        try:
            await connection.greeted
        except BaseException:
            connection.close()
            raise
    return connection
