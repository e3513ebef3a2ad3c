"""The care for dead containers: what was not removed when it died is removed now.

    every minute: list the runtime -> what of each pod is garbage -> remove

Of each container at most one dead one stays, whose code and log can still be asked for. Mostly there is nothing to do:
with each death of a container its predecessors go (`engine.loop`), with a pod all of it (`engine.housekeeping`). This
finds what those missed: a removal that failed, a death while no agent ran, a container that is in no known state. What
is garbage is decided by `rules.collect`. The Go ancestor is pkg/kubelet/kuberuntime/kuberuntime_gc.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.collect import Garbage, garbage_of
from podkeeper.rules.relist import current_containers_first

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0
GC_FAILED: Final = "ContainerGCFailed"


class ContainerCare:
    """Removes what is left over of pods that still exist."""

    def __init__(
        self,
        *,
        runtime: PodListing,
        collect: Callable[[PodRecord], Awaitable[None]],
        tell: Callable[[PodEvent], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """`collect` removes the garbage of one pod and bears what fails; `tell` records events about the node."""
        self._runtime = runtime
        self._collect = collect
        self._tell = tell
        self._period_seconds = period_seconds

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                await self.sweep()
            except TryLater as error:
                log.warning("dead containers are not collected, next round in %g s: %s", self._period_seconds, error)
                self._tell(PodEvent(EventType.WARNING, GC_FAILED, str(error)))
            except Exception:
                log.exception("dead containers are not collected, next round in %g s", self._period_seconds)

    async def sweep(self) -> None:
        """Make one round. Raises TryLater when the runtime does not tell what there is."""
        # A runtime may sort by creation time. If the clock was set back, an older exit would look like the last one.
        for record in map(current_containers_first, await self._runtime.list_pods()):
            if garbage_of(record) != Garbage():
                await self._collect(record)
