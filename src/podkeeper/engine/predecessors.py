"""Predecessors: before a static pod gets its sandbox, nothing of another pod of its full name runs any more.

In: a static pod that is about to start. Out: nothing, or an error when that is to be tried again.

Static pods that the workers know of wait for each other (`rules.worker.static_order`). But a manifest can change while
no agent lives: the next one finds the former copy running, and nobody who knows it. Housekeeping would end it in time,
once every source has spoken, and until then both copies would fight for the same ports; while the API is away, for
ever. A name belongs to one pod: whoever else runs under the name of a static pod, and is not desired, is a former copy.
There is no Go ancestor: the reference lets both run.
"""

import logging
from collections.abc import Awaitable, Callable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.housekeeping import ORPHAN_GRACE_SECONDS, is_running
from podkeeper.rules.mirror import full_name

log = logging.getLogger(__name__)


class Predecessors:
    """Ends former copies of static pods."""

    def __init__(
        self,
        *,
        runtime: PodListing,
        kill: Callable[[PodRecord, int], Awaitable[None]],
        is_desired: Callable[[PodUID], bool],
    ) -> None:
        """`kill(record, grace_seconds)` returns once nothing of that pod runs."""
        self._runtime = runtime
        self._kill = kill
        self._is_desired = is_desired

    async def end(self, static: Pod) -> None:
        """Return once no former copy of a static pod runs."""
        for record in await self._runtime.list_pods():
            uid = PodUID(record.uid)
            if (
                uid != static.metadata.uid
                and f"{record.name}_{record.namespace}" == full_name(static)
                and is_running(record)
                and not self._is_desired(uid)
            ):
                log.info("pod %s runs under the name of static pod %s: ending it", uid, full_name(static))
                await self._kill(record, ORPHAN_GRACE_SECONDS)
