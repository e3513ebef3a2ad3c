"""A small CRI server in this process, with sandboxes and containers in dictionaries and injected faults.

    server.next("RunPodSandbox", Hang())              the next such call never returns
    server.next("RunPodSandbox", LoseResponse(None))  it takes effect, but sends no response
    server.next("RunPodSandbox", Late(0.2))           it takes effect after a delay, even if the caller has left
    server.next("StopContainer", Refuse(code, message))

Names are reserved as in containerd, or, with `returns_existing`, as in CRI-O. `calls` records all requests.
"""

import asyncio
import json
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from podkeeper.model.errors import RuntimeRefused
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.runtimes.cri.schema.loading import file_of
from podkeeper.runtimes.cri.transport import Answer, GrpcTransport, ObjectNotFound, Unimplemented
from tests.runtimes.cri.faults import CODES, Fault, Hang, Late, LateResponse, LoseResponse, Refuse

SHORT_DEADLINE_SECONDS = 0.4


class _RpcError(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeCri(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc brings no types
    """The server."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, cri.PodSandboxStatus] = {}
        self.containers: dict[str, cri.ContainerStatus] = {}
        self.sandbox_of: dict[str, str] = {}  # by container
        self.processes: dict[str, int] = {}  # PIDs by container, for the verbose status
        self.lost_exit_codes: dict[str, int] = {}  # exit codes of containers in the state UNKNOWN
        self.sandbox_configs: dict[str, cri.PodSandboxConfig] = {}  # for the verbose status
        self.images: dict[str, cri.Image] = {}
        self.calls: list[tuple[str, Any]] = []
        self.cancelled: list[str] = []  # calls that the client cancelled
        self.unknown_services: set[str] = {"containerd.services.events.v1.Events"}
        self.unknown_calls: set[str] = {"GetContainerEvents", "RuntimeConfig", "ListPodSandboxStats"}
        self.name = "fakerd"
        self.returns_existing = False  # a create call with a reserved name returns the existing id
        self.ends_streams = False  # at once and without error, as CRI-O without `enable_pod_events`
        self.info: dict[str, str] = {}  # for the verbose status
        self.handlers: list[cri.RuntimeHandler] = []
        self.features = cri.RuntimeFeatures()
        self.stats: list[cri.ContainerStats] = []
        self.conditions = {"RuntimeReady": True, "NetworkReady": True}
        self.path = ""
        self.now_ns: Callable[[], int] = time.time_ns
        self._server: Any = None
        self._faults: dict[str, deque[Fault]] = {}
        self._numbers = count(1)
        self._streams: list[asyncio.Queue[Message | None]] = []
        self._late: set[asyncio.Task[Message]] = set()

    def next(self, call: str, *faults: Fault) -> None:
        """Set the faults of the next such calls."""
        self._faults.setdefault(call, deque()).extend(faults)

    def is_armed(self, call: str) -> bool:
        """Return whether the next such call has a fault."""
        return bool(self._faults.get(call))

    def count(self, call: str) -> int:
        """Return the number of such calls."""
        return sum(name == call for name, _ in self.calls)

    async def send_event(self, event: Message) -> None:
        """Wait for a subscriber, then send an event to all subscribers."""
        async with asyncio.timeout(10):
            while not self._streams:
                await asyncio.sleep(0.005)
        for stream in self._streams:
            stream.put_nowait(event)

    def send_event_now(self, event: Message) -> None:
        """Send an event to the current subscribers."""
        for stream in self._streams:
            stream.put_nowait(event)

    def break_streams(self) -> None:
        """End all event streams."""
        for stream in self._streams:
            stream.put_nowait(None)
        self._streams.clear()

    # gRPC.

    async def serve(self, path: str) -> None:
        """Serve on a socket."""
        self.path = path
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once, without waiting for calls."""
        await self._server.stop(None)

    def service(self, details: Any) -> Any:
        """Return the handler of a call."""
        service, _, name = details.method.lstrip("/").partition("/")
        short = service.rpartition(".")[2]
        if service in self.unknown_services or name in self.unknown_calls:
            return None
        file = file_of("containerd_events.proto" if short == "Events" else "cri.proto")
        if file.package != service.rpartition(".")[0] or short not in file.services_by_name:
            return None
        method = file.services_by_name[short].methods_by_name[name]
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        if name in ("GetContainerEvents", "Subscribe"):
            return grpc.unary_stream_rpc_method_handler(
                self._stream, request.FromString, lambda message: message.SerializeToString()
            )

        async def unary(request: Any, context: Any) -> Message:
            return await self._unary(name, request, answer, context)

        return grpc.unary_unary_rpc_method_handler(unary, request.FromString, answer.SerializeToString)

    async def _unary(self, name: str, request: Any, answer: type[Message], context: Any) -> Message:
        self.calls.append((name, request))
        faults = self._faults.get(name)
        fault = faults.popleft() if faults else None
        do: Callable[[Any], Message | None] = getattr(self, f"_{name}")

        def effect() -> Message:
            return do(request) or answer()

        try:
            match fault:
                case Refuse(code, message):
                    raise _RpcError(code, message)
                case Hang():
                    await asyncio.get_running_loop().create_future()
                case LoseResponse(code):
                    effect()
                    if code is not None:
                        raise _RpcError(code, "the connection broke")
                    await asyncio.get_running_loop().create_future()
                case Late(seconds):
                    task = asyncio.get_running_loop().create_task(_later(seconds, effect))
                    self._late.add(task)
                    return await asyncio.shield(task)
                case LateResponse(seconds):
                    response = effect()
                    await asyncio.sleep(seconds)
                    return response
            return effect()
        except _RpcError as no:
            await context.abort(no.code, str(no))
            raise
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Message]:
        self.calls.append(("stream", request))
        if self.ends_streams:
            return
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._streams.append(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            if queue in self._streams:
                self._streams.remove(queue)

    # CRI methods.

    def _Version(self, _: Any) -> Message:
        return cri.VersionResponse(runtime_name=self.name, runtime_version="1.2.3", runtime_api_version="v1")

    def _RuntimeConfig(self, _: Any) -> Message:
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=cri.SYSTEMD)
        return cri.RuntimeConfigResponse(linux=linux)

    def _ListContainerStats(self, _: Any) -> Message:
        return cri.ListContainerStatsResponse(stats=self.stats)

    def _Status(self, request: Any) -> Message:
        conditions = [
            cri.RuntimeCondition(
                type=kind, status=status, reason="" if status else "Broken", message="" if status else "so"
            )
            for kind, status in self.conditions.items()
        ]
        info = self.info if request.verbose else {}
        return cri.StatusResponse(
            status=cri.RuntimeStatus(conditions=conditions),
            info=info,
            runtime_handlers=self.handlers,
            features=self.features,
        )

    def _RunPodSandbox(self, request: Any) -> Message:
        meta = request.config.metadata
        for other in self.sandboxes.values():
            if (other.metadata.uid, other.metadata.attempt) == (meta.uid, meta.attempt):
                if self.returns_existing:
                    return cri.RunPodSandboxResponse(pod_sandbox_id=other.id)
                name = f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"
                message = f'failed to reserve sandbox name "{name}": name "{name}" is reserved for "{other.id}"'
                raise _RpcError(CODES.UNKNOWN, message)
        sandbox_id = f"box{next(self._numbers)}"
        self.sandboxes[sandbox_id] = cri.PodSandboxStatus(
            id=sandbox_id,
            metadata=meta,
            created_at=self.now_ns(),
            labels=request.config.labels,
            annotations=request.config.annotations,
            network=cri.PodSandboxNetworkStatus(ip="192.0.2.9"),
        )
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)

    def _StopPodSandbox(self, request: Any) -> None:
        if (box := self.sandboxes.get(request.pod_sandbox_id)) is not None:
            box.state = cri.SANDBOX_NOTREADY

    def _RemovePodSandbox(self, request: Any) -> None:
        self.sandboxes.pop(request.pod_sandbox_id, None)
        for container_id in [
            each for each, sandbox_id in self.sandbox_of.items() if sandbox_id == request.pod_sandbox_id
        ]:
            self._forget(container_id)

    def _PodSandboxStatus(self, request: Any) -> Message:
        status = self.sandboxes.get(request.pod_sandbox_id)
        if status is None:
            raise _RpcError(
                CODES.NOT_FOUND, f'an error occurred when try to find sandbox: "{request.pod_sandbox_id}": not found'
            )
        return cri.PodSandboxStatusResponse(status=status)

    def _ListPodSandbox(self, request: Any) -> Message:
        wanted = request.filter.label_selector.items()
        items = [
            cri.PodSandbox(
                id=box.id, metadata=box.metadata, state=box.state, created_at=box.created_at, labels=box.labels
            )
            for box in self.sandboxes.values()
            if request.filter.id in ("", box.id) and wanted <= dict(box.labels).items()
        ]
        return cri.ListPodSandboxResponse(items=items)

    def _CreateContainer(self, request: Any) -> Message:
        if request.pod_sandbox_id not in self.sandboxes:
            raise _RpcError(CODES.NOT_FOUND, f'failed to find sandbox id "{request.pod_sandbox_id}": not found')
        meta, uid = request.config.metadata, request.sandbox_config.metadata.uid
        for other in self.containers.values():
            if (other.metadata, other.labels["io.kubernetes.pod.uid"]) == (meta, uid):
                if self.returns_existing:
                    return cri.CreateContainerResponse(container_id=other.id)
                name = f"{meta.name}_{uid}_{meta.attempt}"
                message = f'failed to reserve container name "{name}": name "{name}" is reserved for "{other.id}"'
                raise _RpcError(CODES.UNKNOWN, message)
        container_id = f"container{next(self._numbers)}"
        self.sandbox_of[container_id] = request.pod_sandbox_id
        self.containers[container_id] = cri.ContainerStatus(
            id=container_id,
            metadata=meta,
            created_at=self.now_ns(),
            image=request.config.image,
            labels=request.config.labels,
            annotations=request.config.annotations,
            mounts=request.config.mounts,
        )
        return cri.CreateContainerResponse(container_id=container_id)

    def _StartContainer(self, request: Any) -> None:
        status = self._container(request.container_id)
        if status.state != cri.CONTAINER_CREATED:
            raise _RpcError(CODES.UNKNOWN, "failed to set starting state: container is in CONTAINER_RUNNING state")
        status.state, status.started_at = cri.CONTAINER_RUNNING, self.now_ns()

    def _StopContainer(self, request: Any) -> None:
        status = self._container(request.container_id)
        if status.state == cri.CONTAINER_RUNNING:
            self.exit(request.container_id, 143)
        elif status.state == cri.CONTAINER_UNKNOWN:
            self.exit(request.container_id, self.lost_exit_codes.pop(request.container_id, 143))

    def _RemoveContainer(self, request: Any) -> None:
        self._forget(request.container_id)

    def _ContainerStatus(self, request: Any) -> Message:
        process = self.processes.get(request.container_id)
        info = {"info": json.dumps({"pid": process})} if request.verbose and process is not None else {}
        return cri.ContainerStatusResponse(status=self._container(request.container_id), info=info)

    def _ListContainers(self, request: Any) -> Message:
        wanted = request.filter.label_selector.items()
        containers = [
            cri.Container(
                id=each.id,
                pod_sandbox_id=self.sandbox_of[each.id],
                metadata=each.metadata,
                image=each.image,
                state=each.state,
                created_at=each.created_at,
                labels=each.labels,
                annotations=each.annotations,
            )
            for each in self.containers.values()
            if request.filter.id in ("", each.id)
            and request.filter.pod_sandbox_id in ("", self.sandbox_of[each.id])
            and wanted <= dict(each.labels).items()
        ]
        return cri.ListContainersResponse(containers=containers)

    def _ExecSync(self, request: Any) -> Message:
        self._container(request.container_id)
        return cri.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=3)

    def _ImageStatus(self, request: Any) -> Message:
        return cri.ImageStatusResponse(image=self.images.get(request.image.image))

    def _PullImage(self, request: Any) -> Message:
        self.images[request.image.image] = self.images["sha256:1"] = cri.Image(
            id="sha256:1", repo_tags=[request.image.image]
        )
        return cri.PullImageResponse(image_ref="sha256:1")

    def _ListImages(self, _: Any) -> Message:
        return cri.ListImagesResponse(images={image.id: image for image in self.images.values()}.values())

    def _RemoveImage(self, request: Any) -> None:
        if (image := self.images.get(request.image.image)) is not None:
            self.images = {name: each for name, each in self.images.items() if each.id != image.id}

    def exit(self, container_id: str, code: int) -> None:
        """Let a container exit."""
        status = self.containers[container_id]
        status.state, status.exit_code, status.finished_at = cri.CONTAINER_EXITED, code, self.now_ns()
        status.reason = "Error" if code else "Completed"

    def _container(self, container_id: str) -> cri.ContainerStatus:
        if container_id not in self.containers:
            raise _RpcError(
                CODES.NOT_FOUND, f'an error occurred when try to find container "{container_id}": not found'
            )
        return self.containers[container_id]

    def _forget(self, container_id: str) -> None:
        self.containers.pop(container_id, None)
        self.sandbox_of.pop(container_id, None)


async def _later(seconds: float, effect: Callable[[], Message]) -> Message:
    await asyncio.sleep(seconds)
    return effect()


class ShortDeadlineTransport(GrpcTransport):
    """A transport with a short deadline for calls with a fault, and the normal one for others."""

    def __init__(self, fake: FakeCri, path: str) -> None:
        super().__init__(path)
        self._fake = fake

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        armed = self._fake.is_armed(method.rpartition("/")[2])
        return await super().unary(method, request, answer, SHORT_DEADLINE_SECONDS if armed else seconds)


class DirectTransport:
    """Calls a fake server in this process without gRPC, so that calls in virtual time have a known duration."""

    def __init__(self, fake: FakeCri) -> None:
        self._fake = fake

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        service, _, name = method.lstrip("/").partition("/")
        if service in self._fake.unknown_services or name in self._fake.unknown_calls:
            raise Unimplemented(f"unknown method {name}")
        self._fake.calls.append((name, request))
        try:
            answered = getattr(self._fake, f"_{name}")(request) or answer()
        except _RpcError as no:
            if no.code is CODES.NOT_FOUND:
                raise ObjectNotFound(str(no)) from None
            raise RuntimeRefused(f"rpc error: code = Unknown desc = {no}") from None
        return answer.FromString(answered.SerializeToString())

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        service, _, name = method.lstrip("/").partition("/")
        if service in self._fake.unknown_services or name in self._fake.unknown_calls:
            raise Unimplemented(f"unknown method {name}")
        async for event in self._fake._stream(request, None):
            yield answer.FromString(event.SerializeToString())

    async def close(self) -> None:
        pass


@asynccontextmanager
async def served(fake: FakeCri) -> AsyncIterator[str]:
    """Run the server on a new socket and yield the path of the socket."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-cri-") as directory:
        path = os.path.join(directory, "cri.sock")
        await fake.serve(path)
        try:
            yield path
        finally:
            await fake.stop()


def containerd_event(topic: str, event: Message, *, namespace: str = "k8s.io") -> Message:
    """Return an event as containerd sends it."""
    return containerd_events.Envelope(
        timestamp=containerd_events.Instant(seconds=int(time.time())),
        namespace=namespace,
        topic=topic,
        event=containerd_events.Parcel(type_url="containerd.events.Any", value=event.SerializeToString()),
    )
