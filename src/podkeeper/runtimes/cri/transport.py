"""gRPC calls to a runtime, behind two methods.

All other modules use only these two methods, so another library can replace grpcio.

    unary(method, request, response type, deadline) -> the response
    stream(method, request, response type)          -> responses, until one side ends the stream

Errors: `RuntimeUnavailable` (no connection), `CallTimedOut` (the call may have taken effect), `Unimplemented` (the
runtime does not have this call), `ObjectNotFound`, and `RuntimeRefused` with the runtime's message for all others.
Kubelet counterpart: cri-client/pkg.
"""

from collections.abc import AsyncIterator
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater

Answer = TypeVar("Answer", bound=Message)

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""As in the kubelet. Lists of many containers are long."""


class Unimplemented(RuntimeRefused):
    """The runtime does not have this call."""


class ObjectNotFound(RuntimeRefused):
    """The runtime has no object with this ID."""


class Transport(Protocol):
    """Sends calls to a runtime."""

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        """Call once and return the response. `method` is `/package.Service/Name`."""

    def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """Call once and yield the responses."""

    async def close(self) -> None:
        """Close the connection. Calls in flight fail."""


class GrpcTransport:
    """Calls over grpcio to a unix socket."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._channel: grpc.aio.Channel | None = None

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        """Call without retries. Only the caller can decide whether a retry is safe."""
        call = self._open().unary_unary(method, type(request).SerializeToString, answer.FromString)
        try:
            answered: Answer = await call(request, timeout=seconds)
            return answered
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, method, self._path, seconds) from None
        except DecodeError as error:
            raise RuntimeRefused(f"cannot decode the runtime's response to {_short(method)}: {error}") from None

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        call = self._open().unary_stream(method, type(request).SerializeToString, answer.FromString)(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, method, self._path, 0.0) from None
        finally:
            # A consumer that stops early would otherwise leave the call open.
            call.cancel()

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            options = (
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                # The agent's environment may name a proxy for its other connections.
                ("grpc.enable_http_proxy", 0),
                # Only the caller can decide whether a repeated call is safe.
                ("grpc.enable_retries", 0),
                # Reconnect soon after a restart of the runtime. The default pauses grow to two minutes.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.default_authority", "localhost"),  # some servers reject the path of the socket as authority
            )
            self._channel = grpc.aio.insecure_channel(f"unix:{self._path}", options=options)
        return self._channel


def _error_of(error: grpc.aio.AioRpcError, method: str, path: str, seconds: float) -> TryLater:
    """Return the error for the caller."""
    text = error.details() or error.code().name
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return RuntimeUnavailable(f"cannot reach the container runtime at {path}: {_plain(text, path)}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimedOut(f"{_short(method)} timed out: no response within {seconds:g} s")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unimplemented(text)
        case grpc.StatusCode.NOT_FOUND:
            return ObjectNotFound(text)
        case code:
            return RuntimeRefused(f"rpc error: code = {_go_name(code)} desc = {text}")


def _plain(text: str, path: str) -> str:
    """Return why a connection failed, without the text that grpcio adds."""
    bare = text.rpartition(f"unix:{path}")[2].strip(": ").removeprefix("error: ")
    match bare.lower().rpartition(":")[2].strip():  # grpcio may prepend the name of the failed system call
        case "socket closed" | "connection reset by peer" | "broken pipe":
            return "it closed the connection; it may be restarting"
        case "no such file or directory" | "connection refused" as problem:
            return f"{problem}; it may be restarting, or is not running"
        case _:
            return bare or text


def _short(method: str) -> str:
    return method.rpartition("/")[2]


def _go_name(code: grpc.StatusCode) -> str:
    """Return a status code in Go's spelling, because users search for these messages."""
    return "".join(word.capitalize() for word in code.name.split("_"))
