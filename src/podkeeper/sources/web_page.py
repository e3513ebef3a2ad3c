"""Fetch a manifest from a URL with aiohttp: request headers, status, size limit and timeout.

    async with WebPage(url, headers) as page:
        fetched = await page.fetch(etag)     # None: 304, unchanged since the given ETag

In: a URL, request headers, and the ETag of the body that the caller has. Out: a body and its ETag, or NoAnswer with
the reason. `sources/http.py` decides what a body means and when to fetch again.

aiohttp is imported when a page is opened: the import takes a noticeable part of a second.
"""

import asyncio
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

from podkeeper.sources.contents import MOST_BYTES

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS: Final = 10.0
"""How long an answer may take, body included; as in the kubelet."""

Headers = Mapping[str, str | Iterable[str]]


class NoAnswer(Exception):
    """The server sent no usable answer. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The body of an answer with status 200, and its ETag; "" if it has none."""

    body: bytes
    etag: str = ""


class Page(Protocol):
    """A URL that can be fetched while it is open. It can be opened again after it was closed."""

    async def __aenter__(self) -> "Page":
        """Open the page."""

    async def __aexit__(self, *_: object) -> None:
        """Close the page."""

    async def fetch(self, etag: str) -> Fetched | None:
        """Return the body. None: it has not changed since this ETag. Raises NoAnswer."""


class WebPage:
    def __init__(self, url: str, headers: Headers) -> None:
        self._url = url
        self._headers = _pairs(headers)
        self._http: Any = None  # the module aiohttp, while the page is open
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = await asyncio.to_thread(importlib.import_module, "aiohttp")
        self._session = self._http.ClientSession(
            timeout=self._http.ClientTimeout(total=ANSWER_SECONDS),
            connector=self._http.TCPConnector(force_close=True),  # fetched too rarely to keep a connection open
            auto_decompress=True,
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, etag: str) -> Fetched | None:
        """Send a GET request. None: 304. Raises NoAnswer for every other status but 200, and if there is no answer."""
        assert self._session is not None
        headers = [*self._headers, *([("If-None-Match", etag)] if etag else [])]
        try:
            async with self._session.get(self._url, headers=headers) as answer:
                if answer.status == 304:
                    return None
                if answer.status != 200:
                    raise NoAnswer(f"cannot fetch it: {answer.status} {answer.reason or ''}".rstrip())
                return Fetched(await _body(answer), answer.headers.get("ETag", ""))
        except TimeoutError:
            raise NoAnswer(f"cannot fetch it: no answer within {ANSWER_SECONDS:.0f} s") from None
        except (self._http.ClientError, OSError, ValueError) as error:
            why = str(error).replace(self._url, shown_url(self._url)) or type(error).__name__
            raise NoAnswer(f"cannot fetch it: {why}") from error


def shown_url(url: str) -> str:
    """Return a URL without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _body(answer: "aiohttp.ClientResponse") -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(64 * 1024):
        data += chunk
        if len(data) > MOST_BYTES:
            raise NoAnswer(f"cannot fetch it: larger than {MOST_BYTES} bytes")
    return bytes(data)


def _pairs(headers: Headers) -> list[tuple[str, str]]:
    """Return pairs of name and value. A header may have several values."""
    return [
        (name, value)
        for name, values in headers.items()
        for value in ((values,) if isinstance(values, str) else tuple(values))
    ]
