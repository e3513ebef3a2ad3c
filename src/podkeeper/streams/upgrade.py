"""Open a SPDY/3.1 connection to the URL that a runtime returned.

    POST /exec/TOKEN, Upgrade: SPDY/3.1, X-Stream-Protocol-Version: ours --> 101 and the chosen version

The URL is a secret and does not appear in messages or logs. If the runtime streams over TLS, this machine must trust
its certificate for the host in the URL, as for the kubelet. A self-signed certificate is refused with that reason. Go
counterparts: apimachinery's `util/proxy`, client-go's `transport/spdy`.
"""

import asyncio
import os
import ssl
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urlsplit

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import join_host_port
from podkeeper.streams.connection import SpdyConnection, StreamsLost

PROTOCOL_HEADER: Final = "x-stream-protocol-version"
OPEN_SECONDS: Final = 30.0
# A bound for a server that never ends its headers.
_MAX_ANSWER_BYTES: Final = 16 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_PORTS: Final = {"http": 80, "https": 443}


async def open_connection(url: str, protocol: str, *, tls: ssl.SSLContext | None = None) -> SpdyConnection:
    """Connect with a stream protocol. Raises RuntimeRefused with the runtime's message, StreamsLost."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            return await _open(urlsplit(url), protocol, tls)
    except TimeoutError:
        raise StreamsLost(f"cannot open streams: the runtime did not answer within {OPEN_SECONDS:g} s") from None
    except ValueError as error:
        raise RuntimeRefused(f"cannot open streams: the runtime returned an invalid URL: {error}") from None


async def _open(url: SplitResult, protocol: str, tls: ssl.SSLContext | None) -> SpdyConnection:
    if url.scheme not in _PORTS or not url.hostname:
        raise RuntimeRefused(
            f"cannot open streams: the runtime returned a URL with scheme {url.scheme!r}, expected http or https"
        )
    port = url.port or _PORTS[url.scheme]
    context = (tls or ssl.create_default_context()) if url.scheme == "https" else None
    # Messages show only this. The whole URL gives access to the container, once and within one minute.
    place = join_host_port(url.hostname, port)
    try:
        transport, answer = await asyncio.get_running_loop().create_connection(
            _UpgradeResponse, url.hostname, port, ssl=context
        )
    except ssl.SSLCertVerificationError as error:
        raise RuntimeRefused(
            f"cannot open streams: the certificate of the runtime's streaming server at {place} is not trusted "
            f"({error.verify_message}); disable TLS of the streaming server (it listens on loopback), or add its "
            "certificate to the trust store of this machine"
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's message has less detail
        raise StreamsLost(f"cannot reach the runtime's streaming server at {place}: {why}") from None
    try:
        transport.write(_upgrade_request(url, place, protocol))
        chosen = await answer.protocol(place)
        if chosen != protocol:
            raise RuntimeRefused(f"cannot open streams: the runtime chose protocol {chosen!r}, expected {protocol!r}")
        connection = SpdyConnection(transport)
        # Before the bytes that came with the response: nothing may arrive in between.
        transport.set_protocol(connection)
        connection.data_received(answer.rest())
        if answer.is_over:
            connection.connection_lost(None)  # the transport reported it to the old protocol
        return connection
    except BaseException:
        transport.abort()
        raise


def _upgrade_request(url: SplitResult, place: str, protocol: str) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {place}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        f"{PROTOCOL_HEADER}: {protocol}\r\nContent-Length: 0\r\n\r\n"
    )
    return head.encode("ascii")


class _UpgradeResponse(asyncio.Protocol):
    """Receive the HTTP response. Bytes after it belong to the SPDY connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.is_over = False
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._changed.set()

    async def protocol(self, place: str) -> str:
        """Return the protocol that the runtime chose. Raises RuntimeRefused with its message, StreamsLost."""
        while (end := self._received.find(_HEAD_END)) < 0 and len(self._received) < _MAX_ANSWER_BYTES:
            await self._read_more(place)
        status, headers = _parsed(bytes(self._received[: max(end, 0)]), place)
        del self._received[: end + len(_HEAD_END)]
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            return headers.get(PROTOCOL_HEADER, "")
        length = headers.get("content-length", "")
        while len(self._received) < min(int(length) if length.isdigit() else 0, _MAX_ANSWER_BYTES):
            await self._read_more(place)
        message = self._received.decode(errors="replace").strip()
        raise RuntimeRefused(message or f"cannot open streams: the runtime answered {status}")

    def rest(self) -> bytes:
        return bytes(self._received)

    async def _read_more(self, place: str) -> None:
        if self.is_over:
            raise StreamsLost(f"cannot open streams: {place} closed the connection without a response")
        self._changed.clear()
        await self._changed.wait()


def _parsed(head: bytes, place: str) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, with names in lower case. Raises StreamsLost if it is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    message = first.split(maxsplit=2)
    if len(message) < 2 or not message[0].startswith("HTTP/1.") or not message[1].isdigit():
        raise StreamsLost(f"cannot open streams: the response of {place} is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(message[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
