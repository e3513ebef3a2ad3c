"""Container garbage collection: remove dead containers that were missed.

    every minute: list the runtime -> choose the garbage of each pod -> remove it

Each container keeps at most its last exited attempt, for its exit code and log. Usually there is nothing to do:
`PodContainerDeletor` removes older attempts when a container exits, and housekeeping removes all containers of a
removed pod. This module collects the rest: failed removals, exits while no agent ran, containers in an unknown state.
`rules.container_gc` decides what is garbage. Kubelet counterpart: pkg/kubelet/kuberuntime/kuberuntime_gc.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.container_gc import Garbage, garbage_of
from podkeeper.rules.relist import current_containers_first

log = logging.getLogger(__name__)

# The kubelet's ContainerGCPeriod.
PERIOD_SECONDS: Final = 60.0
GC_FAILED: Final = "ContainerGCFailed"


class ContainerGC:
    def __init__(
        self,
        *,
        runtime: PodListing,
        collect: Callable[[PodRecord], Awaitable[None]],
        record_event: Callable[[PodEvent], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """`collect` removes the garbage of one pod and handles errors. `record_event` records events about the node."""
        self._runtime = runtime
        self._collect = collect
        self._record_event = record_event
        self._period_seconds = period_seconds

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                await self.garbage_collect()
            except TryLater as error:
                log.warning("container GC failed, will retry in %g s: %s", self._period_seconds, error)
                self._record_event(PodEvent(EventType.WARNING, GC_FAILED, str(error)))
            except Exception:
                log.exception("unexpected error in container GC, will retry in %g s", self._period_seconds)

    async def garbage_collect(self) -> None:
        """Collect garbage once. Raise TryLater if the runtime does not list its pods."""
        # A runtime may sort by creation time. If the clock was set back, an older exit would look like the last one.
        for pod in map(current_containers_first, await self._runtime.list_pods()):
            if garbage_of(pod) != Garbage():
                await self._collect(pod)
