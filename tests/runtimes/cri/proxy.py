"""A CRI proxy on a unix socket that injects faults between an agent and a real runtime.

    agent --> Proxy --> containerd

    proxy.inject("RunPodSandbox", Hang(), pod="web")              these calls do not reach the runtime and hang
    proxy.inject("StartContainer", LoseResponse(), times=1)       it takes effect, then the connection seems to break
    proxy.inject("CreateContainer", LoseResponse(None), times=1)  it takes effect and hangs
    proxy.inject("*", Refuse(), times=1, each=True)               the first call of each method for each pod fails
    proxy.inject("*", Late(0.5), pod="web")                       it is forwarded after a delay, even if cancelled
    proxy.inject("StopContainer", LateResponse(2.0))              it takes effect at once, with a late response

Calls are forwarded as bytes. Some are parsed to find their pod; ids of sandboxes and containers created through the
proxy are stored for this. `clear_faults` ends all faults: hanging calls then fail as with a broken connection.
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
from tests.runtimes.cri.faults import CODES, Fault, Hang, Late, LateResponse, LoseResponse, Refuse

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


@dataclass(eq=False)
class FaultRule:
    """A fault for some calls."""

    method: str  # short name; "*" matches all but streams
    fault: Fault
    pod: str = ""  # name of the pod; "" matches all calls
    times: int | None = None  # None: until `clear_faults`
    each: bool = False  # count `times` per method and pod
    done: Counter[tuple[str, str]] = field(default_factory=Counter)

    def matches(self, method: str, pod: str) -> bool:
        """Return whether the rule applies to a call, and count it."""
        if self.method not in ("*", method) or (self.pod and self.pod != pod):
            return False
        key = (method, pod) if self.each else ("", "")
        if self.times is not None and self.done[key] >= self.times:
            return False
        self.done[key] += 1
        return True


@dataclass(frozen=True)
class ProxiedCall:
    """A received call."""

    method: str
    pod: str
    fault: Fault | None


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc brings no types
    """The proxy."""

    def __init__(self, runtime_socket: str) -> None:
        self._runtime = grpc.aio.insecure_channel(f"unix:{runtime_socket}", options=_OPTIONS)
        self._server: Any = None
        self._rules: list[FaultRule] = []
        self._cleared = asyncio.Event()
        self._names: dict[str, str] = {}  # pod names by UID, sandbox id and container id
        self._effects: set[asyncio.Task[bytes]] = set()
        self.calls: list[ProxiedCall] = []

    def inject(
        self, method: str, fault: Fault, *, pod: str = "", times: int | None = None, each: bool = False
    ) -> FaultRule:
        """Add a fault for such calls."""
        rule = FaultRule(method, fault, pod, times, each)
        self._rules.append(rule)
        return rule

    def clear_faults(self) -> None:
        """Remove all faults. Hanging calls fail."""
        self._rules.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    def count(self, method: str, pod: str = "") -> int:
        return sum(each.method == method and pod in ("", each.pod) for each in self.calls)

    async def serve(self, path: str) -> None:
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop, and cancel forwarded calls whose clients have left."""
        self.clear_faults()
        await self._server.stop(None)
        for effect in self._effects:
            effect.cancel()
        await self._runtime.close()

    # gRPC.

    def service(self, details: Any) -> Any:
        """Return the handler of a call."""
        method = details.method
        if method.rpartition("/")[2] in _STREAMS:

            async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
                call = self._runtime.unary_stream(method)(request, metadata=_passed_on(context))
                try:
                    async for answer in call:
                        yield answer
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")
                finally:
                    call.cancel()

            return grpc.unary_stream_rpc_method_handler(stream)

        async def unary(request: bytes, context: Any) -> bytes:
            try:
                return await self._unary(method, request, context)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
                raise

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _unary(self, method: str, request: bytes, context: Any) -> bytes:
        name = method.rpartition("/")[2]
        pod = self._pod_of(name, request)
        fault = next((each.fault for each in self._rules if each.matches(name, pod)), None)
        self.calls.append(ProxiedCall(name, pod, fault))
        match fault:
            case Refuse(code, message):
                await context.abort(code, message)
            case Hang():
                await self._hang(context)
            case LoseResponse(code):
                with suppress(grpc.aio.AioRpcError):
                    await asyncio.shield(self._effect(method, request, pod))
                if code is None:
                    await self._hang(context)
                await context.abort(code, "the connection broke")
            case Late(seconds):
                return await asyncio.shield(self._effect(method, request, pod, after=seconds))
            case LateResponse(seconds):
                answer = await asyncio.shield(self._effect(method, request, pod))
                await asyncio.sleep(seconds)
                return answer
        return await self._ask(method, request, pod)

    async def _hang(self, context: Any) -> None:
        await self._cleared.wait()
        await context.abort(CODES.UNAVAILABLE, "the connection broke")

    def _effect(self, method: str, request: bytes, pod: str, after: float = 0.0) -> "asyncio.Task[bytes]":
        """Start a call that reaches the runtime even if its client leaves."""

        async def effect() -> bytes:
            await asyncio.sleep(after)
            return await self._ask(method, request, pod)

        task = asyncio.get_running_loop().create_task(effect())
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        return task

    async def _ask(self, method: str, request: bytes, pod: str) -> bytes:
        answer: bytes = await self._runtime.unary_unary(method)(request)
        match method.rpartition("/")[2]:
            case "RunPodSandbox":
                self._names[cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id] = pod
            case "CreateContainer":
                self._names[cri.CreateContainerResponse.FromString(answer).container_id] = pod
        return answer

    # The pod of a call.

    def _pod_of(self, method: str, request: bytes) -> str:
        """Return the pod name of a call, or "" if it has none or it is unknown."""
        match method:
            case "RunPodSandbox":
                meta = cri.RunPodSandboxRequest.FromString(request).config.metadata
                self._names[meta.uid] = meta.name
                return meta.name
            case "CreateContainer":
                return cri.CreateContainerRequest.FromString(request).sandbox_config.metadata.name
            case "ListPodSandbox":
                boxes = cri.ListPodSandboxRequest.FromString(request).filter
                return self._name(boxes.id or boxes.label_selector.get(POD_UID, ""))
            case "ListContainers":
                containers = cri.ListContainersRequest.FromString(request).filter
                return self._name(containers.id or containers.label_selector.get(POD_UID, ""))
            case "StopPodSandbox" | "RemovePodSandbox" | "PodSandboxStatus":
                return self._name(cri.StopPodSandboxRequest.FromString(request).pod_sandbox_id)
            case "StartContainer" | "StopContainer" | "RemoveContainer" | "ContainerStatus" | "ExecSync":
                return self._name(
                    cri.StartContainerRequest.FromString(request).container_id
                )  # in all of them the id is field 1
        return ""

    def _name(self, known: str) -> str:
        return self._names.get(known, "")


def _passed_on(context: Any) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call without that of the connection."""
    metadata = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in metadata if not key.startswith(("user-agent", "grpc-", ":")))


@asynccontextmanager
async def proxied(runtime_socket: str, path: str) -> AsyncIterator[Proxy]:
    """Run a proxy for a runtime on a socket path."""
    proxy = Proxy(runtime_socket)
    await proxy.serve(path)
    try:
        yield proxy
    finally:
        await proxy.stop()
