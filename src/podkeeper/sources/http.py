"""Manifests at a URL as a source: static pods that a web server hands out, to one node or to a whole fleet.

    every 20 s --GET--> a body --contents.py, shelf.py--> SET of all pods, if they differ from those last told
                `--> 304, or the same body: nothing new
                `--> anything else: said once per change; what was told stays true; asked again after a pause

In: a URL (http or https) and the headers to send. Out: a SET as soon as a body could be read. The body is a manifest
like a file: one pod, a PodList, or many documents. What is wrong with it is named with line and reason, and takes
nothing away. No answer, an error or an empty body is no word about pods; only that an empty body comes as the very
first answer is told as an empty SET, as the reference does, so that nobody waits for this source for ever. With notes
what the URL held before a restart of the agent stays true until it answers: see `static_teller.py`.

`web_page.py` sends the requests. The Go ancestor is pkg/kubelet/config/http.go.
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
"""How often the URL is asked."""

_FIRST_PAUSE_SECONDS: Final = 1.0  # after one failure; doubled with each further one, up to the period


class HttpSource:
    """Static pods from a URL."""

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
        """`objects` holds the node's config maps and secrets; None: it has none, and pods may not refer to any.

        `notes` keep what the URL held for the next life of the agent; None: nothing is kept.
        `page` fetches the URL; None: with aiohttp.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise BadInput(Problem(f"cannot fetch manifests from {shown_url(url)!r}; http://HOST/PATH would be right"))
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
        """`http`."""
        return HTTP_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the URL or its manifests now."""
        return self._teller.problems()

    async def run(self, tell: Tell) -> None:
        """Tell the pods of the URL, now and whenever they change, until cancelled."""
        self._teller.begin(lambda place: place == self._place)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._teller.run(tell))
            await self._follow(tell)

    async def _follow(self, tell: Tell) -> None:
        async with self._page as page:
            while True:
                await asyncio.sleep(await self._try(page, tell))

    async def _try(self, page: Page, tell: Tell) -> float:
        """Ask once and tell what is news. Returns how long to rest."""
        try:
            found = await self._ask(page)
            self._teller.take({self._place: found}, {}, tell)
        except NoAnswer as error:
            self._teller.complain(self._place, Problem(str(error), file=self._place))
        except Exception as error:
            log.exception("cannot use what %s says for an unforeseen reason, will ask again", self._place)
            message = f"cannot be used for an unforeseen reason: {error!r}; please report this"
            self._teller.complain(self._place, Problem(message, file=self._place))
        else:
            self._failures = 0
            return self._period_seconds
        return self._pause()

    async def _ask(self, page: Page) -> Found:
        """What the URL holds now. Raises NoAnswer when it does not say."""
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
            why = "cannot find anything in it: it is empty; if its pods should go, serve an empty PodList"
            if last is not None:
                raise NoAnswer(why)
            last = self._last = Found(broken(why, self._place), b"")  # what it had before the restart stays
            return last
        version = hashlib.blake2b(data, digest_size=16).digest()
        if last is None or last.version != version:
            contents = await asyncio.to_thread(self._reader.read, data, FromURL(self._url), self._place)
            last = self._last = Found(contents, version)
        self._etag = fetched.etag
        return last

    def _pause(self) -> float:
        """Count a failure; the pause grows with each, and differs from node to node."""
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), self._period_seconds)
        self._failures += 1
        return pause * (1 + self._clock.fraction() / 2)
