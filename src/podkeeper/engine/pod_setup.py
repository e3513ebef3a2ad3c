"""Set up and tear down the cgroup and the volumes of pods.

In: `prepare` before a pod's containers start, `unmount` and `remove_cgroup` after the last one has exited. Out: the
cgroup parent of the containers and the host paths of the volumes. Errors are raised and recorded as events. Guarantees:

* A call that has begun is completed, even if its sync is cancelled, because the ports do not define the state after an
  interrupted call.
* The calls of one pod run one at a time, in the order of the requests. A hung call blocks only its own pod, and not the
  stop of its containers.
* If only the status of a prepared pod changed, `prepare` makes no call.

Kubelet counterpart: the parts of `SyncPod` and `SyncTerminatedPod` in pkg/kubelet/kubelet.go that call the volume
manager and the pod container manager.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from podkeeper.engine.background import Spawn
from podkeeper.engine.events import EventFunction
from podkeeper.model.errors import AgentError, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.volumes import Volumes

FAILED_MOUNT = "FailedMount"
FAILED_CGROUP = "FailedToCreatePodContainer"

T = TypeVar("T")


@dataclass(slots=True)
class Prepared:
    """The cgroup and the volumes of a pod."""

    pod: Pod
    cgroup_parent: str
    host_paths: Mapping[str, str]  # by volume name


class PodSetup:
    def __init__(
        self,
        *,
        volumes: Volumes,
        cgroups: Cgroups,
        record_event: EventFunction,
        spawn: Spawn,
    ) -> None:
        self._volumes = volumes
        self._cgroups = cgroups
        self._record_event = record_event
        self._spawn = spawn
        self._prepared: dict[PodUID, Prepared] = {}
        self._in_flight: dict[PodUID, asyncio.Future[Any]] = {}

    async def prepare(self, pod: Pod) -> Prepared:
        """Set up the cgroup and the volumes of a pod, unless that was done for this version."""
        uid = uid_of(pod)
        prepared = self._prepared.get(uid)
        earlier = self._in_flight.get(uid)
        # A pending call may tear down what was prepared. An ended one stays in `_in_flight` until its callback runs.
        is_changing = earlier is not None and not earlier.done()
        if prepared is None or is_changing or not _needs_the_same_setup(prepared.pod, pod):
            prepared = await self._complete(uid, lambda: self._prepare(pod))
        # Also if nothing was called, so that the next comparison is with the latest version.
        prepared.pod = pod
        return prepared

    async def unmount(self, uid: PodUID) -> None:
        await self._complete(uid, lambda: self._tear_down(uid, self._volumes.unmount))

    async def remove_cgroup(self, uid: PodUID) -> None:
        await self._complete(uid, lambda: self._tear_down(uid, self._cgroups.remove))

    async def _tear_down(self, uid: PodUID, remove: Callable[[PodUID], Coroutine[Any, Any, None]]) -> None:
        # Drop the old result before the call, because a failed call may have changed the cgroup or the volumes.
        self._prepared.pop(uid, None)
        await remove(uid)

    async def _prepare(self, pod: Pod) -> Prepared:
        try:
            # The cgroup first, as in the kubelet.
            cgroup_parent = await self._cgroups.ensure(pod)
        except AgentError as error:
            self._warn(FAILED_CGROUP, f"unable to ensure pod container exists: {error}", pod)
            raise
        try:
            host_paths = await self._volumes.mount(pod)
        except AgentError as error:
            self._warn(FAILED_MOUNT, str(error), pod)
            raise
        # Store the result here, not in `prepare`. The caller of `prepare` may be cancelled, or may resume only after
        # the next call has begun.
        prepared = self._prepared[uid_of(pod)] = Prepared(pod, cgroup_parent, host_paths)
        return prepared

    def _warn(self, reason: str, message: str, pod: Pod) -> None:
        self._record_event(PodEvent(EventType.WARNING, reason, message, uid_of(pod)), pod)

    async def _complete(self, uid: PodUID, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call after the earlier calls of the same pod. A call that has begun is completed."""
        queued = _QueuedCall()
        task = self._in_flight[uid] = self._spawn(_after(self._in_flight.get(uid), queued, call))
        task.add_done_callback(partial(self._ended, uid))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A cancelled sync must not mount volumes after its pod was torn down. A call that has begun is completed.
            queued.cancelled = True
            raise

    def _ended(self, uid: PodUID, call: asyncio.Future[Any]) -> None:
        if self._in_flight.get(uid) is call:
            del self._in_flight[uid]


@dataclass(slots=True)
class _QueuedCall:
    """A call that waits for the earlier calls of its pod."""

    cancelled: bool = False  # the caller was cancelled, so a call that has not begun is skipped


async def _after(
    earlier: asyncio.Future[Any] | None, queued: _QueuedCall, call: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    if earlier is not None:
        # `wait` ignores the result: a failed call must not fail the next one.
        await asyncio.wait({earlier})
    if queued.cancelled:
        raise TryLater("cannot begin a call whose caller was cancelled")
    return await call()


def _needs_the_same_setup(one: Pod, other: Pod) -> bool:
    """Return whether two versions need the same cgroup and volumes.

    Compare labels and annotations too: downwardAPI volumes contain them.
    """
    return one is other or (
        one.spec == other.spec
        and one.metadata.labels == other.metadata.labels
        and one.metadata.annotations == other.metadata.annotations
    )
