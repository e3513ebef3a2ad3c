"""A house of real rooms (loop, handlers, housekeeping, admission, workers) around a syncer and a runtime that are toys.

A pod runs from the end of its first sync to the end of its termination; each takes as long as the test says.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from podkeeper.engine.admission import Admission
from podkeeper.engine.cache import PodCache
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.queue import WorkQueue
from podkeeper.engine.status import StatusManager
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
)
from podkeeper.model.runtime import PodRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.worker.updates import StatusFunction, UpdateType
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.violations import violation

T = TypeVar("T")


def pod(
    name: str,
    uid: str | None = None,
    *,
    source: str = API_SOURCE,
    mirror: bool = False,
    created: str | None = None,
    cpu: str | None = None,
    phase: str | None = None,
    deleted: bool = False,
    deadline_seconds: int | None = None,
    start_time: str | None = None,
) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: source} | ({CONFIG_MIRROR_ANNOTATION: "hash"} if mirror else {})
    resources = ResourceRequirements(requests={"cpu": cpu} if cpu else None)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=name if uid is None else uid,
            annotations=annotations,
            creation_timestamp=created,
            deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
        ),
        spec=PodSpec(
            containers=(Container(name="app", resources=resources),), active_deadline_seconds=deadline_seconds
        ),
        status=PodStatus(phase=phase, start_time=start_time),
    )


def uids(*names: str) -> frozenset[PodUID]:
    return frozenset(map(PodUID, names))


async def never() -> None:
    await asyncio.Event().wait()


class ToyRuntime:
    """Has the pods that run. Its calls can be made to wait, fail or hang."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.before_listing: Callable[[], Awaitable[None]] | None = None
        self.before_health: Callable[[], Awaitable[None]] | None = None
        self.ready = True

    async def list_pods(self) -> Sequence[PodRecord]:
        if self.before_listing is not None:
            await self.before_listing()
        return [self.record(uid) for uid in sorted(self.running)]

    async def health(self) -> RuntimeHealth:
        if self.before_health is not None:
            await self.before_health()
        return RuntimeHealth(runtime_ready=self.ready, message="" if self.ready else "starting")

    def record(self, uid: str) -> PodRecord:
        sandboxes = (SandboxRecord(id=f"{uid}-sandbox", ready=True),) if uid in self.running else ()
        return PodRecord(uid=uid, name=uid, namespace="ns", sandboxes=sandboxes)


class ToyCache:
    """Knows what the runtime knows."""

    def __init__(self, runtime: ToyRuntime) -> None:
        self._runtime = runtime

    def get_if_sure(self, uid: PodUID) -> PodRecord:
        return self._runtime.record(uid)

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        return self._runtime.record(uid)


class ToySyncer:
    """Starts and stops pods in the toy runtime, and keeps a diary of it."""

    def __init__(self, runtime: ToyRuntime) -> None:
        self._runtime = runtime
        self.diary: list[tuple[float, str, str]] = []
        self.stop_seconds: dict[str, float] = defaultdict(float)
        self.hanging: set[str] = set()

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        uid = self._note("sync", pod)
        if uid in self.hanging:
            await never()
        self._runtime.running.add(uid)
        return False

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        uid = self._note("stop", pod)
        await asyncio.sleep(self.stop_seconds[uid])
        self._runtime.running.discard(uid)

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        self.diary.append((_now(), "kill orphan", running_pod.uid))
        await asyncio.sleep(self.stop_seconds[running_pod.uid])
        self._runtime.running.discard(running_pod.uid)

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        self._note("clean up", pod)

    def did(self, what: str, uid: str) -> list[float]:
        """When this was done to a pod."""
        return [at for at, verb, who in self.diary if (verb, who) == (what, uid)]

    def _note(self, what: str, pod: Pod) -> str:
        uid = pod.metadata.uid or ""
        self.diary.append((_now(), what, uid))
        return uid


class ToyStatuses:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.statuses: dict[PodUID, PodStatus] = {}
        self.flags: list[tuple[str, str, str, bool]] = []
        self.kept: frozenset[PodUID] | None = None
        self.told_mirrors: list[PodUID] = []

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self.statuses.get(uid)

    def set_pod_status(self, pod: Pod, status: PodStatus) -> None:
        self.statuses[PodUID(pod.metadata.uid or "")] = status

    def mirror_changed(self, uid: PodUID) -> None:
        self.told_mirrors.append(uid)

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> None:
        self.flags.append(("ready", uid, container_id, ready))

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> None:
        self.flags.append(("started", uid, container_id, started))

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        self.kept = frozenset(keep)


class ToyProbes:
    def __init__(self) -> None:
        self.kept: frozenset[PodUID] | None = None

    def keep_only(self, uids: Collection[PodUID]) -> None:
        self.kept = frozenset(uids)


class ToyMirrors:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete(self, pod_full_name: str) -> bool:
        self.deleted.append(pod_full_name)
        return True


class ToyHouse:
    """Volumes and cgroups: who has a directory, a mount, a cgroup. Calls named in `hanging` never return."""

    def __init__(self) -> None:
        self.cgroups: set[PodUID] = set()
        self.dirs: set[PodUID] = set()
        self.mounts: set[PodUID] = set()
        self.throttled: set[PodUID] = set()
        self.hanging: set[str] = set()
        self.failing: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.begun: list[tuple[float, str]] = []  # the same calls, and when they began

    async def list_pods(self) -> frozenset[PodUID]:
        await self._call("list cgroups")
        return frozenset(self.cgroups)

    async def ensure(self, pod: Pod) -> str:
        raise violation("housekeeping makes no cgroups")

    async def remove(self, uid: PodUID) -> None:
        await self._call(f"remove cgroup {uid}")
        self.cgroups.discard(uid)

    async def throttle(self, uid: PodUID) -> None:
        self.throttled.add(uid)

    async def mount(self, pod: Pod) -> dict[str, str]:
        raise violation("housekeeping mounts nothing")

    async def unmount(self, uid: PodUID) -> None:
        await self._call(f"unmount {uid}")
        self.mounts.discard(uid)

    def mounted_pods(self) -> frozenset[PodUID]:
        return frozenset(self.mounts)

    async def directories(self) -> frozenset[PodUID]:
        await self._call("list directories")
        return frozenset(self.dirs)

    async def remove_directory(self, uid: PodUID) -> None:
        await self._call(f"remove directory {uid}")
        self.dirs.discard(uid)

    async def _call(self, what: str) -> None:
        self.calls.append(what)
        self.begun.append((_now(), what))
        await asyncio.sleep(0)
        if what in self.failing:
            raise self.failing[what]
        if what in self.hanging:
            await never()


class LoopHouse:
    """All of it, plugged together. To be made inside of a virtual loop."""

    def __init__(
        self,
        *,
        sources: Collection[str] = (API_SOURCE,),
        cpu: str = "4",
        max_pods: str = "20000",
        happenings: Callable[[], int] | None = None,
        calls: PortCalls | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.runtime, self.house = ToyRuntime(), ToyHouse()
        self.status, self.probes, self.mirrors = ToyStatuses(), ToyProbes(), ToyMirrors()
        self.events: list[PodEvent] = []
        self.collected: list[tuple[str, str, bool]] = []
        self.pods, self.syncer = PodManager(), ToySyncer(self.runtime)
        self.queue = WorkQueue(self.clock.monotonic)
        self.workers = PodWorkers(
            syncer=stand_in(PodSyncer, self.syncer),
            cache=stand_in(PodCache, ToyCache(self.runtime)),
            enqueue=lambda uid, seconds: self.loop.enqueue(uid, seconds),
            record=lambda event, _: self.events.append(event),
            clock=self.clock,
            moment=self._moment,
            left=lambda name: self.loop.left(name),
        )
        allocatable: dict[str, QuantityLike] = {"cpu": cpu, "memory": "1Ti", "pods": max_pods}
        node = Node(metadata=ObjectMeta(name="node"), status=NodeStatus(allocatable=allocatable))
        self.admission = Admission(node=lambda: node, workers=self.workers, status=stand_in(StatusManager, self.status))
        self.preemption = Preemption(
            workers=self.workers, record=lambda event, _: self.events.append(event), clock=self.clock
        )
        self.deadlines = ActiveDeadlines(
            status=stand_in(StatusManager, self.status),
            is_ending=self.workers.is_pod_termination_requested,
            clock=self.clock,
        )
        self.handlers = SyncHandlers(
            pods=self.pods,
            workers=self.workers,
            status=stand_in(StatusManager, self.status),
            deadlines=self.deadlines,
            admission=self.admission,
            preemption=self.preemption,
            sources=sources,
            has_seen=lambda _: True,
            collect_dead=lambda uid, container_id, everything: self.collected.append((uid, container_id, everything)),
            record=lambda event, _: self.events.append(event),
            clock=self.clock,
        )
        watched_runtime = self.runtime if calls is None else calls.watch("runtime", self.runtime)
        mirrors = stand_in(MirrorClient, self.mirrors)
        self.housekeeping = Housekeeping(
            pods=self.pods,
            workers=self.workers,
            runtime=watched_runtime,
            status=stand_in(StatusManager, self.status),
            probes=stand_in(ProbeManager, self.probes),
            mirrors=mirrors if calls is None else calls.watch("mirrors", mirrors, {"delete": (TryLater,)}),
            admission=self.admission,
            clock=self.clock,
            volumes=self.house if calls is None else calls.watch("volumes", self.house),
            cgroups=self.house if calls is None else calls.watch("cgroups", self.house),
            held=self.preemption.held,
            happenings=happenings,
        )
        self.loop = SyncLoop(
            handlers=self.handlers,
            queue=self.queue,
            deadlines=self.deadlines,
            housekeeping=self.housekeeping,
            runtime=watched_runtime,
            clock=self.clock,
        )
        self._last_moment = 0.0

    def _moment(self) -> float:
        self._last_moment = max(self.clock.monotonic(), self._last_moment + 1e-9)
        return self._last_moment

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Let all rooms run."""
        async with asyncio.TaskGroup() as group:
            rooms = [group.create_task(room.run()) for room in (self.workers, self.preemption, self.loop)]
            yield
            for room in rooms:
                room.cancel()

    def tell(self, op: Op, *pods: Pod, source: str = API_SOURCE) -> None:
        self.loop.tell_config(PodUpdate(op, pods, source))


def play(
    story: Callable[[LoopHouse], Awaitable[T]],
    *,
    sources: Collection[str] = (API_SOURCE,),
    cpu: str = "4",
    max_pods: str = "20000",
    happenings: Callable[[], int] | None = None,
) -> tuple[T, float]:
    """Let a house live while a story is told; returns the story's result and the virtual seconds it took."""

    async def life() -> T:
        house = LoopHouse(sources=sources, cpu=cpu, max_pods=max_pods, happenings=happenings)
        async with house.alive():
            return await story(house)

    return simulate(life())


def _now() -> float:
    return asyncio.get_running_loop().time()
