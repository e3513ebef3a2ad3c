"""The HTTP source: static pods from a URL.

    every 20 s --GET--> a body --contents.py, shelf.py--> SET of all pods, if they have changed
                `--> 304, or the same body: no change
                `--> any other answer: reported once, pods stay as they are, retry with backoff

Input: a URL (http or https) and request headers. Output: a SET as soon as a body could be read. The body is a manifest
as in a file: one pod, a PodList, or several documents. Its problems are reported with line and reason, and its older
objects stay in use.

No answer, an error or an empty body does not change the pods. As in the kubelet, an empty body as the first answer
results in an empty SET, so that the agent does not wait for this source forever. With notes, the pods from before a
restart stay in use until the URL answers: see `static_teller.py`.

`web_page.py` sends the requests. Kubelet counterpart: pkg/kubelet/config/http.go.
"""

import asyncio
import hashlib
import logging
from typing import Final
from urllib.parse import urlsplit

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.messages import HTTP_SOURCE
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import Tell
from podkeeper.rules.static import FromURL
from podkeeper.sources.complaints import Report
from podkeeper.sources.contents import Contents, Reader, broken
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.static_teller import Found, StaticTeller
from podkeeper.sources.web_page import Headers, NoAnswer, Page, WebPage, shown_url

log = logging.getLogger(__name__)

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
        headers: Headers | None = None,
        objects: LocalObjects | None = None,
        period_seconds: float = PERIOD_SECONDS,
        report: Report | None = None,
        notes: ManifestNotes | None = None,
        page: Page | None = None,
    ) -> None:
        """`objects` holds the node's config maps and secrets. None: pods may not refer to any.

        `notes` store the manifest across restarts of the agent. None: nothing is stored.
        `page` fetches the URL. None: use aiohttp.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise BadInput(Problem(f"cannot fetch manifests from {shown_url(url)!r}; expected http[s]://HOST/PATH"))
        self._url = url
        self._place = shown_url(url)
        self._reader = Reader(node_name, has_store=objects is not None)
        self._clock = clock
        self._page = page or WebPage(url, headers or {})
        self._period_seconds = period_seconds
        self._teller = StaticTeller(HTTP_SOURCE, objects, report, notes)
        self._etag = ""
        self._last: Found | None = None
        self._failures = 0

    @property
    def name(self) -> str:
        return HTTP_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """Return the current problems of the URL and its manifests."""
        return self._teller.problems()

    async def run(self, tell: Tell) -> None:
        """Send the pods of the URL, now and after each change, until cancelled."""
        self._teller.begin(lambda place: place == self._place)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._teller.run(tell))
            await self._follow(tell)

    async def _follow(self, tell: Tell) -> None:
        async with self._page as page:
            while True:
                await asyncio.sleep(await self._try(page, tell))

    async def _try(self, page: Page, tell: Tell) -> float:
        """Fetch the URL once and send changes. Returns the pause before the next request."""
        try:
            found = await self._ask(page)
            self._teller.take({self._place: found}, {}, tell)
        except NoAnswer as error:
            self._teller.complain(self._place, Problem(str(error), file=self._place))
        except Exception as error:
            log.exception("unexpected error while handling %s, will retry", self._place)
            message = f"unexpected error: {error!r}; please report this bug"
            self._teller.complain(self._place, Problem(message, file=self._place))
        else:
            self._failures = 0
            return self._period_seconds
        return self._pause()

    async def _ask(self, page: Page) -> Found:
        """Return the contents of the URL. Raises NoAnswer."""
        last = self._last
        fetched = await page.fetch(self._etag if last is not None else "")
        if fetched is None:
            if last is None:
                raise NoAnswer("cannot fetch it: 304 Not Modified")
            return last
        data = fetched.body
        if not data.strip():
            if last is None and not self._teller.places():
                last = self._last = Found(Contents(), b"")
                return last
            why = "the manifest is empty; to remove its pods, serve an empty PodList"
            if last is not None:
                raise NoAnswer(why)
            last = self._last = Found(broken(why, self._place), b"")  # keeps the objects from before the restart
            return last
        version = hashlib.blake2b(data, digest_size=16).digest()
        if last is None or last.version != version:
            contents = await asyncio.to_thread(self._reader.read, data, FromURL(self._url), self._place)
            last = self._last = Found(contents, version)
        self._etag = fetched.etag
        return last

    def _pause(self) -> float:
        """Count a failure. Returns a pause with exponential backoff and jitter."""
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), self._period_seconds)
        self._failures += 1
        return pause * (1 + self._clock.fraction() / 2)
