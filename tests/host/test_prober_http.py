"""HTTP probes against real servers: requests, redirects, bodies and error texts."""

import asyncio
import base64
import random
import socket
import ssl
import struct
from typing import TypeVar

import pytest

from podkeeper.host.prober import NetworkProber
from podkeeper.model.k8s.core import Container, HTTPGetAction, HTTPHeader
from podkeeper.model.probing import BrokenBody, Endpoint, HttpAnswer, HttpEnd, HttpRequest, NoHttpAnswer
from podkeeper.rules.container.hooks import http_fallback_request
from podkeeper.rules.probe.http import RequestPurpose, http_request
from tests.host.loopback import Handler, closed, recording, replying, server, silent, unreachable

T = TypeVar("T")
OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def get(url: str, timeout_seconds: float = 5, host: str = "", **headers: str) -> HttpEnd:
    prober = NetworkProber(version="1.36")
    try:
        sent = {name.replace("_", "-"): (value,) for name, value in headers.items()}
        return await prober.http(HttpRequest(url, sent, host=host), timeout_seconds)
    finally:
        await prober.close()


def result_of(
    handle: Handler, path: str = "/x", scheme: str = "http", timeout_seconds: float = 5
) -> tuple[HttpEnd, Endpoint]:
    """Send a request to a server that runs `handle`. Return the result and the endpoint."""

    async def scenario() -> tuple[HttpEnd, Endpoint]:
        async with server(handle) as endpoint:
            return await get(f"{scheme}://{endpoint}{path}", timeout_seconds), endpoint

    return asyncio.run(scenario())


def response(status: str, *headers: str, body: str = "", version: str = "1.1", line_end: str = "\r\n") -> str:
    """Return a response, with a Content-Length unless other headers are given."""
    lines = [f"HTTP/{version} {status}", *(headers or (f"Content-Length: {len(body)}",)), "", body]
    return line_end.join(lines)


CHUNKED = "Transfer-Encoding: chunked"
ELSEWHERE = "Location: http://localhost/"
ANSWERS = {
    "success": (OK, HttpAnswer(200, b"ok")),
    "failure": (response("503 Busy", body="busy"), HttpAnswer(503, b"busy")),
    "no body": (response("204 None", "X: y"), HttpAnswer(204)),
    "a body without a length": (response("200 OK", "X: y", body="a", version="1.0"), HttpAnswer(200, b"a")),
    "a chunked body": (response("200 OK", CHUNKED, body="2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), HttpAnswer(200, b"abc")),
    "a compressed body": (response("200 OK", "Content-Encoding: gzip", body="?"), HttpAnswer(200, b"?")),
    "lines that end with LF": (response("200 OK", body="abc", line_end="\n"), HttpAnswer(200, b"abc")),
    "no reason phrase": (response("200", body="ok"), HttpAnswer(200, b"ok")),
    "an unknown status": (response("700 Huh"), HttpAnswer(700)),
    "an informational response": (response("103 Hints", "X: y") + OK, HttpAnswer(200, b"ok")),
    "a redirect without a location": (response("302 Found", body="where"), HttpAnswer(302, b"where")),
    "a location without a redirect": (response("300 Choose", "Location: /y", body="?"), HttpAnswer(300, b"?")),
    "a redirect to another host": (response("302 Found", ELSEWHERE, body="else"), HttpAnswer(302, b"else")),
    "a long header": (response("200 OK", "X-Long: " + "x" * 60_000, body="ok"), HttpAnswer(200, b"ok")),
    "half a body": (response("200 OK", "Content-Length: 10", body="abc"), BrokenBody("unexpected EOF")),
    "half a chunk": (response("200 OK", CHUNKED, body="5\r\nabc"), BrokenBody("unexpected EOF")),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", ANSWERS.values(), ids=ANSWERS.keys())
def test_responses(text: str, expected: HttpEnd) -> None:
    end, _ = result_of(replying(text))
    assert end == expected


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def redirecting(location: str) -> Handler:
    return replying(response("302 Found", f"Location: {location}", "Content-Length: 0"))


BROKEN = "net/http: HTTP/1.x transport connection broken: malformed HTTP response"
WORDS = {
    "closed connection": (replying(""), 'Get "http://{}/x": EOF'),
    "connection closed in a header": (replying("HTTP/1.1 200 OK\r\nfoo: "), 'Get "http://{}/x": EOF'),
    "reset": (_reset, 'Get "http://{}/x": read tcp {}: read: connection reset by peer'),
    "another protocol": (replying("SSH-2.0-OpenSSH\r\n"), 'Get "http://{}/x": ' + BROKEN),
    "to another protocol": (redirecting("ftp://127.0.0.1"), 'Get "ftp://127.0.0.1": unsupported protocol scheme "ftp"'),
    "to an invalid URL": (redirecting("http://[::1"), 'Get "http://{}/x": failed to parse Location header "http://[::1"'),
    "endless redirects": (redirecting("/next"), 'Get "/next": stopped after 10 redirects'),
}  # fmt: skip


@pytest.mark.parametrize("handle, expected", WORDS.values(), ids=WORDS.keys())
def test_the_error_without_a_response(handle: Handler, expected: str) -> None:
    end, endpoint = result_of(handle)
    assert isinstance(end, NoHttpAnswer)
    assert end.message.startswith(expected.replace("{}", str(endpoint)))


def test_the_error_of_a_refused_connection_is_that_of_the_kubelet() -> None:
    with closed() as endpoint:
        end = asyncio.run(get(f"http://{endpoint}/healthz"))
    assert end == NoHttpAnswer(f'Get "http://{endpoint}/healthz": dial tcp {endpoint}: connect: connection refused')


LATE = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


def test_the_error_of_a_timeout_is_that_of_the_kubelet() -> None:
    async def slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await silent(reader, writer)

    for scheme in ("http", "https"):
        end, endpoint = result_of(silent, scheme=scheme, timeout_seconds=0.1)
        assert end == NoHttpAnswer(f'Get "{scheme}://{endpoint}/x": {LATE}')
    end, _ = result_of(slow_body, timeout_seconds=0.2)
    assert end == BrokenBody("context deadline exceeded (Client.Timeout or context cancellation while reading body)")
    with unreachable() as endpoint:
        assert asyncio.run(get(f"http://{endpoint}/x", 0.1)) == NoHttpAnswer(f'Get "http://{endpoint}/x": {LATE}')


PORT_1 = "http://127.0.0.1:1/"
UNKNOWN_HOST = "http://unknown.invalid/"
NOT_SENT = {
    "an invalid URL": ("http://[::1/", {}, 'parse "http://[::1/": '),
    "an invalid port": ("http://127.0.0.1:99999/", {}, 'parse "http://127.0.0.1:99999/": '),
    "a URL without a host": ("http:foo", {}, 'Get "http:foo": http: no Host in request URL'),
    "a line break": (PORT_1, {"X_A": "a\nb"}, f'Get "{PORT_1}": net/http: invalid header field value for "X-A"'),
    "a blank in a name": (PORT_1, {"X A": "b"}, f'Get "{PORT_1}": net/http: invalid header field name "X A"'),
    "a password, which is not shown": ("http://u:secret@127.0.0.1:1/", {}, 'Get "http://u:***@127.0.0.1:1/": dial tcp'),
    "an unknown name": (UNKNOWN_HOST, {}, f'Get "{UNKNOWN_HOST}": dial tcp: lookup unknown.invalid: '),
}  # fmt: skip


@pytest.mark.parametrize("url, headers, expected", NOT_SENT.values(), ids=NOT_SENT.keys())
def test_the_error_of_an_invalid_request(url: str, headers: dict[str, str], expected: str) -> None:
    end = asyncio.run(get(url, 20, **headers))
    assert isinstance(end, NoHttpAnswer)
    assert end.message.startswith(expected)


def test_a_body_is_read_no_further_than_needed() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    end, _ = result_of(endless)
    assert end == HttpAnswer(200, b"x" * 10240)


def sent(requests: list[str]) -> list[tuple[str, dict[str, str]]]:
    """Return the first line and the headers of a request. Repeated headers are joined."""
    sent = []
    for text in requests:
        first, *rest = text.rstrip("\r\n").split("\r\n")
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(": ")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        sent.append((first, headers))
    return sent


def test_the_request_of_a_probe_is_that_of_the_kubelet() -> None:
    requests: list[str] = []

    async def scenario() -> Endpoint:
        prober = NetworkProber(version="1.36")
        async with server(recording(requests)) as endpoint:

            def action(path: str, *headers: tuple[str, str]) -> HTTPGetAction:
                listed = tuple(HTTPHeader(name=name, value=value) for name, value in headers)
                return HTTPGetAction(port=endpoint.port, path=path, http_headers=listed)

            plain = action("/healthz?full=1&é#frag")
            special = action(
                *("/a%2Fb/../c", ("host", "pod.example"), ("x-a", "1"), ("X-A", "2"), ("accept", "")),
                *(("user-agent", ""), ("Content-Length", "5"), ("Connection", "keep-alive")),
            )
            for get, purpose in (
                (plain, RequestPurpose.PROBE),
                (plain, RequestPurpose.LIFECYCLE),
                (special, RequestPurpose.PROBE),
            ):
                request = http_request(get, Container(name="c"), "127.0.0.1", "1.36", purpose)
                assert await prober.http(request, 5) == HttpAnswer(200, b"ok")
        await prober.close()
        return endpoint

    endpoint = asyncio.run(scenario())
    usual = {"Host": str(endpoint), "Accept": "*/*", "Connection": "close"}
    assert sent(requests) == [
        ("GET /healthz?full=1&é HTTP/1.1", usual | {"User-Agent": "kube-probe/1.36"}),
        ("GET /healthz?full=1&é HTTP/1.1", usual | {"User-Agent": "kube-lifecycle/1.36"}),
        ("GET /a%2Fb/../c HTTP/1.1", {"Host": "pod.example", "X-A": "1, 2", "Connection": "keep-alive, close"}),
    ]


def test_credentials_of_a_url_are_sent_in_a_header() -> None:
    requests: list[str] = []

    async def scenario() -> None:
        async with server(recording(requests)) as endpoint:
            await get(f"http://u:p%40@{endpoint}/")
            await get(f"http://u:p%40@{endpoint}/", Authorization="mine")

    asyncio.run(scenario())
    assert [headers["Authorization"] for _, headers in sent(requests)] == [
        "Basic " + base64.b64encode(b"u:p@").decode(),
        "mine",
    ]


REDIRECTS = {  # location, path of the next request, host of the next request
    "a relative path": ("y?z=1", "/a/y?z=1", "pod.example"),
    "an absolute path": ("/y", "/y", "pod.example"),
    "dots": ("../../b/./c", "/b/c", "pod.example"),
    "blanks and letters beyond ASCII": ("/a b/ü#frag", "/a%20b/%C3%BC", "pod.example"),
    "an absolute URL of the same host": ("http://{}/y", "/y", "{}"),
}


@pytest.mark.parametrize("location, path, host", REDIRECTS.values(), ids=REDIRECTS.keys())
def test_a_redirect_within_the_host_is_followed(location: str, path: str, host: str) -> None:
    requests: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        port = writer.get_extra_info("sockname")[1]
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {location.replace('{}', f'127.0.0.1:{port}')}\r\n\r\n"
        writer.write((moved if len(requests) == 1 else OK).encode())

    async def scenario() -> tuple[HttpEnd, Endpoint]:
        async with server(handle) as endpoint:
            return await get(f"http://{endpoint}/a/x", host="pod.example", Authorization="mine"), endpoint

    end, endpoint = asyncio.run(scenario())
    assert end == HttpAnswer(200, b"ok")
    (_, first), (line, second) = sent(requests)
    assert first["Host"] == "pod.example"
    assert line == f"GET {path} HTTP/1.1"
    assert second["Host"] == host.replace("{}", str(endpoint))
    assert second["Referer"] == f"http://{endpoint}/a/x"
    assert second["Authorization"] == "mine"


def test_at_most_ten_requests_are_sent() -> None:
    requests: list[str] = []
    end, _ = result_of(recording(requests, response("302 Found", "Location: /next", "Content-Length: 0")))
    assert isinstance(end, NoHttpAnswer)
    assert len(requests) == 10


def test_a_redirect_to_another_port_of_the_host_is_followed() -> None:
    async def scenario() -> HttpEnd:
        async with server(replying(OK)) as other, server(redirecting(f"http://{other}/")) as endpoint:
            return await get(f"http://{endpoint}/")

    assert asyncio.run(scenario()) == HttpAnswer(200, b"ok")


def test_certificates_are_not_verified(certificate: ssl.SSLContext) -> None:
    async def scenario() -> HttpEnd:
        async with server(replying(OK), tls=certificate) as endpoint:
            return await get(f"https://{endpoint}/x")

    assert asyncio.run(scenario()) == HttpAnswer(200, b"ok")


def test_an_http_server_behind_https_is_detected_so_that_a_hook_can_retry() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    end, endpoint = result_of(handle, scheme="https")
    assert end == NoHttpAnswer(f'Get "https://{endpoint}/x": http: server gave HTTP response to HTTPS client')
    assert http_fallback_request(HttpRequest(f"https://{endpoint}/x", {}), end) is not None


def test_the_error_of_a_server_that_closes_during_the_tls_handshake() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)

    end, endpoint = result_of(handle, scheme="https")
    assert end == NoHttpAnswer(f'Get "https://{endpoint}/x": EOF')


def test_each_request_has_its_own_connection() -> None:
    places: list[object] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        places.append(writer.get_extra_info("peername"))
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok")
            await writer.drain()

    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(handle) as endpoint:
            for _ in range(3):
                assert await prober.http(HttpRequest(f"http://{endpoint}/", {}), 5) == HttpAnswer(200, b"ok")
            await prober.close()

    asyncio.run(scenario())
    assert len(set(map(str, places))) == 3


def test_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy}")
        assert result_of(replying(OK))[0] == HttpAnswer(200, b"ok")


def test_300_hanging_requests_do_not_delay_another() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silent) as hanging, server(replying(OK)) as well, asyncio.TaskGroup() as group:
            hung = [group.create_task(prober.http(HttpRequest(f"http://{hanging}/", {}), 60)) for _ in range(300)]
            await asyncio.sleep(0.05)
            assert await prober.http(HttpRequest(f"http://{well}/", {}), 30) == HttpAnswer(200, b"ok")
            assert not any(task.done() for task in hung)
            for task in hung:
                task.cancel()
        await prober.close()

    asyncio.run(scenario())


def test_no_response_of_a_server_raises() -> None:
    chance = random.Random(36)
    lines = [
        b"HTTP/1.1 200 OK",
        b"HTTP/9 2",
        b"HTTP/1.1 302 \xff",
        b"HTTP/1.1 101 Up",
        b"HTTP/1.1 999999 Hm",
        b"",
        b":",
    ]
    lines += [b"Content-Length: -1", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"zz", b"5", b"hello"]
    lines += [b"Location: \xff\xfe//[", b"Location: http://127.0.0.1:99999/", b"Location: http://a b/", b"Upgrade: x"]
    lines += [b"Set-Cookie: \x01=;", b"Content-Encoding: br", b"\x00\xff"]
    parts = [*lines, *(line + b"\r\n" for line in lines), *(line + b"\r\n" for line in lines[:3])]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(chance.choices(parts, k=chance.randrange(1, 9))))

    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(handle) as endpoint:
            for _ in range(400):
                end = await prober.http(HttpRequest(f"http://{endpoint}/", {}), 5)
                assert isinstance(end, HttpAnswer | BrokenBody) or end.message
        await prober.close()

    asyncio.run(scenario())
