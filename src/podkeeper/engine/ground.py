"""What the containers of a pod stand on: its cgroup and its volumes, made ready and taken away as whole calls.

In: `prepare` before a pod's containers start, `unmount` and `remove_cgroup` once none runs any more. Out: where the
containers belong and where their volumes lie; errors, and the events that tell of them.

A call, once begun, is completed even if the pass that wanted it is cancelled: ports promise what a whole call does,
not what half of one does. The calls of one pod are made one at a time and in the order in which they were asked for: a
call that hangs is in the way of its own pod only, and not even of the stopping of its containers. What was made ready
for a version of a pod is not asked for again. The Go ancestors are the parts of `SyncPod` and `SyncTerminatedPod`
(pkg/kubelet/kubelet.go) that call the volume manager and the pod container manager.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from podkeeper.engine.background import Spawn
from podkeeper.model.errors import AgentError, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.volumes import Volumes

FAILED_MOUNT = "FailedMount"
FAILED_CGROUP = "FailedToCreatePodContainer"

T = TypeVar("T")


@dataclass(slots=True)
class Prepared:
    """What a version of a pod stands on."""

    pod: Pod
    cgroup_parent: str
    host_paths: Mapping[str, str]  # by the volume's name


class Ground:
    """Cgroups and volumes of all pods."""

    def __init__(
        self,
        *,
        volumes: Volumes,
        cgroups: Cgroups,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        spawn: Spawn,
    ) -> None:
        self._volumes = volumes
        self._cgroups = cgroups
        self._record = record
        self._spawn = spawn
        self._prepared: dict[PodUID, Prepared] = {}
        self._under_way: dict[PodUID, asyncio.Future[Any]] = {}

    async def prepare(self, pod: Pod) -> Prepared:
        """Make all ready that a pod stands on, unless that was done for this version of it."""
        uid = _uid(pod)
        prepared = self._prepared.get(uid)
        earlier = self._under_way.get(uid)
        # A pending call may remove what was prepared. An ended one stays in `_under_way` until its callback runs.
        is_changing = earlier is not None and not earlier.done()
        if prepared is None or is_changing or not _stands_on_the_same(prepared.pod, pod):
            prepared = await self._complete(uid, lambda: self._prepare(pod))
        prepared.pod = pod
        return prepared

    async def unmount(self, uid: PodUID) -> None:
        """Take down a pod's volumes."""
        await self._complete(uid, lambda: self._take_away(uid, self._volumes.unmount))

    async def remove_cgroup(self, uid: PodUID) -> None:
        """Remove a pod's cgroup."""
        await self._complete(uid, lambda: self._take_away(uid, self._cgroups.remove))

    async def _take_away(self, uid: PodUID, remove: Callable[[PodUID], Coroutine[Any, Any, None]]) -> None:
        # Before the call, not after it: if it fails, it may still have had an effect.
        self._prepared.pop(uid, None)
        await remove(uid)

    async def _prepare(self, pod: Pod) -> Prepared:
        try:
            cgroup_parent = await self._cgroups.ensure(pod)
        except AgentError as error:
            self._warn(FAILED_CGROUP, f"unable to ensure pod container exists: {error}", pod)
            raise
        try:
            host_paths = await self._volumes.mount(pod)
        except AgentError as error:
            self._warn(FAILED_MOUNT, str(error), pod)
            raise
        # Here, not in `prepare`: the caller may be gone by now, or come back only after the next call has begun.
        prepared = self._prepared[_uid(pod)] = Prepared(pod, cgroup_parent, host_paths)
        return prepared

    def _warn(self, reason: str, message: str, pod: Pod) -> None:
        self._record(PodEvent(EventType.WARNING, reason, message, _uid(pod)), pod)

    async def _complete(self, uid: PodUID, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call after those asked for before it for the same pod; once begun it is completed."""
        turn = _Turn()
        made = self._under_way[uid] = self._spawn(_in_turn(self._under_way.get(uid), turn, call))
        made.add_done_callback(partial(self._ended, uid))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            turn.abandoned = True
            raise

    def _ended(self, uid: PodUID, call: asyncio.Future[Any]) -> None:
        if self._under_way.get(uid) is call:
            del self._under_way[uid]


@dataclass(slots=True)
class _Turn:
    """A call's place in the line of its pod."""

    abandoned: bool = False  # its caller was cancelled: if the call has not begun, it is skipped


async def _in_turn(earlier: asyncio.Future[Any] | None, turn: _Turn, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if earlier is not None:
        await asyncio.wait({earlier})
    if turn.abandoned:
        raise TryLater("cannot begin a call whose caller was cancelled")
    return await call()


def _stands_on_the_same(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod need the same cgroup and volumes, which may show labels and annotations too."""
    return one is other or (
        one.spec == other.spec
        and one.metadata.labels == other.metadata.labels
        and one.metadata.annotations == other.metadata.annotations
    )


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
