"""The real `PodWorkers` as a driver of the `podworkers` scripts, in virtual time.

The real workers live on a loop whose clock jumps only when nobody can move, which is how a step knows that nothing
moves any more. Their own time is the script's (`World.now`), so the jumps are not seen. A sync function here is a
coroutine that waits until the script finishes it, however often it is cancelled meanwhile.
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
from podkeeper.rules.worker.workers import KnownPod
from tests.doubles import stand_in
from tests.oracle.podworkers_world import World, error_of, is_end
from tests.violations import violation

Result = Callable[[], bool]  # returns, or raises, what a sync function is to return or raise


@dataclass(frozen=True, slots=True)
class WorldClock:
    """The script's time; jitter is always the least, so that delays are the nominal ones."""

    world: World

    def now(self) -> datetime:
        """The script's time of day."""
        return self.world.wall()

    def monotonic(self) -> float:
        """The script's seconds."""
        return self.world.now

    def fraction(self) -> float:
        """No jitter."""
        return 0


class WorldCache:
    """The script's status cache."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.newer_than: dict[str, float | None] = {}

    def get_if_sure(self, uid: PodUID) -> PodRecord:
        """What runs, as the script says."""
        return self._world.cached(uid)

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        """The same, unless the script wants an error."""
        self.newer_than[uid] = since
        error = self._world.read_newer(uid, since)
        if error is not None:
            raise TryLater(error)
        return self._world.cached(uid)


class BlockedSyncer:
    """Sync functions that return when the script says so."""

    def __init__(self, world: World, cache: WorldCache) -> None:
        self._world = world
        self._cache = cache
        self._blocked: dict[str, asyncio.Future[Result]] = {}
        self.over = False

    def finish(self, uid: PodUID, result: Result) -> None:
        """Let the call that runs for a pod end."""
        self._blocked.pop(uid).set_result(result)

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        """Block."""
        return await self._block(record.uid, SyncPod(update_type, pod, mirror_pod))

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        """Apply the status function, and block."""
        if status_function is not None:
            status_function(PodStatus())
        await self._block(record.uid, SyncTerminatingPod(pod, grace_seconds, status_function))

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        """Block."""
        await self._block(running_pod.uid, SyncTerminatingRuntimePod(running_pod))

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        """Block."""
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
                if self.over or finished.done():
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
            record=self._record,
            clock=WorldClock(world),
            moment=lambda: world.now,
        )
        self._running = asyncio.get_running_loop().create_task(self._workers.run())

    async def update(self, update: Update) -> None:
        """Tell the workers."""
        self._workers.update_pod(update)
        await self._settle()

    async def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:
        """Let the sync function that runs for a pod return."""

        def end() -> bool:
            self._world.leave(uid, result)
            if result == "canceled":
                raise asyncio.CancelledError
            error = error_of(self._world, result, backoff_seconds)
            if error is not None:
                raise error
            return is_end(result)

        self._syncer.finish(uid, end)
        await self._settle()

    async def sync_known_pods(self, desired: set[PodUID]) -> Mapping[PodUID, KnownPod]:
        """Housekeeping comes by."""
        known = self._workers.sync_known_pods(desired)
        await self._settle()
        return known

    def answers(self, uid: PodUID) -> tuple[bool, ...]:
        """The seven predicates."""
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
        """The eighth."""
        return self._workers.is_pod_for_mirror_pod_terminating(full_name)

    def state(self, uid: PodUID) -> State:
        """Where a pod stands."""
        return self._workers.state(uid)

    async def close(self) -> None:
        """End all tasks."""
        self._syncer.over = True
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _settle(self) -> None:
        """Wait until nothing moves: only then does the loop's clock jump."""
        await asyncio.sleep(1)

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        uid = about.metadata.uid if isinstance(about, Pod) else None
        if uid != event.uid:
            raise violation("events of a pass are about a configured pod")
        self._world.record(PodUID(event.uid), event)
