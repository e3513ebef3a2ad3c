"""HTTP requests of probes and hooks. Imports aiohttp, so it is imported itself only when the first one is made.

An `HttpRequest` comes in, an `HttpEnd` goes out, within the timeout. As the kubelet does: certificates are not
verified, proxies are not used, no connection serves two requests, nothing is decompressed, at most 10 KiB of a body
are read, and a redirect is followed within the host only (`rules.probe.http.redirect_after`). Error texts are those
that Go's client gives, where ours knows as much. The Go ancestors are pkg/probe/http and net/http.
"""

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from podkeeper.host.dialling import DialFailed, Names, strerror
from podkeeper.model.probing import BrokenBody, Endpoint, HttpAnswer, HttpEnd, HttpRequest, NoAnswer
from podkeeper.rules.probe.http import Redirect, redirect_after
from podkeeper.rules.probe.net import quoted
from podkeeper.rules.probe.report import MAX_OUTPUT_BYTES

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_OURS = frozenset({"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"})
_MAX_HEAD_BYTES = 1024 * 1024  # of a line, and of a header
_TOO_LATE = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
_BODY_TOO_LATE = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
_BROKEN = "net/http: HTTP/1.x transport connection broken"
_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_WRITTEN_IN_URLS = "%/:?#[]@!$&'()*+,;=~"
_OP_LEGACY_SERVER_CONNECT = 0x4  # has a name since Python 3.12


class _Failed(Exception):
    """There is no answer; the message says why, without the URL."""


class HttpClient:
    """Makes requests, any number at a time."""

    def __init__(self, names: Names) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # or a hundred that hang would hold up everybody else
                force_close=True,
                use_dns_cache=False,
                resolver=_Resolver(names),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            max_line_size=_MAX_HEAD_BYTES,
            max_field_size=_MAX_HEAD_BYTES,
        )
        self._tls: ssl.SSLContext | None = None

    async def close(self) -> None:
        """Hang up everywhere."""
        await self._session.close()

    async def request(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Make a request and follow its redirects; all of it has `timeout_seconds`."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            first_host = _host_of(request.url)
        except ValueError as error:
            return NoAnswer(f"parse {quoted(request.url)}: {error}")
        made = 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._send(request)
            except TimeoutError:
                return _no_answer(request, _TOO_LATE)
            except _Failed as error:
                return _no_answer(request, str(error))
            try:
                made += 1
                location = response.headers.get("Location", "") if response.status in _REDIRECTS else ""
                if not location:
                    return await _judged(response, deadline)
                try:
                    following = _redirected(request, location)
                except ValueError as error:
                    return _no_answer(request, f"failed to parse Location header {quoted(location)}: {error}")
                match redirect_after(first_host, _host_of(following.url), made):
                    case Redirect.JUDGE:
                        return await _judged(response, deadline)
                    case Redirect.GIVE_UP:
                        return NoAnswer(f"Get {quoted(location)}: {Redirect.GIVE_UP.value}")
                    case Redirect.FOLLOW:
                        request = following
            finally:
                response.close()

    async def _send(self, request: HttpRequest) -> aiohttp.ClientResponse:
        """One request, up to the head of its answer. Raises _Failed."""
        parts = urlsplit(request.url)
        if parts.scheme not in ("http", "https"):
            raise _Failed(f"unsupported protocol scheme {quoted(parts.scheme)}")
        if not parts.hostname:
            raise _Failed("http: no Host in request URL")
        headers = _headers(request)
        # Encoded already, exactly as it is to be sent; credentials went into a header.
        url = URL(
            urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, "")), encoded=True
        )
        endpoint = Endpoint(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        tls = self._tls_context() if parts.scheme == "https" else False
        try:
            return await self._session.request(request.method, url, headers=headers, allow_redirects=False, ssl=tls)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _Failed(_words(error, endpoint)) from error

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
            # As lenient as Go, which refuses neither small keys nor servers without secure renegotiation.
            self._tls.options |= _OP_LEGACY_SERVER_CONNECT
            self._tls.set_ciphers("DEFAULT:@SECLEVEL=1")
        return self._tls


class _Resolver(AbstractResolver):
    """Our own way to look up names, for aiohttp."""

    def __init__(self, names: Names) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            addresses = await self._names.look_up(host)
        except DialFailed as error:
            raise OSError(str(error)) from error
        return [
            ResolveResult(
                hostname=host,
                host=address.place[0],
                port=port,
                family=address.family,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
            if family in (socket.AF_UNSPEC, address.family)
        ]

    async def close(self) -> None:
        pass


async def _judged(response: aiohttp.ClientResponse, deadline: float) -> HttpEnd:
    """The answer with the first part of its body."""
    body = b""
    try:
        async with asyncio.timeout_at(deadline):
            while len(body) < MAX_OUTPUT_BYTES and (more := await response.content.read(MAX_OUTPUT_BYTES - len(body))):
                body += more
    except TimeoutError:
        return BrokenBody(_BODY_TOO_LATE)
    except aiohttp.ClientPayloadError:
        return BrokenBody("unexpected EOF")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return BrokenBody(strerror(error) if isinstance(error, OSError) else _first_line(error))
    return HttpAnswer(response.status, body)


def _redirected(request: HttpRequest, location: str) -> HttpRequest:
    """The request that a redirect asks for. Raises ValueError."""
    target = quote(location, safe=_WRITTEN_IN_URLS, errors="surrogateescape")
    url = urljoin(request.url, target)
    _host_of(url)
    headers = dict(request.headers)
    origin = urlsplit(request.url)
    if not (origin.scheme == "https" and url.startswith("http:")):
        bare = origin._replace(netloc=origin.netloc.rpartition("@")[2], fragment="")
        headers["Referer"] = (urlunsplit(bare),)
    credentials, at, _ = origin.netloc.rpartition("@")
    if at and "Authorization" not in headers:
        headers["Authorization"] = (_basic(credentials),)
    return replace(request, url=url, headers=headers, host="" if urlsplit(target).scheme else request.host)


def _headers(request: HttpRequest) -> CIMultiDict[str]:
    """The headers as they are sent. Raises _Failed for what cannot be in a header."""
    sent: CIMultiDict[str] = CIMultiDict(_written(request.headers))
    if request.host:
        sent["Host"] = request.host
    credentials, at, _ = urlsplit(request.url).netloc.rpartition("@")
    if at and "Authorization" not in sent:
        sent["Authorization"] = _basic(credentials)
    sent.add("Connection", "close")
    return sent


def _written(headers: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for name, values in headers.items():
        if not _NAME.fullmatch(name):
            raise _Failed(f"net/http: invalid header field name {quoted(name)}")
        if not all(_VALUE.fullmatch(value) for value in values):
            raise _Failed(f"net/http: invalid header field value for {quoted(name)}")
        if name not in _NOT_OURS:
            yield from ((name, value) for value in values)
        elif name == "User-Agent" and values and values[0]:
            yield name, values[0]


def _basic(credentials: str) -> str:
    user, _, password = credentials.partition(":")
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _host_of(url: str) -> str:
    """The host that a URL names, without its port. Raises ValueError for what is no URL, or has a port that is none."""
    parts = urlsplit(url)
    _ = parts.port  # only asking for it shows that it is none
    return parts.hostname or ""


def _no_answer(request: HttpRequest, why: str) -> NoAnswer:
    """An error as Go's client tells it; passwords are not for events."""
    parts = urlsplit(request.url)
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = urlunsplit(parts._replace(netloc=f"{user}:***@{host}")) if at and colon else request.url
    return NoAnswer(f"{request.method.capitalize()} {quoted(shown)}: {why}")


def _words(error: Exception, endpoint: Endpoint) -> str:
    """Why there was no answer."""
    match error:
        case aiohttp.ClientConnectorDNSError(os_error=cause):
            return str(cause)
        case aiohttp.ClientSSLError():
            return _tls_words(error.__cause__)
        case aiohttp.ClientConnectorError(os_error=ConnectionResetError() | ConnectionAbortedError()):
            return "EOF"  # connected, and hung up on during the TLS handshake
        case aiohttp.ClientConnectorError(os_error=cause):
            return f"dial tcp {endpoint}: connect: {strerror(cause)}"
        case aiohttp.ServerDisconnectedError():
            return "EOF"
        case aiohttp.ClientResponseError(message=message):
            return f"{_BROKEN}: malformed HTTP response: {_first_line(message)}"
        case OSError(errno=int()):
            return f"read tcp {endpoint}: read: {strerror(error)}"
        case _:
            return _first_line(error) or type(error).__name__


def _tls_words(cause: BaseException | None) -> str:
    reason = (getattr(cause, "reason", None) or "handshake failure").replace("_", " ").lower()
    if reason == "wrong version number":  # what came first was no TLS: nearly always an HTTP server's complaint
        return "http: server gave HTTP response to HTTPS client"
    return f"tls: {reason}"


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
