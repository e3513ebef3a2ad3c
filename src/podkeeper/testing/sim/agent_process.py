"""One simulated agent process, and the proxies that connect it to the world.

    agent -> proxy -> (crash before?) -> task of the world: the call -> (crash after?) -> agent

A crash (`kill -9`) first disconnects all proxies and then cancels the agent's tasks. Calls from their cleanup code
therefore have no effect. A call that changes something (a write) runs in a task of the world. If the agent crashes or
cancels the call, a random choice decides whether the call still takes effect.

The agent can crash before or after each write. Between two writes the agent only changes its own memory, so these
points cover all crashes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum, auto
from random import Random
from typing import Any, TypeVar, cast

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, PodUpdate
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.model.wire import Wire
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import SendUpdate, Source
from podkeeper.testing.memory_objects import meta_of
from podkeeper.testing.sim.ground_truth import GroundTruth
from podkeeper.testing.sim.records import Bus, CallEnded, CallStarted, ReadEnded, UpdateReceived

T = TypeVar("T")


class Side(Enum):
    """The side of a write at which the agent can crash."""

    BEFORE = auto()  # before the write takes effect
    AFTER = auto()  # after its effect, before the agent receives the result


CrashPoint = Callable[[CallStarted, Side], bool]
"""Called at each side of each write. Returns true if the agent crashes here."""


class AgentProcess:
    """One process of the agent, from its start to its exit or crash."""

    def __init__(self, number: int, bus: Bus, truth: GroundTruth, random: Random, crash_point: CrashPoint) -> None:
        self.number = number
        self.alive = True
        self._bus = bus
        self._truth = truth
        self._random = random
        self._crash_point = crash_point
        self._in_flight: dict[asyncio.Task[Any], CallStarted] = {}  # in start order
        self._streams: list[Any] = []

    @property
    def calls_in_flight(self) -> int:
        """Number of writes that have started and not ended."""
        return len(self._in_flight)

    def end(self, calls_continue: bool | None = None) -> None:
        """Disconnect all proxies.

        `calls_continue` decides whether writes in flight continue or are cancelled. None: a random choice for each.
        """
        self.alive = False
        for task in tuple(self._in_flight):
            goes_on = self._random.random() >= 0.5 if calls_continue is None else calls_continue
            if not goes_on:
                task.cancel()
        for stream in self._streams:
            stream.close(StopAsyncIteration())

    def fraction(self) -> float:
        """Return a random number for the clock of this process (jitter)."""
        return self._random.random()

    async def write(
        self, port: str, operation: str, subject: tuple[PodUID, str], args: tuple[object, ...], run: Callable[[], Any]
    ) -> Any:
        """Run a call that changes something."""
        self._check_alive()
        loop = asyncio.get_running_loop()
        call = CallStarted(loop.time(), self.number, port, operation, *subject, args)
        self._bus.publish(call)
        # CancelledError and not another exception: a killed process runs no `except Exception` blocks.
        if self._crash_point(call, Side.BEFORE):
            raise asyncio.CancelledError
        # A task of the world: a real runtime does not stop a call because its caller is gone (decision 6).
        task = loop.create_task(_result_or_error(run))
        self._in_flight[task] = call
        task.add_done_callback(self._settle)
        # The same as `asyncio.wait`, which takes three times as long for a single task.
        waiter = loop.create_future()

        def wake(task: "asyncio.Task[Any]") -> None:
            if not waiter.done():
                waiter.set_result(None)

        task.add_done_callback(wake)
        try:
            await waiter
        except asyncio.CancelledError:
            task.remove_done_callback(wake)
            # The agent closes the connection. A random choice decides whether the server cancels the call.
            if self.alive and self._random.random() < 0.5:
                task.cancel()
            raise
        self._check_alive()
        if self._crash_point(call, Side.AFTER):
            raise asyncio.CancelledError
        outcome = task.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def read(
        self, port: str, operation: str, subject: tuple[PodUID, str], args: tuple[object, ...], run: Callable[[], Any]
    ) -> Any:
        """Run a call that changes nothing."""
        self._check_alive()
        loop = asyncio.get_running_loop()
        began, error, result = loop.time(), "", None
        try:
            result = await run()
            return result
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            if self.alive:
                ended = ReadEnded(loop.time(), self.number, port, operation, *subject, args, error, result, began)
                self._bus.publish(ended)

    def call_now(self, run: Callable[[], T], if_dead: T) -> T:
        """Run a call that is not a coroutine. Return `if_dead` once the process has ended."""
        # Cleanup code of a dead agent may still call this. It must neither fail nor have an effect.
        return run() if self.alive else if_dead

    def stream(self, stream: Any) -> "StreamProxy":
        """Return a proxy of a stream that ends with this process."""
        self._streams.append(stream)
        del self._streams[:-16]  # keep the newest 16; the agent has already closed the older ones
        return StreamProxy(stream, self)

    def record_update(self, update: PodUpdate) -> None:
        """Publish an update that a source sends to the agent."""
        self._bus.publish(UpdateReceived(asyncio.get_running_loop().time(), self.number, update))

    def subject_of(
        self, operation: str, arguments: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[PodUID, str]:
        """Return the pod that a call is about, and the name of the container or object."""
        if operation == "create_container":
            created = cast(ContainerConfig, arguments[1])
            return PodUID(created.pod.metadata.uid or ""), created.container.name
        match arguments:
            case (SandboxConfig() as config, *_):
                return PodUID(config.pod.metadata.uid or ""), ""
            case (Pod() as pod, *_):
                return PodUID(pod.metadata.uid or ""), pod.metadata.name or ""
            case (str() as name, *_):
                container = self._truth.containers.get(name)
                return self._truth.pod_of(name) or PodUID(name), name if container is None else container.name
            case (type(), str() as name, *rest):
                return PodUID(_uid_in(rest, named)), name
            case (Wire() as what, *_):
                return PodUID(""), meta_of(what).name or ""
            case _:
                return PodUID(""), ""

    def _check_alive(self) -> None:
        if not self.alive:
            raise asyncio.CancelledError

    def _settle(self, task: "asyncio.Task[Any]") -> None:
        call = self._in_flight.pop(task)
        at = asyncio.get_running_loop().time()
        outcome = None if task.cancelled() else task.result()
        failed = "cancelled" if task.cancelled() else type(outcome).__name__ if isinstance(outcome, Exception) else ""
        self._bus.publish(CallEnded(at, call, failed, outcome))


async def _result_or_error(run: Callable[[], Awaitable[Any]]) -> Any:
    """Run a call. Return its error as a value, because asyncio warns about task exceptions that nothing retrieves.

    `run` is called in here, so that a task that is cancelled before its first step never makes the call.
    """
    try:
        return await run()
    except Exception as error:
        return error


def _uid_in(rest: list[object], named: Mapping[str, object]) -> str:
    if uid := named.get("uid"):
        return str(uid)
    patch = next((each for each in rest if isinstance(each, dict)), {})
    meta = patch.get("metadata")
    return str(meta.get("uid", "")) if isinstance(meta, dict) else ""


class CallKind(Enum):
    """How a proxy handles a method of a port."""

    WRITE = auto()
    READ = auto()
    IMMEDIATE = auto()  # not a coroutine
    STREAM = auto()


RUNTIME = {
    **dict.fromkeys(
        ("run_sandbox", "stop_sandbox", "remove_sandbox", "create_container", "start_container"), CallKind.WRITE
    ),
    **dict.fromkeys(("stop_container", "remove_container", "pull_image", "remove_image"), CallKind.WRITE),
    **dict.fromkeys(("image", "list_images", "list_pods", "pod_record", "exec_sync", "health"), CallKind.READ),
    "image_usage": CallKind.READ,
    "reopen_log": CallKind.READ,
    "events": CallKind.STREAM,
}
API = {
    **dict.fromkeys(("create", "patch", "patch_status", "delete"), CallKind.WRITE),
    **dict.fromkeys(("get", "list"), CallKind.READ),
    "watch": CallKind.STREAM,
}
VOLUMES = {
    **dict.fromkeys(("mount", "unmount", "remove_directory"), CallKind.WRITE),
    "directories": CallKind.READ,
    "mounted_pods": CallKind.IMMEDIATE,
}
CGROUPS = {**dict.fromkeys(("ensure", "remove", "throttle"), CallKind.WRITE), "list_pods": CallKind.READ}
PROBER = dict.fromkeys(("http", "tcp", "grpc"), CallKind.READ)
JOURNAL = {
    "sync": CallKind.WRITE,
    **dict.fromkeys(("load", "put", "drop", "purge"), CallKind.IMMEDIATE),
}


class PortProxy:
    """A port as one agent process sees it. All its methods pass through the process."""

    def __init__(self, process: AgentProcess, port: str, target: object, kinds: Mapping[str, CallKind]) -> None:
        self.name = getattr(target, "name", "")
        for operation, kind in kinds.items():
            setattr(self, operation, _proxied(process, port, operation, getattr(target, operation), kind))


def _proxied(
    process: AgentProcess, port: str, operation: str, method: Callable[..., Any], kind: CallKind
) -> Callable[..., Any]:
    match kind:
        case CallKind.WRITE:

            def write(*arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
                subject = process.subject_of(operation, arguments, named)
                args = (*arguments, named) if named else arguments
                return process.write(port, operation, subject, args, lambda: method(*arguments, **named))

            return write
        case CallKind.READ:

            def read(*arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
                subject = process.subject_of(operation, arguments, named)
                return process.read(port, operation, subject, arguments, lambda: method(*arguments, **named))

            return read
        case CallKind.IMMEDIATE:
            return lambda *arguments: process.call_now(
                lambda: method(*arguments), {} if operation == "load" else frozenset()
            )
        case CallKind.STREAM:
            return lambda *arguments, **named: process.stream(method(*arguments, **named))


class StreamProxy:
    """A stream that delivers nothing to a dead process, not even its end."""

    def __init__(self, stream: Any, process: AgentProcess) -> None:
        self._stream = stream
        self._process = process

    def __aiter__(self) -> "StreamProxy":
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        finally:
            if not self._process.alive:
                raise asyncio.CancelledError

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


class ProcessClock:
    """The node's clock, with the random source of one process."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, process: AgentProcess) -> None:
        # Bound once instead of forwarded, because the agent reads its clock hundreds of thousands of times in a run.
        self.now = clock.now  # the node's wall time
        self.monotonic = loop.time
        self.fraction = process.fraction


class SourceProxy:
    """A source whose updates are recorded. It delivers nothing to a dead process."""

    def __init__(self, source: Source, process: AgentProcess) -> None:
        self._source = source
        self._process = process

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, send: SendUpdate) -> None:
        """Forward the updates of the source."""

        def record_and_forward(update: PodUpdate) -> None:
            if self._process.alive:
                self._process.record_update(update)
                send(update)

        await self._source.run(record_and_forward)
