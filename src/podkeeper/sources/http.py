"""The HTTP source: static pods from a URL.

    every 20 s --GET--> a body --manifest_content, active_objects--> SET of all pods, if they have changed
                `--> 304, or the same body: no change
                `--> any other answer: reported once, pods stay as they are, retry with backoff

Input: a URL (http or https) and request headers. Output: a SET as soon as a body could be read. The body is a manifest
as in a file: one pod, a PodList, or several documents. Its problems are reported with line and reason, and its older
objects stay in use.

No answer, an error or an empty body does not change the pods. As in the kubelet, an empty body as the first answer
results in an empty SET, so that the agent does not wait for this source forever. With
`stored_manifests`, the pods from before a restart stay in use until the URL answers: see `static_publisher.py`.

`http_fetch.py` sends the requests. Kubelet counterpart: pkg/kubelet/config/http.go.
"""

import asyncio
import hashlib
import logging
from typing import Final
from urllib.parse import urlsplit

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.messages import HTTP_SOURCE
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import SendUpdate
from podkeeper.rules.static.pod import FromURL
from podkeeper.sources.http_fetch import Fetcher, FetchFailed, HttpFetcher, HttpHeaders, shown_url
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestContent, ManifestReader, unreadable
from podkeeper.sources.manifest_errors import ReportProblems
from podkeeper.sources.static_publisher import LocationContent, StaticPublisher
from podkeeper.sources.stored_manifests import StoredManifests

log = logging.getLogger(__name__)

# The default of the kubelet's httpCheckFrequency.
PERIOD_SECONDS: Final = 20.0
"""How often the URL is fetched."""

_FIRST_PAUSE_SECONDS: Final = 1.0  # after one failure; doubled after each further one, up to the period


class HttpSource:
    def __init__(
        self,
        url: str,
        node_name: str,
        clock: Clock,
        *,
        headers: HttpHeaders | None = None,
        objects: LocalObjects | None = None,
        period_seconds: float = PERIOD_SECONDS,
        report: ReportProblems | None = None,
        stored_manifests: StoredManifests | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        """`objects` holds the node's config maps and secrets. None: pods may not refer to any.

        `stored_manifests` store the manifest across restarts of the agent. None: nothing is stored.
        `fetcher` fetches the URL. None: use aiohttp.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise BadInput(Problem(f"cannot fetch manifests from {shown_url(url)!r}: expected http[s]://HOST/PATH"))
        self._url = url
        self._location = shown_url(url)
        self._reader = ManifestReader(node_name, has_store=objects is not None)
        self._clock = clock
        self._fetcher = fetcher or HttpFetcher(url, headers or {})
        self._period_seconds = period_seconds
        self._publisher = StaticPublisher(HTTP_SOURCE, objects, report, stored_manifests)
        self._etag = ""
        self._last: LocationContent | None = None
        self._retries = RetryCounter(GrowingDelay(_FIRST_PAUSE_SECONDS, longest_seconds=period_seconds))

    @property
    def name(self) -> str:
        return HTTP_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """Return the current problems of the URL and its manifests."""
        return self._publisher.problems()

    async def run(self, send: SendUpdate) -> None:
        """Send the pods of the URL, now and after each change, until cancelled."""
        self._publisher.begin(lambda location: location == self._location)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(send))
            await self._poll(send)

    async def _poll(self, send: SendUpdate) -> None:
        async with self._fetcher as fetcher:
            while True:
                await asyncio.sleep(await self._try(fetcher, send))

    async def _try(self, fetcher: Fetcher, send: SendUpdate) -> float:
        """Fetch the URL once and send changes. Returns the pause before the next request."""
        try:
            found = await self._fetch(fetcher)
            self._publisher.publish({self._location: found}, {}, send)
        except FetchFailed as error:
            self._publisher.report_unreadable(self._location, Problem(str(error), file=self._location))
        except Exception as error:
            log.exception("unexpected error while handling %s, will retry", self._location)
            message = f"unexpected error: {error!r}; please report this bug"
            self._publisher.report_unreadable(self._location, Problem(message, file=self._location))
        else:
            self._retries.succeeded()
            return self._period_seconds
        return self._backoff()

    async def _fetch(self, fetcher: Fetcher) -> LocationContent:
        """Return the contents of the URL. Raises FetchFailed."""
        last = self._last
        # Without a body there is nothing that a 304 could refer to.
        fetched = await fetcher.fetch(self._etag if last is not None else "")
        if fetched is None:
            if last is None:
                raise FetchFailed("cannot fetch the manifest: status 304 without a previous body")
            return last
        data = fetched.body
        if not data.strip():
            if last is None and not self._publisher.locations():
                last = self._last = LocationContent(ManifestContent(), b"")
                return last
            reason = "the manifest is empty; to remove its pods, serve an empty PodList"
            if last is not None:
                raise FetchFailed(reason)
            # Incomplete content keeps the objects from before the restart.
            last = self._last = LocationContent(unreadable(reason, self._location), b"")
            return last
        # Not all servers send an ETag, so the body is compared as well.
        version = hashlib.blake2b(data, digest_size=16).digest()
        if last is None or last.version != version:
            # In a thread, because parsing a large manifest takes long.
            content = await asyncio.to_thread(self._reader.read, data, FromURL(self._url), self._location)
            last = self._last = LocationContent(content, version)
        # Only for a body that could be read. Otherwise a 304 would confirm a body that was never used.
        self._etag = fetched.etag
        return last

    def _backoff(self) -> float:
        """Count a failure. Returns a pause with exponential backoff and jitter."""
        return self._retries.failed() * (1 + self._clock.fraction() / 2)
