"""The care for links to logs: whoever runs has one, and those that lead nowhere go.

    see the links -> list the runtime -> make what is missing, remove what is dead

A link is made when its container is started; this room heals what was missed (an agent that was killed in between, a
directory that somebody emptied) and clears away after logs are removed. The links are seen before the runtime is
listed: so a dead link whose container is not in the list is nobody's. The Go ancestor is `evictPodLogsDirectories` in
pkg/kubelet/kuberuntime/kuberuntime_gc.go, which comes as often.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from podkeeper.model.errors import TryLater
from podkeeper.ports.runtime import PodListing
from podkeeper.rules.log_links import LogLink, dead_links, links_of

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0


class Links(Protocol):
    """The directory of links; what fails raises TryLater."""

    async def survey(self) -> Mapping[str, bool]:
        """Every link that there is, and whether it leads to a file."""

    async def make(self, links: Sequence[LogLink]) -> None:
        """Make links to those logs that are there."""

    async def remove(self, names: Sequence[str]) -> None:
        """Remove links."""


class LinkCare:
    """Cares for the links, as long as the agent lives."""

    def __init__(
        self, *, runtime: PodListing, links: Links, log_root: str, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._log_root = log_root
        self._period_seconds = period_seconds

    async def run(self) -> None:
        """Look after the links until cancelled."""
        while True:
            try:
                await self.look()
            except TryLater as error:
                log.warning("links to logs were not looked after, next look in %g s: %s", self._period_seconds, error)
            except Exception:
                log.exception("caring for links to logs failed in an unforeseen way")
            await asyncio.sleep(self._period_seconds)

    async def look(self) -> None:
        """See what there is, and put it right. Raises TryLater."""
        there = await self._links.survey()
        wanted = links_of(await self._runtime.list_pods(), self._log_root)
        if missing := [link for name, link in wanted.items() if name not in there]:
            await self._links.make(missing)
        if dead := dead_links(there, wanted):
            await self._links.remove(dead)
