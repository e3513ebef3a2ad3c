"""One life of the agent, and the cords that tie it to the world: cut all at once when it dies.

    agent -> cord -> (crash before?) -> the world's own task: the call -> (crash after?) -> agent

`kill -9` asks nobody. A dead agent's tasks are cancelled, and whatever their clean-up still says goes nowhere: every
cord it holds is cut first. A call that changes something runs in a task of the world: when the agent dies, or hangs
up, chance decides whether the call still takes effect. An agent can be made to die before or after any such call, so
between any two effects; what happens between those leaves nothing behind but what the world has seen.
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
from podkeeper.ports.source import Source, Tell
from podkeeper.testing.memory_objects import meta_of
from podkeeper.testing.sim.records import Answered, Asked, Bus, Called, Told
from podkeeper.testing.sim.truth import Truth

T = TypeVar("T")


class Side(Enum):
    """Of a call that changes something: before it has an effect, or after, before its answer is heard."""

    BEFORE = auto()
    AFTER = auto()


CrashPoint = Callable[[Called, Side], bool]
"""Asked at each side of each call: whether the agent dies here."""


class Life:
    """One life of the agent."""

    def __init__(self, number: int, bus: Bus, truth: Truth, random: Random, crash_point: CrashPoint) -> None:
        self.number = number
        self.alive = True
        self._bus = bus
        self._truth = truth
        self._random = random
        self._crash_point = crash_point
        self._under_way: dict[asyncio.Task[Any], Called] = {}  # in the order they began
        self._streams: list[Any] = []

    @property
    def calls_under_way(self) -> int:
        """How many calls that change something have begun and not ended."""
        return len(self._under_way)

    def end(self, calls_go_on: bool | None = None) -> None:
        """Cut all cords. The calls under way go on, or are given up with the agent; None: chance decides for each."""
        self.alive = False
        for task in tuple(self._under_way):
            goes_on = self._random.random() >= 0.5 if calls_go_on is None else calls_go_on
            if not goes_on:
                task.cancel()
        for stream in self._streams:
            stream.close(StopAsyncIteration())

    def fraction(self) -> float:
        """Chance, for this life's clock."""
        return self._random.random()

    async def change(
        self, room: str, operation: str, whom: tuple[PodUID, str], given: tuple[object, ...], do: Callable[[], Any]
    ) -> Any:
        """Let a call that changes something through."""
        self._check_alive()
        loop = asyncio.get_running_loop()
        call = Called(loop.time(), self.number, room, operation, *whom, given)
        self._bus.tell(call)
        if self._crash_point(call, Side.BEFORE):
            raise asyncio.CancelledError
        task = loop.create_task(_carried_out(do))
        self._under_way[task] = call
        task.add_done_callback(self._settle)
        # As `asyncio.wait` does it, which takes three times as long for a single task.
        waiter = loop.create_future()

        def wake(task: "asyncio.Task[Any]") -> None:
            if not waiter.done():
                waiter.set_result(None)

        task.add_done_callback(wake)
        try:
            await waiter
        except asyncio.CancelledError:
            task.remove_done_callback(wake)
            if self.alive and self._random.random() < 0.5:  # it hangs up; whether the other side notices is chance
                task.cancel()
            raise
        self._check_alive()
        if self._crash_point(call, Side.AFTER):
            raise asyncio.CancelledError
        outcome = task.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def ask(
        self, room: str, operation: str, whom: tuple[PodUID, str], given: tuple[object, ...], do: Callable[[], Any]
    ) -> Any:
        """Let a call that changes nothing through."""
        self._check_alive()
        loop = asyncio.get_running_loop()
        begun, error, result = loop.time(), "", None
        try:
            result = await do()
            return result
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            if self.alive:
                self._bus.tell(Asked(loop.time(), self.number, room, operation, *whom, given, error, result, begun))

    def do(self, do: Callable[[], T], nothing: T) -> T:
        """Let something through that happens at once."""
        return do() if self.alive else nothing

    def stream(self, stream: Any) -> "TiedStream":
        """Let a stream through, until death."""
        self._streams.append(stream)
        del self._streams[:-16]  # older ones have long been given up
        return TiedStream(stream, self)

    def told(self, update: PodUpdate) -> None:
        """Note what a source told."""
        self._bus.tell(Told(asyncio.get_running_loop().time(), self.number, update))

    def whom(self, operation: str, arguments: tuple[object, ...], named: Mapping[str, object]) -> tuple[PodUID, str]:
        """Whom a call is about, and what of it."""
        if operation == "create_container":
            made = cast(ContainerConfig, arguments[1])
            return PodUID(made.pod.metadata.uid or ""), made.container.name
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
        call = self._under_way.pop(task)
        at = asyncio.get_running_loop().time()
        outcome = None if task.cancelled() else task.result()
        failed = "cancelled" if task.cancelled() else type(outcome).__name__ if isinstance(outcome, Exception) else ""
        self._bus.tell(Answered(at, call, failed, outcome))


async def _carried_out(do: Callable[[], Awaitable[Any]]) -> Any:
    """Carry out a call; an error is a result like any other, or asyncio would complain when nobody fetches it.

    The call is made in here: one whose task is cancelled before it begins must never have been made.
    """
    try:
        return await do()
    except Exception as error:
        return error


def _uid_in(rest: list[object], named: Mapping[str, object]) -> str:
    if uid := named.get("uid"):
        return str(uid)
    patch = next((each for each in rest if isinstance(each, dict)), {})
    meta = patch.get("metadata")
    return str(meta.get("uid", "")) if isinstance(meta, dict) else ""


class Way(Enum):
    """How a method of a port goes through a cord."""

    CHANGE = auto()
    ASK = auto()
    DO = auto()  # not a coroutine
    STREAM = auto()


RUNTIME = {
    **dict.fromkeys(
        ("run_sandbox", "stop_sandbox", "remove_sandbox", "create_container", "start_container"), Way.CHANGE
    ),
    **dict.fromkeys(("stop_container", "remove_container", "pull_image", "remove_image"), Way.CHANGE),
    **dict.fromkeys(("image", "list_images", "list_pods", "pod_record", "exec_sync", "health"), Way.ASK),
    "image_usage": Way.ASK,
    "reopen_log": Way.ASK,
    "events": Way.STREAM,
}
API = {
    **dict.fromkeys(("create", "patch", "patch_status", "delete"), Way.CHANGE),
    **dict.fromkeys(("get", "list"), Way.ASK),
    "watch": Way.STREAM,
}
VOLUMES = {
    **dict.fromkeys(("mount", "unmount", "remove_directory"), Way.CHANGE),
    "directories": Way.ASK,
    "mounted_pods": Way.DO,
}
CGROUPS = {**dict.fromkeys(("ensure", "remove", "throttle"), Way.CHANGE), "list_pods": Way.ASK}
PROBER = dict.fromkeys(("http", "tcp", "grpc"), Way.ASK)
JOURNAL = {"sync": Way.CHANGE, "load": Way.DO, "put": Way.DO, "drop": Way.DO, "purge": Way.DO}


class Cord:
    """A port as one life of the agent holds it: the same methods, each through the life's hands."""

    def __init__(self, life: Life, room: str, port: object, ways: Mapping[str, Way]) -> None:
        self.name = getattr(port, "name", "")
        for operation, way in ways.items():
            setattr(self, operation, _tied(life, room, operation, getattr(port, operation), way))


def _tied(life: Life, room: str, operation: str, method: Callable[..., Any], way: Way) -> Callable[..., Any]:
    match way:
        case Way.CHANGE:

            def change(*arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
                whom = life.whom(operation, arguments, named)
                given = (*arguments, named) if named else arguments
                return life.change(room, operation, whom, given, lambda: method(*arguments, **named))

            return change
        case Way.ASK:

            def ask(*arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
                whom = life.whom(operation, arguments, named)
                return life.ask(room, operation, whom, arguments, lambda: method(*arguments, **named))

            return ask
        case Way.DO:
            return lambda *arguments: life.do(lambda: method(*arguments), {} if operation == "load" else frozenset())
        case Way.STREAM:
            return lambda *arguments, **named: life.stream(method(*arguments, **named))


class TiedStream:
    """A stream that tells a dead agent nothing, not even that it has ended."""

    def __init__(self, stream: Any, life: Life) -> None:
        self._stream = stream
        self._life = life

    def __aiter__(self) -> "TiedStream":
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        finally:
            if not self._life.alive:
                raise asyncio.CancelledError

    async def aclose(self) -> None:
        """Stop listening."""
        await self._stream.aclose()


class LifeClock:
    """The node's clock, with chance of its own for each life."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, life: Life) -> None:
        # Bound once instead of forwarded: the agent reads its clock hundreds of thousands of times in a play.
        self.now = clock.now  # the node's wall time
        self.monotonic = loop.time
        self.fraction = life.fraction


class TiedSource:
    """A source whose words are noted; a dead agent hears none."""

    def __init__(self, source: Source, life: Life) -> None:
        self._source = source
        self._life = life

    @property
    def name(self) -> str:
        """The source's."""
        return self._source.name

    async def run(self, tell: Tell) -> None:
        """Tell what the source tells."""

        def tell_and_note(update: PodUpdate) -> None:
            if self._life.alive:
                self._life.told(update)
                tell(update)

        await self._source.run(tell_and_note)
