"""Log symlinks: create missing links and remove dead ones.

    list the links -> list the pods of the runtime -> create missing links, remove dead links

A link is created when its container starts. This module repairs the directory once a minute, for example after a crash
between start and link, and removes links after their logs are removed.
Kubelet counterpart: `evictPodLogsDirectories` in pkg/kubelet/kuberuntime/kuberuntime_gc.go, with the same period.
"""

import asyncio
import logging
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.ports.logs import LogLinks
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.logs.symlinks import dangling_links, links_of

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0


class LogSymlinks:
    def __init__(
        self, *, runtime: PodListing, links: LogLinks, log_root: str, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._log_root = log_root
        self._period_seconds = period_seconds

    async def run(self) -> None:
        """Repair the links until cancelled."""
        while True:
            try:
                await self.sync()
            except TryLater as error:
                log.warning("cannot repair log links, will retry in %g s: %s", self._period_seconds, error)
            except Exception:
                log.exception("unexpected error in the repair of log links, will retry")
            await asyncio.sleep(self._period_seconds)

    async def sync(self) -> None:
        """Repair the links once. Raise TryLater."""
        # List the links before the runtime. Otherwise a container that starts in between has a link, but is not listed,
        # and its link would be removed.
        existing = await self._links.list_links()
        wanted = links_of(await self._runtime.list_pods(), self._log_root)
        if missing := [link for name, link in wanted.items() if name not in existing]:
            await self._links.make(missing)
        if dead := dangling_links(existing, wanted):
            await self._links.remove(dead)
