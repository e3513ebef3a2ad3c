"""Mirrors: keeps the API's shadows of static pods, without making a static pod wait for the API.

In: `ensure`, from each pass over a static pod, and `delete`, from housekeeping. Out: calls to the API. What a mirror
needs is decided in `rules.mirror`.

`ensure` only notes that a mirror needs care and returns: a static pod runs through any outage of the API. The care is
given in the background, one call at a time per name, and retried with growing pauses for as long as the pod is
desired. Every call bears being repeated: a mirror that is gone is deleted, one that is there in the right version is
created, whoever did it (an answer that was lost, for one). Without an API nothing is done. The Go ancestors are
`MirrorClient` in pkg/kubelet/pod and `tryReconcileMirrorPods` in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from podkeeper.engine.manager import PodManager
from podkeeper.model.errors import AlreadyExists, Conflict, NotFound, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.wire import Wire
from podkeeper.ports.api import Reader
from podkeeper.rules.mirror import (
    MirrorStep,
    full_name,
    is_static_pod,
    mirror_deletion,
    mirror_pod_for,
    mirror_step,
)

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Wire)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class Api(Reader, Protocol):
    """What this room asks of the API: a part of `ports.api`."""

    async def create(self, what: K) -> K:
        """Create an object. Raises AlreadyExists."""

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete an object. Raises NotFound; Conflict when the UID differs."""


class MirrorClient:
    """Creates, replaces and deletes mirrors."""

    def __init__(
        self, *, api: Api | None, pods: PodManager, node_name: str, node_uid: Callable[[], str | None]
    ) -> None:
        self._api = api
        self._pods = pods
        self._node_name = node_name
        self._node_uid = node_uid  # None while the node is not registered, or is being deleted
        self._needing: dict[PodUID, None] = {}  # in the order they came
        self._at_work: set[PodUID] = set()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Care for mirrors until cancelled; without an API there is nothing to do."""
        api = self._api
        if api is None:
            return
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                for uid in [uid for uid in self._needing if uid not in self._at_work]:
                    del self._needing[uid]
                    self._at_work.add(uid)
                    group.create_task(self._care_for(uid, api))

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        """See to it that a static pod has its mirror. Returns at once; any other pod has none, and needs none."""
        if self._api is None or not is_static_pod(static) or mirror_step(static, mirror) is MirrorStep.KEEP:
            return
        self._needing[PodUID(static.metadata.uid or "")] = None
        self._news.set()

    async def delete(self, pod_full_name: str, uid: str | None = None) -> bool:
        """Delete a mirror, with a UID that one only. False: it is gone, or is another one, or there is no API."""
        if self._api is None:
            return False
        return await _delete(self._api, pod_full_name, uid)

    async def _care_for(self, uid: PodUID, api: Api) -> None:
        """Give one mirror what it needs; the task's boundary."""
        pause = FIRST_PAUSE_SECONDS
        try:
            while (static := self._pods.pod_by_uid(uid)) is not None:
                try:
                    await self._mend(static, self._pods.mirror_of_pod(static), api)
                    return
                except TryLater as error:
                    name = full_name(static)
                    log.warning("mirror of pod %s not brought up to date, next try in %g s: %s", name, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        except Exception:
            log.exception("mirror of pod with UID %s not brought up to date", uid)
        finally:
            self._at_work.discard(uid)
            if uid in self._needing:
                self._news.set()

    async def _mend(self, static: Pod, mirror: Pod | None, api: Api) -> None:
        step = mirror_step(static, mirror)
        if step is MirrorStep.KEEP:
            return
        wanted = mirror_pod_for(
            static, self._node_name, self._node_uid()
        )  # first: nothing goes before its heir can come
        if step is MirrorStep.RECREATE and mirror is not None:
            await _delete(api, full_name(static), mirror.metadata.uid)
        try:
            await api.create(wanted)
        except AlreadyExists:
            there = await api.get(Pod, wanted.metadata.name or "", wanted.metadata.namespace or "")
            if mirror_step(static, there) is not MirrorStep.KEEP:
                raise  # the watch will show that pod soon, and it is judged then
        else:
            log.info("created the mirror of pod %s", full_name(static))


async def _delete(api: Api, pod_full_name: str, uid: str | None) -> bool:
    deletion = mirror_deletion(pod_full_name, uid)
    try:
        await api.delete(Pod, deletion.name, deletion.namespace, grace_seconds=0, uid=uid)
    except (NotFound, Conflict):
        return False
    log.info("deleted the mirror of pod %s", pod_full_name)
    return True
