"""HTTP probes against real servers: requests, redirects, bodies, and the words for what goes wrong."""

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
from podkeeper.model.probing import BrokenBody, Endpoint, HttpAnswer, HttpEnd, HttpRequest, NoAnswer
from podkeeper.rules.hooks import plain_request
from podkeeper.rules.probe.http import Purpose, http_request
from tests.host.loopback import Talk, closed, noting, saying, server, silence, unreachable

T = TypeVar("T")
OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def get(url: str, timeout_seconds: float = 5, host: str = "", **headers: str) -> HttpEnd:
    prober = NetworkProber(version="1.36")
    try:
        sent = {name.replace("_", "-"): (value,) for name, value in headers.items()}
        return await prober.http(HttpRequest(url, sent, host=host), timeout_seconds)
    finally:
        await prober.close()


def asked(talk: Talk, path: str = "/x", scheme: str = "http", timeout_seconds: float = 5) -> tuple[HttpEnd, Endpoint]:
    """How a request to a server that talks so ends, and where that was."""

    async def scenario() -> tuple[HttpEnd, Endpoint]:
        async with server(talk) as endpoint:
            return await get(f"{scheme}://{endpoint}{path}", timeout_seconds), endpoint

    return asyncio.run(scenario())


def said(status: str, *headers: str, body: str = "", version: str = "1.1", line_end: str = "\r\n") -> str:
    """An answer; its length is told unless other headers are given."""
    lines = [f"HTTP/{version} {status}", *(headers or (f"Content-Length: {len(body)}",)), "", body]
    return line_end.join(lines)


CHUNKED = "Transfer-Encoding: chunked"
ELSEWHERE = "Location: http://localhost/"
ANSWERS = {
    "a good answer": (OK, HttpAnswer(200, b"ok")),
    "a bad answer": (said("503 Busy", body="busy"), HttpAnswer(503, b"busy")),
    "an answer without a body": (said("204 None", "X: y"), HttpAnswer(204)),
    "an answer that ends with the connection": (said("200 OK", "X: y", body="a", version="1.0"), HttpAnswer(200, b"a")),
    "an answer in chunks": (said("200 OK", CHUNKED, body="2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), HttpAnswer(200, b"abc")),
    "a compressed answer stays compressed": (said("200 OK", "Content-Encoding: gzip", body="?"), HttpAnswer(200, b"?")),
    "lines that end as on Unix": (said("200 OK", body="abc", line_end="\n"), HttpAnswer(200, b"abc")),
    "no reason for the status": (said("200", body="ok"), HttpAnswer(200, b"ok")),
    "a status nobody knows": (said("700 Huh"), HttpAnswer(700)),
    "a word before the answer": (said("103 Hints", "X: y") + OK, HttpAnswer(200, b"ok")),
    "a redirect to nowhere": (said("302 Found", body="where"), HttpAnswer(302, b"where")),
    "no redirect, although it names a place": (said("300 Choose", "Location: /y", body="?"), HttpAnswer(300, b"?")),
    "a redirect to another host": (said("302 Found", ELSEWHERE, body="else"), HttpAnswer(302, b"else")),
    "a long header": (said("200 OK", "X-Long: " + "x" * 60_000, body="ok"), HttpAnswer(200, b"ok")),
    "half a body": (said("200 OK", "Content-Length: 10", body="abc"), BrokenBody("unexpected EOF")),
    "half a chunk": (said("200 OK", CHUNKED, body="5\r\nabc"), BrokenBody("unexpected EOF")),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_told(text: str, expected: HttpEnd) -> None:
    end, _ = asked(saying(text))
    assert end == expected


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leading(location: str) -> Talk:
    return saying(said("302 Found", f"Location: {location}", "Content-Length: 0"))


BROKEN = "net/http: HTTP/1.x transport connection broken: malformed HTTP response"
WORDS = {
    "hung up on": (saying(""), 'Get "http://{}/x": EOF'),
    "hung up on in the middle of a word": (saying("HTTP/1.1 200 OK\r\nfoo: "), 'Get "http://{}/x": EOF'),
    "reset": (_reset, 'Get "http://{}/x": read tcp {}: read: connection reset by peer'),
    "another protocol": (saying("SSH-2.0-OpenSSH\r\n"), 'Get "http://{}/x": ' + BROKEN),
    "led to another protocol": (leading("ftp://127.0.0.1"), 'Get "ftp://127.0.0.1": unsupported protocol scheme "ftp"'),
    "led to nonsense": (leading("http://[::1"), 'Get "http://{}/x": failed to parse Location header "http://[::1"'),
    "led on for ever": (leading("/next"), 'Get "/next": stopped after 10 redirects'),
}  # fmt: skip


@pytest.mark.parametrize("talk, expected", WORDS.values(), ids=WORDS.keys())
def test_why_there_is_no_answer(talk: Talk, expected: str) -> None:
    end, endpoint = asked(talk)
    assert isinstance(end, NoAnswer)
    assert end.message.startswith(expected.replace("{}", str(endpoint)))


def test_a_refused_connection_is_told_in_the_reference_s_words() -> None:
    with closed() as endpoint:
        end = asyncio.run(get(f"http://{endpoint}/healthz"))
    assert end == NoAnswer(f'Get "http://{endpoint}/healthz": dial tcp {endpoint}: connect: connection refused')


LATE = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


def test_whoever_does_not_answer_in_time_is_told_in_the_reference_s_words() -> None:
    async def slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await silence(reader, writer)

    for scheme in ("http", "https"):
        end, endpoint = asked(silence, scheme=scheme, timeout_seconds=0.1)
        assert end == NoAnswer(f'Get "{scheme}://{endpoint}/x": {LATE}')
    end, _ = asked(slow_body, timeout_seconds=0.2)
    assert end == BrokenBody("context deadline exceeded (Client.Timeout or context cancellation while reading body)")
    with unreachable() as endpoint:
        assert asyncio.run(get(f"http://{endpoint}/x", 0.1)) == NoAnswer(f'Get "http://{endpoint}/x": {LATE}')


PORT_1 = "http://127.0.0.1:1/"
NOBODY = "http://nobody.invalid/"
NOT_SENT = {
    "no URL": ("http://[::1/", {}, 'parse "http://[::1/": '),
    "no port": ("http://127.0.0.1:99999/", {}, 'parse "http://127.0.0.1:99999/": '),
    "a URL without a host": ("http:foo", {}, 'Get "http:foo": http: no Host in request URL'),
    "a line break": (PORT_1, {"X_A": "a\nb"}, f'Get "{PORT_1}": net/http: invalid header field value for "X-A"'),
    "a blank in a name": (PORT_1, {"X A": "b"}, f'Get "{PORT_1}": net/http: invalid header field name "X A"'),
    "a password, which is not shown": ("http://u:secret@127.0.0.1:1/", {}, 'Get "http://u:***@127.0.0.1:1/": dial tcp'),
    "a name nobody has": (NOBODY, {}, f'Get "{NOBODY}": dial tcp: lookup nobody.invalid: '),
}  # fmt: skip


@pytest.mark.parametrize("url, headers, expected", NOT_SENT.values(), ids=NOT_SENT.keys())
def test_what_cannot_be_sent_is_told(url: str, headers: dict[str, str], expected: str) -> None:
    end = asyncio.run(get(url, 20, **headers))
    assert isinstance(end, NoAnswer)
    assert end.message.startswith(expected)


def test_a_body_is_read_no_further_than_needed() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    end, _ = asked(endless)
    assert end == HttpAnswer(200, b"x" * 10240)


def sent(requests: list[str]) -> list[tuple[str, dict[str, str]]]:
    """What was sent: the first line, and the headers (several of one name are joined)."""
    told = []
    for text in requests:
        first, *rest = text.rstrip("\r\n").split("\r\n")
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(": ")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        told.append((first, headers))
    return told


def test_a_probe_s_request_is_sent_as_the_kubelet_sends_it() -> None:
    requests: list[str] = []

    async def scenario() -> Endpoint:
        prober = NetworkProber(version="1.36")
        async with server(noting(requests)) as endpoint:

            def action(path: str, *headers: tuple[str, str]) -> HTTPGetAction:
                listed = tuple(HTTPHeader(name=name, value=value) for name, value in headers)
                return HTTPGetAction(port=endpoint.port, path=path, http_headers=listed)

            plain = action("/healthz?full=1&é#frag")
            special = action(
                *("/a%2Fb/../c", ("host", "pod.example"), ("x-a", "1"), ("X-A", "2"), ("accept", "")),
                *(("user-agent", ""), ("Content-Length", "5"), ("Connection", "keep-alive")),
            )
            for asks, purpose in ((plain, Purpose.PROBE), (plain, Purpose.LIFECYCLE), (special, Purpose.PROBE)):
                request = http_request(asks, Container(name="c"), "127.0.0.1", "1.36", purpose)
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


def test_credentials_in_a_url_go_into_a_header() -> None:
    requests: list[str] = []

    async def scenario() -> None:
        async with server(noting(requests)) as endpoint:
            await get(f"http://u:p%40@{endpoint}/")
            await get(f"http://u:p%40@{endpoint}/", Authorization="mine")

    asyncio.run(scenario())
    assert [headers["Authorization"] for _, headers in sent(requests)] == [
        "Basic " + base64.b64encode(b"u:p@").decode(),
        "mine",
    ]


REDIRECTS = {  # where it leads, what is asked for next, and which host the next request names
    "a relative place": ("y?z=1", "/a/y?z=1", "pod.example"),
    "an absolute path": ("/y", "/y", "pod.example"),
    "dots": ("../../b/./c", "/b/c", "pod.example"),
    "blanks and letters beyond ASCII": ("/a b/ü#frag", "/a%20b/%C3%BC", "pod.example"),
    "the same host, named in full": ("http://{}/y", "/y", "{}"),
}


@pytest.mark.parametrize("location, path, host", REDIRECTS.values(), ids=REDIRECTS.keys())
def test_a_redirect_within_the_host_is_followed(location: str, path: str, host: str) -> None:
    requests: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        port = writer.get_extra_info("sockname")[1]
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {location.replace('{}', f'127.0.0.1:{port}')}\r\n\r\n"
        writer.write((moved if len(requests) == 1 else OK).encode())

    async def scenario() -> tuple[HttpEnd, Endpoint]:
        async with server(talk) as endpoint:
            return await get(f"http://{endpoint}/a/x", host="pod.example", Authorization="mine"), endpoint

    end, endpoint = asyncio.run(scenario())
    assert end == HttpAnswer(200, b"ok")
    (_, first), (line, second) = sent(requests)
    assert first["Host"] == "pod.example"
    assert line == f"GET {path} HTTP/1.1"
    assert second["Host"] == host.replace("{}", str(endpoint))
    assert second["Referer"] == f"http://{endpoint}/a/x"
    assert second["Authorization"] == "mine"


def test_ten_requests_are_made_and_no_more() -> None:
    requests: list[str] = []
    end, _ = asked(noting(requests, said("302 Found", "Location: /next", "Content-Length: 0")))
    assert isinstance(end, NoAnswer)
    assert len(requests) == 10


def test_a_redirect_to_another_port_of_the_host_is_followed() -> None:
    async def scenario() -> HttpEnd:
        async with server(saying(OK)) as other, server(leading(f"http://{other}/")) as endpoint:
            return await get(f"http://{endpoint}/")

    assert asyncio.run(scenario()) == HttpAnswer(200, b"ok")


def test_certificates_are_not_verified(certificate: ssl.SSLContext) -> None:
    async def scenario() -> HttpEnd:
        async with server(saying(OK), tls=certificate) as endpoint:
            return await get(f"https://{endpoint}/x")

    assert asyncio.run(scenario()) == HttpAnswer(200, b"ok")


def test_a_plain_server_behind_https_is_recognised_so_that_a_hook_may_try_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    end, endpoint = asked(talk, scheme="https")
    assert end == NoAnswer(f'Get "https://{endpoint}/x": http: server gave HTTP response to HTTPS client')
    assert plain_request(HttpRequest(f"https://{endpoint}/x", {}), end) is not None


def test_a_server_that_hangs_up_on_tls_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)

    end, endpoint = asked(talk, scheme="https")
    assert end == NoAnswer(f'Get "https://{endpoint}/x": EOF')


def test_no_connection_serves_two_requests() -> None:
    places: list[object] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        places.append(writer.get_extra_info("peername"))
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok")
            await writer.drain()

    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(talk) as endpoint:
            for _ in range(3):
                assert await prober.http(HttpRequest(f"http://{endpoint}/", {}), 5) == HttpAnswer(200, b"ok")
            await prober.close()

    asyncio.run(scenario())
    assert len(set(map(str, places))) == 3


def test_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed() as nobody:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{nobody}")
        assert asked(saying(OK))[0] == HttpAnswer(200, b"ok")


def test_three_hundred_that_hang_do_not_delay_another() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silence) as silent, server(saying(OK)) as well, asyncio.TaskGroup() as group:
            hung = [group.create_task(prober.http(HttpRequest(f"http://{silent}/", {}), 60)) for _ in range(300)]
            await asyncio.sleep(0.05)
            assert await prober.http(HttpRequest(f"http://{well}/", {}), 30) == HttpAnswer(200, b"ok")
            assert not any(task.done() for task in hung)
            for task in hung:
                task.cancel()
        await prober.close()

    asyncio.run(scenario())


def test_whatever_a_server_says_nothing_is_raised() -> None:
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

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(chance.choices(parts, k=chance.randrange(1, 9))))

    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(talk) as endpoint:
            for _ in range(400):
                end = await prober.http(HttpRequest(f"http://{endpoint}/", {}), 5)
                assert isinstance(end, HttpAnswer | BrokenBody) or end.message
        await prober.close()

    asyncio.run(scenario())
