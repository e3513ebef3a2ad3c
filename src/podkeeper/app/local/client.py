"""Client of the local API, for the command line.

Standard library only, because importing an HTTP library takes longer than the request. All errors are `RequestFailed`
with a message for the user.
"""

import base64
import contextlib
import http.client
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode

Json = dict[str, Any]

TABLE_ACCEPTED: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PROTOCOL: Final = "v5.channel.k8s.io"
TIMEOUT_SECONDS: Final = 30.0
INTERRUPT_CHECK_SECONDS: Final = 0.5  # timeout of blocking calls, after which Python can handle Ctrl-C
_BLOCK_BYTES: Final = 65536


class RequestFailed(Exception):
    """The request failed, or the agent answered with an error."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class AgentNotRunning(RequestFailed):
    """No agent listens on the socket."""


class LocalClient:
    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, *parts: str, accept: str = "application/json", **query: object) -> Json:
        found: Json = json.loads(self._request("GET", parts, query, {"Accept": accept}).read())
        return found

    def text(self, *parts: str) -> str:
        return self._request("GET", parts, {}, {}).read().decode()

    def post(self, *parts: str, **query: object) -> Json:
        """Send a POST request. Returns the changed object."""
        found: Json = json.loads(self._request("POST", parts, query, {}).read())
        return found

    def stream(self, *parts: str, **query: object) -> Generator[bytes, None, None]:
        """Yield the body in blocks as they arrive. Close the generator to stop early."""
        response = self._request("GET", parts, query, {}, endless=True)
        try:
            while block := response.read1(_BLOCK_BYTES):
                yield block
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed("lost the connection to the agent") from error
        finally:
            response.close()

    def open_channels(self, *parts: str, **query: object) -> "ChannelSocket":
        """Open a WebSocket."""
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {_target(parts, query)} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
        )
        connection = self._connect(None)
        assert connection.sock is not None
        # Parse the answer here, because http.client closes the connection after a protocol switch.
        connected = connection.sock
        channels = ChannelSocket(connected, connected.makefile("rb"))
        try:
            connected.sendall(head.encode())
            channels.read_handshake(self.path)
        except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
            channels.close()
            raise RequestFailed(f"the agent at {self.path} did not answer: {error}") from error
        except RequestFailed:
            channels.close()
            raise
        return channels

    # ---- helpers ----

    def _request(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object], headers: dict[str, str], *,
        endless: bool = False,
    ) -> http.client.HTTPResponse:  # fmt: skip
        connection = self._connect(None if endless else TIMEOUT_SECONDS)
        return self._response(connection, method, parts, query, {**headers, "Connection": "close"})

    def _connect(self, seconds: float | None) -> "_UnixHttpConnection":
        connection = _UnixHttpConnection(self.path, seconds)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise AgentNotRunning(_connect_error(self.path, error)) from error
        return connection

    def _response(
        self,
        connection: "_UnixHttpConnection",
        method: str,
        parts: tuple[str, ...],
        query: Mapping[str, object],
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, _target(parts, query), headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(f"the agent at {self.path} did not answer: {error}") from error
        if response.status >= 400:
            raise RequestFailed(_message(response.read(), f"the agent answered {response.status}"), response.status)
        return response


class ChannelSocket:
    """A WebSocket with channels. Several threads may send, one may receive."""

    def __init__(self, connected: socket.socket, file: BinaryIO) -> None:
        self._socket = connected
        self._file = file  # its buffer may hold data that arrived with the answer
        self._send_lock = threading.Lock()

    def read_handshake(self, path: Path) -> None:
        """Read the response to the request. Raises RequestFailed if the agent refuses it."""
        status = int(self._file.readline().split()[1])
        headers = http.client.parse_headers(self._file)
        if status != http.client.SWITCHING_PROTOCOLS:
            body = self._file.read(int(headers.get("Content-Length", "0")))
            raise RequestFailed(_message(body, f"the agent at {path} refused the stream ({status})"), status)

    def send(self, channel: int, data: bytes) -> None:
        self._send_frame(0x2, bytes([channel]) + data)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield messages until the agent closes the connection."""
        while (frame := self._frame()) is not None:
            kind, data = frame
            if kind == 0x8:
                return
            if kind == 0x9:
                self._send_frame(0xA, data)
            elif kind == 0x2 and data:
                yield data[0], data[1:]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the agent may have closed it before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()

    def __enter__(self) -> "ChannelSocket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send_frame(self, kind: int, data: bytes) -> None:
        length = len(data)
        if length < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | length)
        elif length < 65536:
            head = struct.pack("!BBH", 0x80 | kind, 0xFE, length)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0xFF, length)
        # A mask of zeros is enough, because masks only protect against proxies and a unix socket has none.
        with self._send_lock:
            self._socket.sendall(head + bytes(4) + data)

    def _frame(self) -> tuple[int, bytes] | None:
        """Return one message, assembled from its frames. None if the agent has closed the connection."""
        parts: list[bytes] = []
        first = 0
        while True:
            head = self._file.read(2)
            if len(head) < 2:
                return None
            kind, length = head[0] & 0x0F, head[1] & 0x7F
            if length >= 126:
                format_ = "!H" if length == 126 else "!Q"
                (length,) = struct.unpack(format_, self._file.read(struct.calcsize(format_)))
            data = self._file.read(length)
            if kind >= 0x8:
                return kind, data
            first = kind or first
            parts.append(data)
            if head[0] & 0x80:
                return first, b"".join(parts)


class _Socket(socket.socket):
    """Wait with timeouts. Otherwise a Ctrl-C just before a blocking call would be handled only after the call."""

    def recv_into(self, *arguments: Any) -> int:
        if self.gettimeout() is None:
            readable = select.poll()
            readable.register(self, select.POLLIN)
            while not readable.poll(INTERRUPT_CHECK_SECONDS * 1000):
                pass
        return super().recv_into(*arguments)


class _UnixHttpConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float | None) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _connect_error(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return f"no agent is running at {path}"
        case PermissionError():
            return f"cannot connect to {path}: permission denied; the agent belongs to another user"
        case _:
            return f"cannot connect to {path}: {error.strerror or error}"


def _pairs(name: str, value: object) -> list[tuple[str, str]]:
    match value:
        case None | False:
            return []
        case True:
            return [(name, "true")]
        case list() | tuple():
            return [(name, str(each)) for each in value]
        case _:
            return [(name, str(value))]


def _target(parts: tuple[str, ...], query: Mapping[str, object]) -> str:
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    encoded = urlencode([pair for name, value in query.items() for pair in _pairs(name, value)])
    return f"{path}?{encoded}" if encoded else path


def _message(body: bytes, default: str) -> str:
    """Return the message of an error response, which may be a Status or plain text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or default
