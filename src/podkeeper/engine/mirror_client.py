"""Mirror client: creates, replaces and deletes the mirror pods of static pods.

Inputs: `ensure` from each sync of a static pod, `delete` from housekeeping. Output: calls to the API.
`rules.static.mirror` decides what a mirror pod needs.

`ensure` only queues the pod and returns, so that a static pod never waits for the API. The calls run in the
background, one at a time per pod, and are retried with backoff as long as the pod is desired. Every call is idempotent:
a missing mirror pod counts as deleted, and a mirror pod of the right version counts as created. So a lost answer
does no harm. Without an API, nothing is done. Kubelet counterparts: `MirrorClient` in pkg/kubelet/pod and
`tryReconcileMirrorPods` in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections.abc import Callable

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.engine.manager import PodManager
from podkeeper.model.errors import AlreadyExists, Conflict, NotFound, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.ports.api import ReadWriteApi
from podkeeper.rules.static.mirror import (
    MirrorStep,
    full_name,
    is_static_pod,
    mirror_deletion,
    mirror_pod_for,
    mirror_step,
)

log = logging.getLogger(__name__)

BACKOFF = GrowingDelay(first_seconds=1.0, longest_seconds=30.0)


class MirrorClient:
    def __init__(
        self, *, api: ReadWriteApi | None, pods: PodManager, node_name: str, node_uid: Callable[[], str | None]
    ) -> None:
        self._api = api
        self._pods = pods
        self._node_name = node_name
        self._node_uid = node_uid  # None if the node is not registered, or is being deleted
        self._queue: dict[PodUID, None] = {}  # static pods to reconcile, in the order of their arrival
        self._active: set[PodUID] = set()  # static pods with a task
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Reconcile queued pods until cancelled. Return at once without an API."""
        api = self._api
        if api is None:
            return
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for uid in [uid for uid in self._queue if uid not in self._active]:
                    del self._queue[uid]
                    self._active.add(uid)
                    group.create_task(self._reconcile_until_done(uid, api))

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        """Queue a static pod if its mirror pod is missing or outdated. Return at once. Other pods are ignored."""
        if self._api is None or not is_static_pod(static) or mirror_step(static, mirror) is MirrorStep.KEEP:
            return
        # Only the UID: the task reads the newest version when it begins.
        self._queue[PodUID(static.metadata.uid or "")] = None
        self._wake.set()

    async def delete(self, pod_full_name: str, uid: str | None = None) -> bool:
        """Delete a mirror pod. Return False if it does not exist, has another UID, or there is no API."""
        if self._api is None:
            return False
        return await _delete(self._api, pod_full_name, uid)

    async def _reconcile_until_done(self, uid: PodUID, api: ReadWriteApi) -> None:
        retries = RetryCounter(BACKOFF)
        try:
            while (static := self._pods.pod_by_uid(uid)) is not None:
                try:
                    await self._reconcile(static, self._pods.mirror_of_pod(static), api)
                    return
                except TryLater as error:
                    name, backoff = full_name(static), retries.failed()
                    log.warning("cannot update the mirror pod of %s, will retry in %g s: %s", name, backoff, error)
                await asyncio.sleep(backoff)
        except Exception:
            log.exception("unexpected error while updating the mirror pod of static pod %s", uid)
        finally:
            self._active.discard(uid)
            # Requested again during the task. `run` has skipped it, because it was active.
            if uid in self._queue:
                self._wake.set()

    async def _reconcile(self, static: Pod, mirror: Pod | None, api: ReadWriteApi) -> None:
        step = mirror_step(static, mirror)
        if step is MirrorStep.KEEP:
            return
        # Build the new mirror pod before the old one is deleted, because this fails if the node is not registered.
        wanted = mirror_pod_for(static, self._node_name, self._node_uid())
        if step is MirrorStep.RECREATE and mirror is not None:
            await _delete(api, full_name(static), mirror.metadata.uid)
        try:
            await api.create(wanted)
        except AlreadyExists:
            # The create of a crashed agent or a lost answer may have created it. The watch may not have delivered it
            # yet.
            existing = await api.get(Pod, wanted.metadata.name or "", wanted.metadata.namespace or "")
            if mirror_step(static, existing) is not MirrorStep.KEEP:
                raise  # retry, because the watch will soon deliver the existing pod
        else:
            log.info("created the mirror pod of %s", full_name(static))


async def _delete(api: ReadWriteApi, pod_full_name: str, uid: str | None) -> bool:
    deletion = mirror_deletion(pod_full_name, uid)
    try:
        await api.delete(Pod, deletion.name, deletion.namespace, grace_seconds=0, uid=uid)
    except (NotFound, Conflict):
        return False
    log.info("deleted the mirror pod of %s", pod_full_name)
    return True
