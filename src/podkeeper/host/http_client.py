"""The HTTP client of probes and lifecycle hooks.

Imported late, because it imports aiohttp.

Input: an `HttpRequest`. Output: an `HttpEnd`, within the timeout. As in the kubelet, each request has its own
connection, without proxies and without verification of certificates. The client reads at most 10 KiB of a body and does
not decompress it. It follows only redirects within the host (`rules.probe.http.redirect_after`). If aiohttp gives
enough details, error texts equal those of Go's client. Kubelet counterparts: pkg/probe/http and net/http.
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

from podkeeper.host.dial import DialFailed, HostResolver, strerror
from podkeeper.model.probing import BrokenBody, Endpoint, HttpAnswer, HttpEnd, HttpRequest, NoHttpAnswer
from podkeeper.rules.probe.http import Redirect, redirect_after
from podkeeper.rules.probe.net import quoted
from podkeeper.rules.probe.report import MAX_OUTPUT_BYTES

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RESERVED_HEADERS = frozenset({"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"})
_MAX_HEAD_BYTES = 1024 * 1024  # of one line and of one header
_TIMED_OUT = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
_BODY_TIMED_OUT = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
_BROKEN = "net/http: HTTP/1.x transport connection broken"
_HEADER_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_SAFE_IN_URLS = "%/:?#[]@!$&'()*+,;=~"
_OP_LEGACY_SERVER_CONNECT = 0x4  # ssl.OP_LEGACY_SERVER_CONNECT since Python 3.12


class _SendFailed(Exception):
    """There is no response. The message has the reason without the URL."""


class HttpClient:
    """Sends any number of requests at a time."""

    def __init__(self, resolver: HostResolver) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # otherwise 100 hanging requests would delay all others
                # As in the kubelet: a kept connection would not show that the server accepts no new ones.
                force_close=True,
                use_dns_cache=False,
                resolver=_Resolver(resolver),
            ),
            # A probe must not depend on the answers to earlier probes.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            max_line_size=_MAX_HEAD_BYTES,
            max_field_size=_MAX_HEAD_BYTES,
        )
        self._tls: ssl.SSLContext | None = None

    async def close(self) -> None:
        await self._session.close()

    async def request(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Send a request and follow its redirects. The timeout is for all of them together."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            first_host = _host_of(request.url)
        except ValueError as error:
            return NoHttpAnswer(f"parse {quoted(request.url)}: {error}")
        count = 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._send(request)
            except TimeoutError:
                return _no_answer(request, _TIMED_OUT)
            except _SendFailed as error:
                return _no_answer(request, str(error))
            try:
                count += 1
                location = response.headers.get("Location", "") if response.status in _REDIRECTS else ""
                if not location:
                    return await _with_body(response, deadline)
                try:
                    following = _redirected(request, location)
                except ValueError as error:
                    return _no_answer(request, f"failed to parse Location header {quoted(location)}: {error}")
                match redirect_after(first_host, _host_of(following.url), count):
                    case Redirect.STOP:
                        return await _with_body(response, deadline)
                    case Redirect.GIVE_UP:
                        return NoHttpAnswer(f"Get {quoted(location)}: {Redirect.GIVE_UP.value}")
                    case Redirect.FOLLOW:
                        request = following
            finally:
                response.close()

    async def _send(self, request: HttpRequest) -> aiohttp.ClientResponse:
        """Send one request. Return the response without its body. Raises _SendFailed."""
        parts = urlsplit(request.url)
        if parts.scheme not in ("http", "https"):
            raise _SendFailed(f"unsupported protocol scheme {quoted(parts.scheme)}")
        if not parts.hostname:
            raise _SendFailed("http: no Host in request URL")
        headers = _headers(request)
        # The URL is already encoded, so it is sent unchanged. Credentials are sent in a header.
        url = URL(
            urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, "")), encoded=True
        )
        endpoint = Endpoint(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        tls = self._tls_context() if parts.scheme == "https" else False
        try:
            return await self._session.request(request.method, url, headers=headers, allow_redirects=False, ssl=tls)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _SendFailed(_error_text(error, endpoint)) from error

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # The kubelet does not verify certificates of probes, either: they are usually self-signed.
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
            # As lenient as Go, which accepts small keys and servers without secure renegotiation.
            self._tls.options |= _OP_LEGACY_SERVER_CONNECT
            self._tls.set_ciphers("DEFAULT:@SECLEVEL=1")
        return self._tls


class _Resolver(AbstractResolver):
    """A resolver for aiohttp that uses `HostResolver`."""

    def __init__(self, resolver: HostResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            addresses = await self._resolver.look_up(host)
        except DialFailed as error:
            raise OSError(str(error)) from error
        return [
            ResolveResult(
                hostname=host,
                host=address.sockaddr[0],
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


async def _with_body(response: aiohttp.ClientResponse, deadline: float) -> HttpEnd:
    """Return the response with the first part of its body."""
    body = b""
    try:
        async with asyncio.timeout_at(deadline):
            while len(body) < MAX_OUTPUT_BYTES and (more := await response.content.read(MAX_OUTPUT_BYTES - len(body))):
                body += more
    except TimeoutError:
        return BrokenBody(_BODY_TIMED_OUT)
    except aiohttp.ClientPayloadError:
        return BrokenBody("unexpected EOF")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return BrokenBody(strerror(error) if isinstance(error, OSError) else _first_line(error))
    return HttpAnswer(response.status, body)


def _redirected(request: HttpRequest, location: str) -> HttpRequest:
    """Return the request that follows a redirect. Raises ValueError."""
    target = quote(location, safe=_SAFE_IN_URLS, errors="surrogateescape")
    url = urljoin(request.url, target)
    _host_of(url)
    headers = dict(request.headers)
    origin = urlsplit(request.url)
    # As Go's client: do not send a secure URL to an insecure server.
    if not (origin.scheme == "https" and url.startswith("http:")):
        bare = origin._replace(netloc=origin.netloc.rpartition("@")[2], fragment="")
        headers["Referer"] = (urlunsplit(bare),)
    credentials, at, _ = origin.netloc.rpartition("@")
    if at and "Authorization" not in headers:
        headers["Authorization"] = (_basic(credentials),)
    return replace(request, url=url, headers=headers, host="" if urlsplit(target).scheme else request.host)


def _headers(request: HttpRequest) -> CIMultiDict[str]:
    """Return the headers as they are sent. Raises _SendFailed for invalid names and values."""
    sent: CIMultiDict[str] = CIMultiDict(_valid_headers(request.headers))
    if request.host:
        sent["Host"] = request.host
    credentials, at, _ = urlsplit(request.url).netloc.rpartition("@")
    if at and "Authorization" not in sent:
        sent["Authorization"] = _basic(credentials)
    sent.add("Connection", "close")
    return sent


def _valid_headers(headers: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for name, values in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise _SendFailed(f"net/http: invalid header field name {quoted(name)}")
        if not all(_HEADER_VALUE.fullmatch(value) for value in values):
            raise _SendFailed(f"net/http: invalid header field value for {quoted(name)}")
        if name not in _RESERVED_HEADERS:
            yield from ((name, value) for value in values)
        elif name == "User-Agent" and values and values[0]:
            yield name, values[0]


def _basic(credentials: str) -> str:
    user, _, password = credentials.partition(":")
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _host_of(url: str) -> str:
    """Return the host of a URL without its port. Raises ValueError for an invalid URL or port."""
    parts = urlsplit(url)
    _ = parts.port  # raises ValueError for an invalid port
    return parts.hostname or ""


def _no_answer(request: HttpRequest, reason: str) -> NoHttpAnswer:
    """Return an error like that of Go's client. The password is masked, because the text appears in events."""
    parts = urlsplit(request.url)
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = urlunsplit(parts._replace(netloc=f"{user}:***@{host}")) if at and colon else request.url
    return NoHttpAnswer(f"{request.method.capitalize()} {quoted(shown)}: {reason}")


def _error_text(error: Exception, endpoint: Endpoint) -> str:
    """Return the text that Go's client has for an error."""
    match error:
        case aiohttp.ClientConnectorDNSError(os_error=cause):
            return str(cause)
        case aiohttp.ClientSSLError():
            return _tls_error_text(error.__cause__)
        case aiohttp.ClientConnectorError(os_error=ConnectionResetError() | ConnectionAbortedError()):
            return "EOF"  # the peer closed the connection during the TLS handshake
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


def _tls_error_text(cause: BaseException | None) -> str:
    reason = (getattr(cause, "reason", None) or "handshake failure").replace("_", " ").lower()
    if reason == "wrong version number":  # not TLS: almost always an error response of an HTTP server
        return "http: server gave HTTP response to HTTPS client"
    return f"tls: {reason}"


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
