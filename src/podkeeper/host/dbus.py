"""A D-Bus connection over a unix socket: method calls, and signals from the peer.

    connect(path, on_signal, on_lost) -> DBusConnection        .call(...) -> the values of the reply

jeepney encodes and decodes the messages. The socket belongs to the event loop. Calls have no timeout, so the caller
sets one (`asyncio.timeout`). A broken connection stays broken: all pending and later calls raise ConnectionError.
`connect` does not send `Hello`. On a message bus, the caller must send it first.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Parser, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator

AUTHENTICATION_SECONDS: Final = 10.0

Values = tuple[Any, ...]


class DBusError(Exception):
    """An error reply. `name` is the D-Bus name of the error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message or name)
        self.name = name


class DBusConnection(asyncio.Protocol):
    """One connection.

    `on_signal` is called with the full name and the values of each signal, immediately and in order.
    `on_lost` is called when the connection breaks.
    """

    def __init__(self, on_signal: Callable[[str, Values], None], on_lost: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._on_lost = on_lost
        self._authenticator = Authenticator()
        self._parser = Parser()
        self._serials = count(1)
        self._transport: asyncio.WriteTransport | None = None
        self._replies: dict[int, tuple[asyncio.Future[Values], Callable[[Values], None] | None]] = {}
        self.authenticated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = True

    async def call(
        self,
        target: tuple[str, str, str],
        method: str,
        signature: str = "",
        *values: Any,
        on_reply: Callable[[Values], None] | None = None,
    ) -> Values:
        """Call a method. `target` is a bus name, an object path and an interface. Raises DBusError, ConnectionError.

        `on_reply` is called with the reply before later messages are handled.
        """
        if not self.is_open or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        name, path, interface = target
        serial = next(self._serials)
        message = new_method_call(DBusAddress(path, name, interface), method, signature or None, values)
        reply: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        self._replies[serial] = (reply, on_reply)
        try:
            self._transport.write(message.serialise(serial))
            return await reply
        finally:
            self._replies.pop(serial, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._end(ConnectionResetError("the connection is closed"))

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        # Send BEGIN together with the authentication, as systemd's own clients do. If systemd receives BEGIN together
        # with the first call, it does not handle that call.
        transport.write(self._authenticator.data_to_send() + BEGIN)

    def data_received(self, data: bytes) -> None:
        try:
            if not self._authenticator.authenticated:
                data = self._authenticate(data)
            self._parser.add_data(data)
            while (message := self._parser.get_next_message()) is not None:
                self._handle(message)
        except (AuthenticationError, ValueError) as error:  # the stream cannot be parsed any further
            self._end(ConnectionResetError(str(error)))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc if isinstance(exc, ConnectionError) else ConnectionResetError("the peer closed the connection"))

    def _authenticate(self, data: bytes) -> bytes:
        """Handle the authentication reply. Return the data after it, because signals may follow immediately."""
        line, end, rest = data.partition(b"\r\n")
        self._authenticator.feed(line + end)
        if self._authenticator.authenticated and not self.authenticated.done():
            self.authenticated.set_result(None)
        return rest

    def _handle(self, message: Message) -> None:
        fields, kind = message.header.fields, message.header.message_type
        if kind is MessageType.signal:
            name = f"{fields.get(HeaderFields.interface, '')}.{fields.get(HeaderFields.member, '')}"
            self._on_signal(name, message.body)
            return
        reply, on_reply = self._replies.get(fields.get(HeaderFields.reply_serial, 0), (None, None))
        if reply is None or reply.done():
            return
        if kind is MessageType.error:
            text = message.body[0] if message.body and isinstance(message.body[0], str) else ""
            reply.set_exception(DBusError(fields.get(HeaderFields.error_name, ""), text))
            return
        if on_reply is not None:
            # Before the waiting task runs, because the next message may already be in the same read.
            on_reply(message.body)
        reply.set_result(message.body)

    def _end(self, error: ConnectionError) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for reply, _ in self._replies.values():
            if not reply.done():
                reply.set_exception(error)
        if not self.authenticated.done():
            self.authenticated.set_exception(error)
            self.authenticated.exception()  # mark it as retrieved, because `connect` may have been cancelled
        self._on_lost()


async def connect(path: str, on_signal: Callable[[str, Values], None], on_lost: Callable[[], None]) -> DBusConnection:
    """Connect to a socket and authenticate. Raises OSError, including TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(AUTHENTICATION_SECONDS):
        _, connection = await loop.create_unix_connection(lambda: DBusConnection(on_signal, on_lost), path)
        try:
            await connection.authenticated
        except BaseException:
            connection.close()
            raise
    return connection
