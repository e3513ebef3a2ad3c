"""Driver of the `podworkers` scripts with the real `PodWorkers`, in virtual time.

The clock of the loop jumps only when all tasks are idle. A step uses this to wait until nothing happens any more. The
workers use the time of the script (`World.now`), so the jumps do not affect them. A sync function is a coroutine that
waits until the script completes it, even if it is cancelled meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from podkeeper.engine.cache import PodCache
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Call,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.updates import StatusFunction, Update, UpdateType
from podkeeper.rules.worker.workers import PodWorkerSync, WorkerTable
from tests.doubles import stand_in
from tests.oracle.podworkers_world import World, error_of, is_terminal_result
from tests.violations import violation

Result = Callable[[], bool]  # returns or raises the result of a sync function


@dataclass(frozen=True, slots=True)
class WorldClock:
    """The time of the script, without jitter."""

    world: World

    def now(self) -> datetime:
        return self.world.wall()

    def monotonic(self) -> float:
        return self.world.now

    def fraction(self) -> float:
        return 0


class WorldCache:
    """The status cache of the script."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.newer_than: dict[str, float | None] = {}

    def get_if_sure(self, uid: PodUID) -> PodRecord:
        return self._world.cached(uid)

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        """Return the record, or raise an error of the script."""
        self.newer_than[uid] = since
        error = self._world.read_newer(uid, since)
        if error is not None:
            raise TryLater(error)
        return self._world.cached(uid)


class BlockedSyncer:
    """Sync functions that return when the script completes them."""

    def __init__(self, world: World, cache: WorldCache) -> None:
        self._world = world
        self._cache = cache
        self._blocked: dict[str, asyncio.Future[Result]] = {}
        self.stopped = False

    def finish(self, uid: PodUID, result: Result) -> None:
        self._blocked.pop(uid).set_result(result)

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        return await self._block(record.uid, SyncPod(update_type, pod, mirror_pod))

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        """Apply the status function and block."""
        if status_function is not None:
            status_function(PodStatus())
        await self._block(record.uid, SyncTerminatingPod(pod, grace_seconds, status_function))

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        await self._block(running_pod.uid, SyncTerminatingRuntimePod(running_pod))

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        await self._block(record.uid, SyncTerminatedPod(pod))

    async def _block(self, name: str, call: Call) -> bool:
        uid = PodUID(name)
        self._world.enter(uid, call, self._cache.newer_than.get(uid))
        self._blocked[uid] = finished = asyncio.get_running_loop().create_future()
        while True:
            try:
                result: Result = await asyncio.shield(finished)
                return result()
            except asyncio.CancelledError:
                if self.stopped or finished.done():
                    raise
                self._world.cancel(uid)


class PodWorkersDriver:
    """The real workers, in tasks."""

    def __init__(self, world: World) -> None:
        self._world = world
        cache = WorldCache(world)
        self._syncer = BlockedSyncer(world, cache)
        self._workers = PodWorkers(
            syncer=stand_in(PodSyncer, self._syncer),
            cache=stand_in(PodCache, cache),
            enqueue=world.enqueue,
            record_event=self._record,
            clock=WorldClock(world),
            inspection_clock=lambda: world.now,
            states=WorkerTable(),
        )
        self._running = asyncio.get_running_loop().create_task(self._workers.run())

    async def update(self, update: Update) -> None:
        self._workers.update_pod(update)
        await self._settle()

    async def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:

        def end() -> bool:
            self._world.leave(uid, result)
            if result == "canceled":
                raise asyncio.CancelledError
            error = error_of(self._world, result, backoff_seconds)
            if error is not None:
                raise error
            return is_terminal_result(result)

        self._syncer.finish(uid, end)
        await self._settle()

    async def sync_known_pods(self, desired: set[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        known = self._workers.sync_known_pods(desired)
        await self._settle()
        return known

    def answers(self, uid: PodUID) -> tuple[bool, ...]:
        return (
            self._workers.is_pod_known_terminated(uid),
            self._workers.could_have_running_containers(uid),
            self._workers.is_pod_termination_requested(uid),
            self._workers.should_pod_containers_be_terminating(uid),
            self._workers.should_pod_runtime_be_removed(uid),
            self._workers.should_pod_content_be_removed(uid),
            self._workers.should_pod_be_finished(uid),
        )

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return self._workers.is_pod_for_mirror_pod_terminating(full_name)

    def state(self, uid: PodUID) -> State:
        return self._workers.state(uid)

    async def close(self) -> None:
        self._syncer.stopped = True
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _settle(self) -> None:
        """Wait until all tasks are idle, because only then the clock of the loop jumps."""
        await asyncio.sleep(1)

    def _record(self, event: PodEvent, subject: Pod | PodRecord | None) -> None:
        uid = subject.metadata.uid if isinstance(subject, Pod) else None
        if uid != event.uid:
            raise violation("events of a sync belong to a configured pod")
        self._world.record(PodUID(event.uid), event)
