"""How calls reach the runtime: two methods, so that a leaner transport can take grpcio's place.

    unary(method, request, answer type, deadline) -> the answer
    stream(method, request, answer type)          -> answers as they come, until one side ends it

Errors come out sorted: `RuntimeUnavailable` (nobody answers, or it went away meanwhile), `CallTimedOut` (it may have
taken effect), `Unimplemented` (this runtime does not have that call), `NotThere` (it has nothing of that id) and
`RuntimeRefused` with the runtime's own words for all else. The Go ancestor is cri-client/pkg.
"""

from collections.abc import AsyncIterator
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater

Answer = TypeVar("Answer", bound=Message)

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""As the reference: a list of very many containers is long."""


class Unimplemented(RuntimeRefused):
    """The runtime does not have this call."""


class NotThere(RuntimeRefused):
    """The runtime has nothing of that id."""


class Transport(Protocol):
    """Carries calls to a runtime."""

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        """One question, one answer; `method` is `/package.Service/Name`."""

    def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """One question, many answers."""

    async def close(self) -> None:
        """Hang up."""


class GrpcTransport:
    """Calls over grpcio to a unix socket."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._channel: grpc.aio.Channel | None = None

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        """Ask once. No retries: whoever asks knows whether asking twice does harm."""
        call = self._open().unary_unary(method, type(request).SerializeToString, answer.FromString)
        try:
            answered: Answer = await call(request, timeout=seconds)
            return answered
        except grpc.aio.AioRpcError as error:
            raise _sorted(error, method, self._path, seconds) from None
        except DecodeError as error:
            raise RuntimeRefused(f"cannot understand the runtime's answer to {_short(method)}: {error}") from None

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """Ask, and take what comes."""
        call = self._open().unary_stream(method, type(request).SerializeToString, answer.FromString)(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise _sorted(error, method, self._path, 0.0) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Hang up; calls under way fail."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            options = (
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.enable_retries", 0),
                # Back soon after a restart of the runtime: the usual pauses grow to two minutes.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.default_authority", "localhost"),  # the socket's path is no authority for some servers
            )
            self._channel = grpc.aio.insecure_channel(f"unix:{self._path}", options=options)
        return self._channel


def _sorted(error: grpc.aio.AioRpcError, method: str, path: str, seconds: float) -> TryLater:
    """What a failed call means to whoever made it."""
    words = error.details() or error.code().name
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return RuntimeUnavailable(f"cannot reach the container runtime at {path}: {_plain(words, path)}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimedOut(f"cannot say what became of {_short(method)}: no answer within {seconds:g} s")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unimplemented(words)
        case grpc.StatusCode.NOT_FOUND:
            return NotThere(words)
        case code:
            return RuntimeRefused(f"rpc error: code = {_go_name(code)} desc = {words}")


def _plain(words: str, path: str) -> str:
    """Why a connection failed, without what grpcio wraps around the kernel's words."""
    bare = words.rpartition(f"unix:{path}")[2].strip(": ").removeprefix("error: ")
    match bare.lower().rpartition(":")[2].strip():  # before it may be the call that failed: recvmsg, sendmsg
        case "socket closed" | "connection reset by peer" | "broken pipe":
            return "it has hung up; it may be starting anew"
        case "no such file or directory" | "connection refused" as trouble:
            return f"{trouble}; it may be starting anew, or is not running"
        case _:
            return bare or words


def _short(method: str) -> str:
    return method.rpartition("/")[2]


def _go_name(code: grpc.StatusCode) -> str:
    """A status code as the reference spells it in the messages that people search for."""
    return "".join(word.capitalize() for word in code.name.split("_"))
