"""Fetch a manifest from a URL with aiohttp.

    async with HttpFetcher(url, headers) as fetcher:
        fetched = await fetcher.fetch(etag)     # None: 304, unchanged since the given ETag

In: a URL, request headers, and the ETag of the body that the caller has. Out: a body and its ETag, or FetchFailed
with the reason. `sources/http.py` decides what a body means and when to fetch again.

aiohttp is imported when the fetcher is opened, because the import takes a noticeable part of a second.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from urllib.parse import urljoin, urlsplit, urlunsplit

from podkeeper.sources.manifest_content import MAX_BYTES

if TYPE_CHECKING:
    import aiohttp

ANSWER_SECONDS: Final = 10.0
MAX_REDIRECTS: Final = 10
REDIRECTS: Final = (301, 302, 303, 307, 308)
"""Timeout of a request, including the body, as in the kubelet."""

HttpHeaders = Mapping[str, str | Iterable[str]]


class FetchFailed(Exception):
    """The server sent no usable answer. The message has the reason."""


@dataclass(frozen=True, slots=True)
class FetchedBody:
    """The body of a response with status 200, and its ETag. "" if it has none."""

    body: bytes
    etag: str = ""


class Fetcher(Protocol):
    """Fetches one URL inside an `async with` block. It can be entered again."""

    async def __aenter__(self) -> "Fetcher":
        """Open the connection pool."""

    async def __aexit__(self, *_: object) -> None:
        """Close the connection pool."""

    async def fetch(self, etag: str) -> FetchedBody | None:
        """Return the body. None: it has not changed since this ETag. Raises FetchFailed."""


class HttpFetcher:
    def __init__(self, url: str, headers: HttpHeaders) -> None:
        self._url = url
        self._headers = _pairs(headers)
        self._http: Any = None  # the module aiohttp, while the fetcher is open
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

    async def fetch(self, etag: str) -> FetchedBody | None:
        """Send a GET request. None: 304. Raises FetchFailed if there is no answer or the status is not 200."""
        assert self._session is not None
        try:
            async with self._follow(self._session, [("If-None-Match", etag)] if etag else []) as response:
                if response.status == 304:
                    return None
                if response.status != 200:
                    raise FetchFailed(
                        f"cannot fetch the manifest: HTTP status {response.status} {response.reason or ''}".rstrip()
                        + ", expected 200"
                    )
                return FetchedBody(await _body(response), response.headers.get("ETag", ""))
        except TimeoutError:
            raise FetchFailed(f"cannot fetch the manifest: no response within {ANSWER_SECONDS:.0f} s") from None
        except (self._http.ClientError, OSError, ValueError) as error:
            # Errors of aiohttp contain the URL with its password.
            reason = str(error).replace(self._url, shown_url(self._url)) or type(error).__name__
            raise FetchFailed(f"cannot fetch the manifest: {reason}") from error

    @asynccontextmanager
    async def _follow(
        self, session: "aiohttp.ClientSession", condition: list[tuple[str, str]]
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Send the request and follow redirects.

        The configured headers often contain a password, so no other server receives them. aiohttp removes only
        Authorization.
        """
        url = self._url
        for _ in range(MAX_REDIRECTS + 1):
            own = self._headers if _origin(url) == _origin(self._url) else []
            async with session.get(url, headers=[*own, *condition], allow_redirects=False) as response:
                target = response.headers.get("Location")
                if response.status not in REDIRECTS or target is None:
                    yield response
                    return
                url = urljoin(url, target)
                if _origin(url) == _origin(self._url):  # with its user name and password
                    url = urlunsplit(urlsplit(url)._replace(netloc=urlsplit(self._url).netloc))
                if urlsplit(url).scheme not in ("http", "https"):
                    raise FetchFailed(
                        f"cannot fetch the manifest: redirected to {shown_url(url)}, expected http or https"
                    )
        raise FetchFailed(f"cannot fetch the manifest: more than {MAX_REDIRECTS} redirects")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def shown_url(url: str) -> str:
    """Return a URL without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _body(response: "aiohttp.ClientResponse") -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        data += chunk
        # Checked for each chunk, because Content-Length may be missing or wrong, and the body may be compressed.
        if len(data) > MAX_BYTES:
            raise FetchFailed(f"cannot fetch the manifest: larger than {MAX_BYTES} bytes")
    return bytes(data)


def _pairs(headers: HttpHeaders) -> list[tuple[str, str]]:
    """Return pairs of name and value. A header may have several values."""
    return [
        (name, value)
        for name, values in headers.items()
        for value in ((values,) if isinstance(values, str) else tuple(values))
    ]
