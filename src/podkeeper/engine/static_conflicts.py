"""Static conflicts: stop the old version of a static pod before the new one.

Input: a static pod that is about to start. If `resolve` raises, the worker retries the sync.

Workers start static pods of the same full name one after the other (`rules.worker.static_order`). But if a manifest
changes while the agent is down, the previous version runs without a worker. Housekeeping stops it only after all
sources are ready, and never while the API is unavailable. Until then both versions would use the same ports. So this
module stops every running pod that has the full name of the static pod and is not desired.
The kubelet has no counterpart: it lets both run.
"""

import logging
from collections.abc import Awaitable, Callable

from podkeeper.engine.manager import PodManager
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.housekeeping import ORPHAN_GRACE_SECONDS, is_running
from podkeeper.rules.static.mirror import full_name

log = logging.getLogger(__name__)


class StaticConflicts:
    def __init__(
        self,
        *,
        runtime: PodListing,
        kill: Callable[[PodRecord, int], Awaitable[None]],
        pods: PodManager,
    ) -> None:
        """`kill(record, grace_seconds)` returns after all containers of the pod have stopped."""
        self._runtime = runtime
        self._kill = kill
        self._pods = pods

    async def resolve(self, static: Pod) -> None:
        """Stop all other running pods with the full name of a static pod. Return after they have stopped."""
        for record in await self._runtime.list_pods():
            uid = PodUID(record.uid)
            if (
                uid != static.metadata.uid
                and f"{record.name}_{record.namespace}" == full_name(static)
                and is_running(record)
                and self._pods.pod_by_uid(uid) is None
            ):
                log.info("stopping pod %s: it has the name of static pod %s", uid, full_name(static))
                await self._kill(record, ORPHAN_GRACE_SECONDS)
