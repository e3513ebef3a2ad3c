"""Client of the local API, for the command line.

Standard library only, because importing an HTTP library takes longer than the request. All errors are `AskingFailed`
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
ANSWER_SECONDS: Final = 30.0
TURN_SECONDS: Final = 0.5  # timeout of blocking calls, after which Python can handle Ctrl-C
_BLOCK_BYTES: Final = 65536


class AskingFailed(Exception):
    """The request failed, or the agent answered with an error."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class NobodyAnswers(AskingFailed):
    """No agent listens on the socket."""


class LocalClient:
    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, *parts: str, accept: str = "application/json", **query: object) -> Json:
        found: Json = json.loads(self._ask("GET", parts, query, {"Accept": accept}).read())
        return found

    def text(self, *parts: str) -> str:
        return self._ask("GET", parts, {}, {}).read().decode()

    def post(self, *parts: str, **query: object) -> Json:
        """Send a POST request. Returns the changed object."""
        found: Json = json.loads(self._ask("POST", parts, query, {}).read())
        return found

    def stream(self, *parts: str, **query: object) -> Generator[bytes, None, None]:
        """Yield the body in blocks as they arrive. Close the generator to stop early."""
        answer = self._ask("GET", parts, query, {}, endless=True)
        try:
            while block := answer.read1(_BLOCK_BYTES):
                yield block
        except (OSError, http.client.HTTPException) as error:
            raise AskingFailed("lost the connection to the agent") from error
        finally:
            answer.close()

    def talk(self, *parts: str, **query: object) -> "Talk":
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
        conversation = Talk(connected, connected.makefile("rb"))
        try:
            connected.sendall(head.encode())
            conversation.begin(self.path)
        except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
            conversation.close()
            raise AskingFailed(f"the agent at {self.path} did not answer: {error}") from error
        except AskingFailed:
            conversation.close()
            raise
        return conversation

    # ---- helpers ----

    def _ask(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object], headers: dict[str, str], *,
        endless: bool = False,
    ) -> http.client.HTTPResponse:  # fmt: skip
        connection = self._connect(None if endless else ANSWER_SECONDS)
        return self._answer(connection, method, parts, query, {**headers, "Connection": "close"})

    def _connect(self, seconds: float | None) -> "_Connection":
        connection = _Connection(self.path, seconds)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise NobodyAnswers(_why_nobody(self.path, error)) from error
        return connection

    def _answer(
        self,
        connection: "_Connection",
        method: str,
        parts: tuple[str, ...],
        query: Mapping[str, object],
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, _target(parts, query), headers=headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise AskingFailed(f"the agent at {self.path} did not answer: {error}") from error
        if answer.status >= 400:
            raise AskingFailed(_message(answer.read(), f"the agent answered {answer.status}"), answer.status)
        return answer


class Talk:
    """A WebSocket with channels. Several threads may send, one may receive."""

    def __init__(self, connected: socket.socket, file: BinaryIO) -> None:
        self._socket = connected
        self._file = file  # its buffer may hold data that arrived with the answer
        self._saying = threading.Lock()

    def begin(self, path: Path) -> None:
        """Read the answer to the request. Raises AskingFailed if the agent refuses it."""
        status = int(self._file.readline().split()[1])
        headers = http.client.parse_headers(self._file)
        if status != http.client.SWITCHING_PROTOCOLS:
            body = self._file.read(int(headers.get("Content-Length", "0")))
            raise AskingFailed(_message(body, f"the agent at {path} refused the stream ({status})"), status)

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

    def __enter__(self) -> "Talk":
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
        with self._saying:
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
    """Wait with timeouts. A Ctrl-C just before a blocking call would otherwise be handled only after the call."""

    def recv_into(self, *arguments: Any) -> int:
        if self.gettimeout() is None:
            readable = select.poll()
            readable.register(self, select.POLLIN)
            while not readable.poll(TURN_SECONDS * 1000):
                pass
        return super().recv_into(*arguments)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float | None) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _why_nobody(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return f"no agent is running at {path}"
        case PermissionError():
            return f"the agent at {path} belongs to another user"
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
    asked = urlencode([pair for name, value in query.items() for pair in _pairs(name, value)])
    return f"{path}?{asked}" if asked else path


def _message(body: bytes, otherwise: str) -> str:
    """Return the message of an error response, which may be a Status or plain text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or otherwise
