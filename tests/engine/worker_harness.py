"""Pod workers with fake modules, for the tests of `engine/workers.py`."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from podkeeper.engine.cache import PodCache
from podkeeper.engine.observer import Observer
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import GiveUp, InBackoff, NetworkNotReady, RuntimeUnavailable, TryLater
from podkeeper.model.history import HistoryEvent
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.updates import StatusFunction, UpdateType
from podkeeper.rules.worker.workers import PodWorkerSync, WorkerTable
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.doubles import stand_in

WEB, DB = PodUID("web"), PodUID("db")
ALL_THE_WAY = ["sync_pod", "sync_terminating_pod", "sync_terminated_pod"]

Behaviour = Callable[[], Awaitable[object]]

SYNCER_ERRORS = {
    "sync_pod": (TryLater, NetworkNotReady, GiveUp),
    "sync_terminating_pod": (TryLater,),
    "sync_terminating_runtime_pod": (TryLater,),
    "sync_terminated_pod": (TryLater,),
}
CACHE_ERRORS = {"get_newer_than": (RuntimeUnavailable,)}


pod = partial(
    build.pod, namespace="ns", uid_prefix="", source=API_SOURCE, policy=None, grace=None, labels={"version": "0"}
)
static = partial(pod, "static", source=FILE_SOURCE)


create, change, again, kill = (partial(build.update, type_) for type_ in UpdateType)


async def never() -> None:
    await asyncio.Event().wait()


async def calm() -> None:
    """Run all tasks that are ready. One microsecond passes."""
    await asyncio.sleep(1e-6)


def failing(error: Exception) -> Behaviour:
    async def fail() -> None:
        raise error

    return fail


def lasting(seconds: float) -> Behaviour:
    async def last() -> None:
        await asyncio.sleep(seconds)

    return last


@dataclass(frozen=True, slots=True)
class Called:
    """One call of the syncer."""

    at: float
    function: str
    name: str
    argument: object = None


@dataclass(slots=True)
class ScriptedSyncer:
    """Return at once, unless a behaviour is set."""

    calls: list[Called] = field(default_factory=list)
    behaviours: dict[tuple[str, str], Behaviour] = field(default_factory=dict)
    records: list[PodRecord] = field(default_factory=list)
    ending: set[str] = field(default_factory=set)  # pods that complete
    busy: set[str] = field(default_factory=set)
    overlaps: list[str] = field(default_factory=list)  # pods for which two calls ran at once: must stay empty

    def behave(self, function: str, name: str, behaviour: Behaviour) -> None:
        """Set how this function behaves for this pod from now on."""
        self.behaviours[function, name] = behaviour

    def of(self, name: str) -> list[str]:
        """Return the functions called for one pod."""
        return [call.function for call in self.calls if call.name == name]

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        self.records.append(record)
        version = (pod.metadata.labels or {})["version"]
        await self._call("sync_pod", pod.metadata.name or "", f"{update_type} {version}")
        return pod.metadata.name in self.ending

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        self.records.append(record)
        if status_function is not None:
            status_function(PodStatus())
        await self._call("sync_terminating_pod", pod.metadata.name or "", grace_seconds)

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        await self._call("sync_terminating_runtime_pod", running_pod.name)

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        self.records.append(record)
        await self._call("sync_terminated_pod", pod.metadata.name or "")

    async def _call(self, function: str, name: str, argument: object = None) -> None:
        self.calls.append(Called(asyncio.get_running_loop().time(), function, name, argument))
        behaviour = self.behaviours.get((function, name))
        if behaviour is None:
            return
        if name in self.busy:
            self.overlaps.append(name)
        self.busy.add(name)
        try:
            await behaviour()
        finally:
            self.busy.discard(name)


@dataclass(slots=True)
class ScriptedCache:
    """Return an empty record at once, unless configured otherwise."""

    requests: list[tuple[PodUID, float | None]] = field(default_factory=list)
    behaviour: Behaviour | None = None
    error: Exception | None = None

    def get_if_sure(self, uid: PodUID) -> PodRecord:
        if self.error is not None:
            raise self.error
        return PodRecord(uid=uid)

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        self.requests.append((uid, since))
        if self.behaviour is not None:
            await self.behaviour()
        return PodRecord(uid=uid, name=f"record {len(self.requests)}")


@dataclass(slots=True)
class Faults:
    """Names of modules that raise."""

    raising: set[str] = field(default_factory=set)

    def fail_if_broken(self, module: str) -> None:
        if module in self.raising:
            raise RuntimeError(f"{module} is broken")


@dataclass(slots=True)
class FakeObserver(Observer):
    """Stores every call, and raises if it is broken."""

    seen: list[tuple[object, ...]] = field(default_factory=list)
    broken: bool = False

    def pod_started(self, pod: Pod) -> None:
        self._see("started", pod.metadata.uid, len(pod.spec.containers))

    def sync_started(self, update_type: UpdateType, waited_seconds: float) -> None:
        self._see("begun", str(update_type), waited_seconds)

    def sync_ended(self, operation: str, seconds: float) -> None:
        self._see("ended", operation, seconds)

    def workers_listed(self, known: Mapping[PodUID, PodWorkerSync]) -> None:
        self._see("working", dict(known))

    def _see(self, *what: object) -> None:
        self.seen.append(what)
        if self.broken:
            raise RuntimeError("broken observer")


class NoMessage(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


BUGS: dict[str, Exception] = {
    "a plain bug": KeyError("oops"),
    "an exception whose text cannot be read": NoMessage(),
    "an exception without a text": RuntimeError(),
    "a group of bugs": ExceptionGroup("several", [TryLater("cannot"), KeyError("oops")]),
    "a backoff without a time zone": InBackoff("cannot", datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone is the case under test
}


@dataclass(slots=True)
class WorkersHarness:
    """Pod workers, and the calls that they made."""

    syncer: ScriptedSyncer = field(default_factory=ScriptedSyncer)
    cache: ScriptedCache = field(default_factory=ScriptedCache)
    faults: Faults = field(default_factory=Faults)
    queued: list[tuple[PodUID, float]] = field(default_factory=list)
    recorded: list[tuple[str, Pod | PodRecord | None]] = field(default_factory=list)
    left: list[tuple[float, str]] = field(default_factory=list)
    on_left: Callable[[str], None] = field(default=lambda full_name: None)
    on_history: Callable[[PodUID, HistoryEvent], None] = field(default=lambda uid, event: None)
    history: list[tuple[PodUID, HistoryEvent]] = field(default_factory=list)
    observer: Observer | None = None
    calls: PortCalls | None = None
    workers: PodWorkers = field(init=False)
    running: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        clock, last = VirtualClock(), -math.inf

        def moment() -> float:
            nonlocal last
            last = max(clock.monotonic(), math.nextafter(last, math.inf))
            return last

        syncer, cache = stand_in(PodSyncer, self.syncer), stand_in(PodCache, self.cache)
        self.workers = PodWorkers(
            syncer=syncer if self.calls is None else self.calls.watch("syncer", syncer, SYNCER_ERRORS),
            cache=cache if self.calls is None else self.calls.watch("cache", cache, CACHE_ERRORS),
            enqueue=self._enqueue,
            record_event=self._record,
            clock=clock,
            inspection_clock=moment,
            states=WorkerTable(),
            static_pod_ended=self._left,
            add_history=self._add_history,
            observer=self.observer,
        )

    def start(self) -> None:
        self.running = asyncio.get_running_loop().create_task(self.workers.run())

    async def stop(self) -> None:
        """Stop the workers and wait for their end."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])

    def _enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        self.queued.append((uid, delay_seconds))
        self.faults.fail_if_broken("enqueue")

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append((event.reason, about))
        self.faults.fail_if_broken("record")

    def _left(self, full_name: str) -> None:
        self.left.append((asyncio.get_running_loop().time(), full_name))
        self.faults.fail_if_broken("left")
        self.on_left(full_name)

    def _add_history(self, uid: PodUID, event: HistoryEvent) -> None:
        self.history.append((uid, event))
        self.faults.fail_if_broken("history")
        self.on_history(uid, event)


@asynccontextmanager
async def running_workers(observer: Observer | None = None) -> AsyncIterator[WorkersHarness]:
    """Run workers until the block is left."""
    harness = WorkersHarness(observer=observer)
    harness.start()
    await asyncio.sleep(0)
    try:
        yield harness
    finally:
        await harness.stop()
