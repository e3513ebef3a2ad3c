"""A harness of the real loop, handlers, housekeeping, admission and workers with a fake syncer and a fake runtime.

A pod runs from the end of its first sync to the end of its termination. The test sets how long a termination takes.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from podkeeper.engine.admission import Admission
from podkeeper.engine.cache import PodCache
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.engine.status import StatusManager
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Node, NodeStatus, Pod, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    API_SOURCE,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
)
from podkeeper.model.runtime import PodRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.worker.updates import StatusFunction, UpdateType
from podkeeper.rules.worker.workers import WorkerTable
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.violations import violation

T = TypeVar("T")


pod = partial(build.pod, namespace="ns", uid_prefix="", source=API_SOURCE)


def uids(*names: str) -> frozenset[PodUID]:
    return frozenset(map(PodUID, names))


async def never() -> None:
    await asyncio.Event().wait()


class LoopRuntime:
    """Holds the running pods. A test can make its calls wait, fail or hang."""

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


class LoopCache:
    """Return the state of the fake runtime."""

    def __init__(self, runtime: LoopRuntime) -> None:
        self._runtime = runtime

    def get_if_sure(self, uid: PodUID) -> PodRecord:
        return self._runtime.record(uid)

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        return self._runtime.record(uid)


class LoopSyncer:
    """Starts and stops pods in the fake runtime, and logs each call with its time."""

    def __init__(self, runtime: LoopRuntime) -> None:
        self._runtime = runtime
        self.log: list[tuple[float, str, str]] = []
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
        self.log.append((_now(), "kill orphan", running_pod.uid))
        await asyncio.sleep(self.stop_seconds[running_pod.uid])
        self._runtime.running.discard(running_pod.uid)

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        self._note("clean up", pod)

    def did(self, what: str, uid: str) -> list[float]:
        """Return the times of this call for this pod."""
        return [at for at, call, of in self.log if (call, of) == (what, uid)]

    def _note(self, what: str, pod: Pod) -> str:
        uid = pod.metadata.uid or ""
        self.log.append((_now(), what, uid))
        return uid


class FakeStatuses:
    """Store the statuses that it receives."""

    def __init__(self) -> None:
        self.statuses: dict[PodUID, PodStatus] = {}
        self.flags: list[tuple[str, str, str, bool]] = []
        self.kept: frozenset[PodUID] | None = None
        self.changed_mirrors: list[PodUID] = []

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self.statuses.get(uid)

    def set_pod_status(self, pod: Pod, status: PodStatus) -> None:
        self.statuses[PodUID(pod.metadata.uid or "")] = status

    def mirror_changed(self, uid: PodUID) -> None:
        self.changed_mirrors.append(uid)

    def forget_rejection(self, pod: Pod) -> bool:
        return False

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> None:
        self.flags.append(("ready", uid, container_id, ready))

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> None:
        self.flags.append(("started", uid, container_id, started))

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        self.kept = frozenset(keep)


class FakeProbes:
    def __init__(self) -> None:
        self.kept: frozenset[PodUID] | None = None

    def keep_only(self, uids: Collection[PodUID]) -> None:
        self.kept = frozenset(uids)


class LoopMirrors:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete(self, pod_full_name: str) -> bool:
        self.deleted.append(pod_full_name)
        return True


class FakeHost:
    """Volumes and cgroups: the pods with a directory, a mount or a cgroup. Calls in `hanging` never return."""

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


class LoopHarness:
    """All modules, connected. Must be created inside a virtual loop."""

    def __init__(
        self,
        *,
        sources: Collection[str] = (API_SOURCE,),
        cpu: str = "4",
        max_pods: str = "20000",
        skips_unchanged_rounds: bool = False,
        calls: PortCalls | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.runtime, self.host = LoopRuntime(), FakeHost()
        self.status, self.probes, self.mirrors = FakeStatuses(), FakeProbes(), LoopMirrors()
        self.events: list[PodEvent] = []
        self.collected: list[tuple[str, str, bool]] = []
        self.pods, self.syncer = PodManager(), LoopSyncer(self.runtime)
        self.inbox = LoopInbox(clock=self.clock)
        self.workers = PodWorkers(
            syncer=stand_in(PodSyncer, self.syncer),
            cache=stand_in(PodCache, LoopCache(self.runtime)),
            enqueue=self.inbox.enqueue,
            record_event=lambda event, _: self.events.append(event),
            clock=self.clock,
            inspection_clock=self._moment,
            states=WorkerTable(),
            static_pod_ended=self.inbox.static_pod_ended,
        )
        allocatable: dict[str, QuantityLike] = {"cpu": cpu, "memory": "1Ti", "pods": max_pods}
        node = Node(metadata=ObjectMeta(name="node"), status=NodeStatus(allocatable=allocatable))
        self.admission = Admission(
            node=lambda: node, workers=self.workers, statuses=stand_in(StatusManager, self.status)
        )
        self.preemption = Preemption(
            workers=self.workers, record_event=lambda event, _: self.events.append(event), clock=self.clock
        )
        self.deadlines = ActiveDeadlines(
            statuses=stand_in(StatusManager, self.status),
            is_terminating=self.workers.is_pod_termination_requested,
            clock=self.clock,
        )
        self.handlers = SyncHandlers(
            pods=self.pods,
            workers=self.workers,
            statuses=stand_in(StatusManager, self.status),
            deadlines=self.deadlines,
            admission=self.admission,
            preemption=self.preemption,
            sources=sources,
            has_seen=lambda _: True,
            collect_dead=lambda uid, container_id, everything: self.collected.append((uid, container_id, everything)),
            record_event=lambda event, _: self.events.append(event),
            clock=self.clock,
        )
        watched_runtime = self.runtime if calls is None else calls.watch("runtime", self.runtime)
        mirrors = stand_in(MirrorClient, self.mirrors)
        self.housekeeping = Housekeeping(
            pods=self.pods,
            workers=self.workers,
            runtime=watched_runtime,
            statuses=stand_in(StatusManager, self.status),
            probes=stand_in(ProbeManager, self.probes),
            mirrors=mirrors if calls is None else calls.watch("mirrors", mirrors, {"delete": (TryLater,)}),
            admission=self.admission,
            clock=self.clock,
            volumes=self.host if calls is None else calls.watch("volumes", self.host),
            cgroups=self.host if calls is None else calls.watch("cgroups", self.host),
            held=self.preemption.held,
            inbox=self.inbox if skips_unchanged_rounds else None,
        )
        self.loop = SyncLoop(
            handlers=self.handlers,
            inbox=self.inbox,
            deadlines=self.deadlines,
            housekeeping=self.housekeeping,
            runtime_state=RuntimeState(watched_runtime),
            clock=self.clock,
        )
        self._last_moment = 0.0

    def _moment(self) -> float:
        self._last_moment = max(self.clock.monotonic(), self._last_moment + 1e-9)
        return self._last_moment

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all parts."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part.run()) for part in (self.workers, self.preemption, self.loop)]
            yield
            for task in tasks:
                task.cancel()

    def send_update(self, op: Op, *pods: Pod, source: str = API_SOURCE) -> None:
        self.inbox.put(PodUpdate(op, pods, source))


def run_scenario(
    scenario: Callable[[LoopHarness], Awaitable[T]],
    *,
    sources: Collection[str] = (API_SOURCE,),
    cpu: str = "4",
    max_pods: str = "20000",
    skips_unchanged_rounds: bool = False,
) -> tuple[T, float]:
    """Run a scenario with a harness. Return its result and the virtual seconds it took."""

    async def run() -> T:
        harness = LoopHarness(
            sources=sources, cpu=cpu, max_pods=max_pods, skips_unchanged_rounds=skips_unchanged_rounds
        )
        async with harness.running():
            return await scenario(harness)

    return simulate(run())


def _now() -> float:
    return asyncio.get_running_loop().time()
