"""From the URL that a runtime's answer names to a connection that speaks SPDY/3.1.

    POST /exec/TOKEN, Upgrade: SPDY/3.1, X-Stream-Protocol-Version: what we speak --> 101, and the one it chose

The URL is as good as a key to the container for a minute, and good for one use: it stands in no message and no log.
A runtime that streams over TLS must have a certificate that this machine trusts for the host in the URL, as for the
reference kubelet; one signed by nobody is refused with that reason. The Go ancestors are apimachinery's `util/proxy`
and client-go's `transport/spdy`.
"""

import asyncio
import os
import ssl
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urlsplit

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import join_host_port
from podkeeper.runtimes.cri.streaming.connection import Connection, StreamsLost

PROTOCOL_HEADER: Final = "x-stream-protocol-version"
OPEN_SECONDS: Final = 30.0
_MAX_ANSWER_BYTES: Final = 16 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_PORTS: Final = {"http": 80, "https": 443}


async def open_connection(url: str, protocol: str, *, tls: ssl.SSLContext | None = None) -> Connection:
    """Connect and speak a protocol. Raises RuntimeRefused with the runtime's words, StreamsLost."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            return await _open(urlsplit(url), protocol, tls)
    except TimeoutError:
        raise StreamsLost(f"cannot open streams: the runtime did not answer within {OPEN_SECONDS:g} s") from None
    except ValueError as error:
        raise RuntimeRefused(f"cannot understand the address for streams that the runtime names: {error}") from None


async def _open(url: SplitResult, protocol: str, tls: ssl.SSLContext | None) -> Connection:
    if url.scheme not in _PORTS or not url.hostname:
        raise RuntimeRefused(f"cannot open streams: the runtime names a {url.scheme or 'nameless'!r} address")
    port = url.port or _PORTS[url.scheme]
    context = (tls or ssl.create_default_context()) if url.scheme == "https" else None
    place = join_host_port(url.hostname, port)
    try:
        transport, answer = await asyncio.get_running_loop().create_connection(_Answer, url.hostname, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise RuntimeRefused(
            f"cannot open streams: the certificate of the runtime's streaming server at {place} is not trusted "
            f"({error.verify_message}); turn its TLS off (it listens on loopback), or have this machine trust it"
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own words say less
        raise StreamsLost(f"cannot reach the runtime's streaming server at {place}: {why}") from None
    try:
        transport.write(_question(url, place, protocol))
        chosen = await answer.protocol(place)
        if chosen != protocol:
            raise RuntimeRefused(f"cannot open streams: the runtime wants to speak {chosen!r}, not {protocol!r}")
        connection = Connection(transport)
        transport.set_protocol(connection)
        connection.data_received(answer.rest())
        if answer.is_over:
            connection.connection_lost(None)  # nobody else would tell it any more
        return connection
    except BaseException:
        transport.abort()
        raise


def _question(url: SplitResult, place: str, protocol: str) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {place}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        f"{PROTOCOL_HEADER}: {protocol}\r\nContent-Length: 0\r\n\r\n"
    )
    return head.encode("ascii")


class _Answer(asyncio.Protocol):
    """Gathers the answer to the request; what comes after it is for the connection."""

    def __init__(self) -> None:
        self._came = bytearray()
        self.is_over = False
        self._news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._news.set()

    async def protocol(self, place: str) -> str:
        """The protocol that the runtime chose. Raises RuntimeRefused with its words, StreamsLost."""
        while (end := self._came.find(_HEAD_END)) < 0 and len(self._came) < _MAX_ANSWER_BYTES:
            await self._more(place)
        status, headers = _parsed(bytes(self._came[: max(end, 0)]), place)
        del self._came[: end + len(_HEAD_END)]
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            return headers.get(PROTOCOL_HEADER, "")
        length = headers.get("content-length", "")
        while len(self._came) < min(int(length) if length.isdigit() else 0, _MAX_ANSWER_BYTES):
            await self._more(place)
        words = self._came.decode(errors="replace").strip()
        raise RuntimeRefused(words or f"cannot open streams: the runtime answered {status}")

    def rest(self) -> bytes:
        """What came after the answer."""
        return bytes(self._came)

    async def _more(self, place: str) -> None:
        if self.is_over:
            raise StreamsLost(f"cannot open streams: {place} closed the connection before it answered")
        self._news.clear()
        await self._news.wait()


def _parsed(head: bytes, place: str) -> tuple[int, dict[str, str]]:
    """The status and the headers, names in lower case. Raises StreamsLost when it is no HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise StreamsLost(f"cannot open streams: what came from {place} is no HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
