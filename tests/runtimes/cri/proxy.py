"""Trouble between an agent and a real runtime: a proxy for CRI on a unix socket that does to calls what it is told.

    agent --> Proxy --> containerd

    proxy.trouble("RunPodSandbox", Hang(), pod="web")             none of its calls reaches the runtime, nobody answers
    proxy.trouble("StartContainer", LoseAnswer(), times=1)        it takes effect; then the connection seems to break
    proxy.trouble("CreateContainer", LoseAnswer(None), times=1)   it takes effect, and nobody ever answers
    proxy.trouble("*", Refuse(), times=1, each=True)              the first call of every kind, for every pod, fails
    proxy.trouble("*", Delay(0.5), pod="web")                     it is passed on after a while, whoever still waits
    proxy.trouble("StopContainer", AnswerLate(2.0))               it takes effect at once and is answered after a while

Calls pass as bytes, whatever they are; only to know whose they are some are read. What was made through the proxy is
known by its id. `lift` ends all trouble: what hangs then fails as when a connection breaks.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import cri

CODES = grpc.StatusCode
_STREAMS: Final = ("GetContainerEvents", "Subscribe")
_SIZE: Final = 16 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _SIZE),
    ("grpc.max_send_message_length", _SIZE),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.default_authority", "localhost"),
)


@dataclass(frozen=True)
class Refuse:
    """It does not take effect, and the runtime says so."""

    code: grpc.StatusCode = CODES.UNKNOWN
    words: str = "the runtime has a bad day"


@dataclass(frozen=True)
class Hang:
    """It does not take effect, and nobody answers."""


@dataclass(frozen=True)
class LoseAnswer:
    """It takes effect, and fails; without a code nobody ever answers."""

    code: grpc.StatusCode | None = CODES.UNAVAILABLE


@dataclass(frozen=True)
class Delay:
    """It reaches the runtime after a while."""

    seconds: float


@dataclass(frozen=True)
class AnswerLate:
    """It takes effect at once, and its answer comes after a while."""

    seconds: float


Deed = Refuse | Hang | LoseAnswer | Delay | AnswerLate


@dataclass(eq=False)
class Trouble:
    """What is done to some calls."""

    method: str  # its short name; "*": any that is not a stream
    deed: Deed
    pod: str = ""  # the name of the pod it is about; "": any, or none
    times: int | None = None  # how often; None: until it is lifted
    each: bool = False  # so often for every method and pod
    done: Counter[tuple[str, str]] = field(default_factory=Counter)

    def takes(self, method: str, pod: str) -> bool:
        """Whether a call is troubled by this, which then counts."""
        if self.method not in ("*", method) or (self.pod and self.pod != pod):
            return False
        key = (method, pod) if self.each else ("", "")
        if self.times is not None and self.done[key] >= self.times:
            return False
        self.done[key] += 1
        return True


@dataclass(frozen=True)
class Passed:
    """A call that came."""

    method: str
    pod: str
    deed: Deed | None


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc brings no types
    """Sits between an agent and a runtime."""

    def __init__(self, runtime_socket: str) -> None:
        self._runtime = grpc.aio.insecure_channel(f"unix:{runtime_socket}", options=_OPTIONS)
        self._server: Any = None
        self._troubles: list[Trouble] = []
        self._lifted = asyncio.Event()
        self._names: dict[str, str] = {}  # of pods, by UIDs and the ids of what they have
        self._effects: set[asyncio.Task[bytes]] = set()
        self.calls: list[Passed] = []

    def trouble(
        self, method: str, deed: Deed, *, pod: str = "", times: int | None = None, each: bool = False
    ) -> Trouble:
        """From now on, do this to such calls."""
        made = Trouble(method, deed, pod, times, each)
        self._troubles.append(made)
        return made

    def lift(self) -> None:
        """No more trouble: what hangs fails now."""
        self._troubles.clear()
        self._lifted.set()
        self._lifted = asyncio.Event()

    def count(self, method: str, pod: str = "") -> int:
        """How many calls came."""
        return sum(each.method == method and pod in ("", each.pod) for each in self.calls)

    async def serve(self, path: str) -> None:
        """Begin."""
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def stop(self) -> None:
        """End; what was begun for somebody who did not wait is given up."""
        self.lift()
        await self._server.stop(None)
        for effect in self._effects:
            effect.cancel()
        await self._runtime.close()

    # gRPC's side.

    def service(self, details: Any) -> Any:
        """Who handles a call."""
        method = details.method
        if method.rpartition("/")[2] in _STREAMS:

            async def stream(asked: bytes, context: Any) -> AsyncIterator[bytes]:
                call = self._runtime.unary_stream(method)(asked, metadata=_passed_on(context))
                try:
                    async for answer in call:
                        yield answer
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")
                finally:
                    call.cancel()

            return grpc.unary_stream_rpc_method_handler(stream)

        async def unary(asked: bytes, context: Any) -> bytes:
            try:
                return await self._unary(method, asked, context)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
                raise

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _unary(self, method: str, asked: bytes, context: Any) -> bytes:
        name = method.rpartition("/")[2]
        pod = self._pod_of(name, asked)
        deed = next((each.deed for each in self._troubles if each.takes(name, pod)), None)
        self.calls.append(Passed(name, pod, deed))
        match deed:
            case Refuse(code, words):
                await context.abort(code, words)
            case Hang():
                await self._hang(context)
            case LoseAnswer(code):
                with suppress(grpc.aio.AioRpcError):
                    await asyncio.shield(self._effect(method, asked, pod))
                if code is None:
                    await self._hang(context)
                await context.abort(code, "the connection broke")
            case Delay(seconds):
                return await asyncio.shield(self._effect(method, asked, pod, after=seconds))
            case AnswerLate(seconds):
                answer = await asyncio.shield(self._effect(method, asked, pod))
                await asyncio.sleep(seconds)
                return answer
        return await self._ask(method, asked, pod)

    async def _hang(self, context: Any) -> None:
        await self._lifted.wait()
        await context.abort(CODES.UNAVAILABLE, "the connection broke")

    def _effect(self, method: str, asked: bytes, pod: str, after: float = 0.0) -> "asyncio.Task[bytes]":
        """A call that reaches the runtime whatever becomes of its caller."""

        async def effect() -> bytes:
            await asyncio.sleep(after)
            return await self._ask(method, asked, pod)

        task = asyncio.get_running_loop().create_task(effect())
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        return task

    async def _ask(self, method: str, asked: bytes, pod: str) -> bytes:
        answer: bytes = await self._runtime.unary_unary(method)(asked)
        match method.rpartition("/")[2]:
            case "RunPodSandbox":
                self._names[cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id] = pod
            case "CreateContainer":
                self._names[cri.CreateContainerResponse.FromString(answer).container_id] = pod
        return answer

    # Whose is it.

    def _pod_of(self, method: str, asked: bytes) -> str:
        """The name of the pod that a call is about; "": of none, or nobody knows."""
        match method:
            case "RunPodSandbox":
                meta = cri.RunPodSandboxRequest.FromString(asked).config.metadata
                self._names[meta.uid] = meta.name
                return meta.name
            case "CreateContainer":
                return cri.CreateContainerRequest.FromString(asked).sandbox_config.metadata.name
            case "ListPodSandbox":
                boxes = cri.ListPodSandboxRequest.FromString(asked).filter
                return self._name(boxes.id or boxes.label_selector.get(POD_UID, ""))
            case "ListContainers":
                made = cri.ListContainersRequest.FromString(asked).filter
                return self._name(made.id or made.label_selector.get(POD_UID, ""))
            case "StopPodSandbox" | "RemovePodSandbox" | "PodSandboxStatus":
                return self._name(cri.StopPodSandboxRequest.FromString(asked).pod_sandbox_id)
            case "StartContainer" | "StopContainer" | "RemoveContainer" | "ContainerStatus" | "ExecSync":
                return self._name(cri.StartContainerRequest.FromString(asked).container_id)  # all have it first
        return ""

    def _name(self, known: str) -> str:
        return self._names.get(known, "")


def _passed_on(context: Any) -> tuple[tuple[str, str], ...]:
    """What somebody said beside a call, without what belongs to the connection."""
    said = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in said if not key.startswith(("user-agent", "grpc-", ":")))


@asynccontextmanager
async def proxied(runtime_socket: str, path: str) -> AsyncIterator[Proxy]:
    """A proxy at a path, before a runtime."""
    proxy = Proxy(runtime_socket)
    await proxy.serve(path)
    try:
        yield proxy
    finally:
        await proxy.stop()
