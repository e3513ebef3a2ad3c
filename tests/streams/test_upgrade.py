"""The upgrade to SPDY: the request, and the message of each failure."""

import asyncio
import socket
import ssl

import pytest

from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.streams.connection import StreamsLost
from podkeeper.streams.frames import Frame, GoAway, Ping
from podkeeper.streams.remote_command import PROTOCOL
from podkeeper.streams.upgrade import open_connection
from tests.streams.scripted import TOKEN, Peer, serving


def test_the_upgrade_request_and_frames_directly_after_the_response() -> None:
    requests: list[bytes] = []
    seen: list[Frame] = []

    async def script(peer: Peer) -> None:
        await peer.switch(PROTOCOL, Ping(2))
        requests.append(peer.request)
        seen.append(await peer.frame())
        seen.extend(await peer.until_gone())

    async def scenario() -> None:
        async with serving(script) as url:
            connection = await open_connection(f"{url}?a=b", PROTOCOL)
            await asyncio.sleep(0.05)
            await connection.close()

    asyncio.run(scenario())
    first, *headers = requests[0].decode().strip().split("\r\n")
    assert first == f"POST /exec/{TOKEN}?a=b HTTP/1.1"
    assert {"Connection: Upgrade", "Upgrade: SPDY/3.1", f"x-stream-protocol-version: {PROTOCOL}"} <= set(headers)
    assert seen == [Ping(2), GoAway(0)]


def test_a_server_that_closes_after_the_upgrade_is_a_lost_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.switch()
        peer.writer.close()

    async def scenario() -> None:
        async with serving(script) as url:
            connection = await open_connection(url, PROTOCOL)
            with pytest.raises(StreamsLost):
                await connection.buffer().take()
            await connection.close()

    asyncio.run(scenario())


ANSWERS: dict[str, tuple[bytes, type[TryLater], str]] = {
    "a token that is not known": (
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n",
        RuntimeRefused,
        "^404 page not found$",
    ),
    "an unsupported protocol": (b"HTTP/1.1 403 Forbidden\r\n\r\n", RuntimeRefused, "answered 403"),
    "another protocol than ours": (
        b"HTTP/1.1 101 Switching Protocols\r\nX-Stream-Protocol-Version: v9\r\n\r\n",
        RuntimeRefused,
        "chose protocol 'v9'",
    ),
    "no protocol": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", RuntimeRefused, "chose protocol ''"),
    "no HTTP": (b"SSH-2.0-something\r\n\r\n", StreamsLost, "is not HTTP"),
    "much that is not HTTP": (b"x" * 100_000, StreamsLost, "is not HTTP"),
    "nothing": (b"", StreamsLost, "closed the connection without a response"),
    "half an answer": (b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nabc", StreamsLost, "without a response"),
}


@pytest.mark.parametrize("answer, kind, message", ANSWERS.values(), ids=ANSWERS.keys())
def test_messages_for_responses_other_than_an_upgrade(answer: bytes, kind: type[TryLater], message: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write(answer)

    async def scenario() -> None:
        async with serving(script) as url:
            with pytest.raises(kind, match=message) as refused:
                await open_connection(url, PROTOCOL)
            assert TOKEN not in str(refused.value)

    asyncio.run(scenario())


def test_a_refused_connection_is_closed() -> None:
    async def scenario() -> None:
        closed = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.switch("v9")
            await peer.until_gone()
            closed.set()

        async with serving(script) as url:
            with pytest.raises(RuntimeRefused) as refused:
                await open_connection(url, PROTOCOL)
            async with asyncio.timeout(5):
                await closed.wait()
            del refused  # not before, because its traceback keeps the transport from being collected and closed

    asyncio.run(scenario())


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


ADDRESSES: dict[str, tuple[str, type[TryLater], str]] = {
    "connection refused": (
        f"http://127.0.0.1:{free_port()}/exec/{TOKEN}",
        StreamsLost,
        "cannot reach .*: Connection refused",
    ),
    "a URL without a scheme": ("/exec/a-secret-token", RuntimeRefused, "scheme ''"),
    "a URL of another scheme": ("unix:///run/a-secret-token", RuntimeRefused, "scheme 'unix'"),
    "its port is none": ("http://127.0.0.1:99999/a", RuntimeRefused, "invalid URL"),
}


@pytest.mark.parametrize("url, kind, message", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_messages_for_unusable_urls(url: str, kind: type[TryLater], message: str) -> None:
    with pytest.raises(kind, match=message) as refused:
        asyncio.run(_open(url))
    assert TOKEN not in str(refused.value)


async def _open(url: str) -> None:
    await open_connection(url, PROTOCOL)


def test_an_untrusted_certificate_is_refused_with_a_hint(
    certificate: ssl.SSLContext,
) -> None:
    served = []

    async def script(peer: Peer) -> None:
        await peer.switch()
        served.append(await peer.until_gone())

    async def refuse(peer: Peer) -> None:
        raise AssertionError("a connection without trust must not come to this")

    async def scenario() -> None:
        async with serving(refuse, tls=certificate) as url:
            with pytest.raises(RuntimeRefused, match=r"is not trusted .* disable TLS of the streaming server"):
                await open_connection(url, PROTOCOL)
        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        trusting.set_ciphers("DEFAULT:@SECLEVEL=1")
        async with serving(script, tls=certificate) as url:
            await (await open_connection(url, PROTOCOL, tls=trusting)).close()

    asyncio.run(scenario())
    assert served == [[GoAway(0)]]
