"""Forwarded connections with a scripted server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.probing import CommandExited, NotRun
from podkeeper.streams.connection import BUFFER_BYTES
from podkeeper.streams.frames import Data, Frame, GoAway, Reset, SynReply, SynStream
from podkeeper.streams.port_forward import PROTOCOL, ForwardedConnection, PortForward
from podkeeper.streams.upgrade import open_connection
from tests.streams.scripted import TIMEOUT_SECONDS, Peer, Script, serving


def play(script: Script, work: Callable[[PortForward], Awaitable[None]]) -> None:
    """Run a server script and a client against each other."""

    async def switched(peer: Peer) -> None:
        await peer.switch(PROTOCOL)
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), serving(switched) as url:
            way = PortForward(await open_connection(url, PROTOCOL))
            try:
                await work(way)
            finally:
                await way.close()

    asyncio.run(scenario())


async def everything(forwarded: ForwardedConnection) -> bytes:
    return b"".join([data async for _, data in forwarded.output()])


def test_each_forwarded_connection_has_its_own_streams() -> None:
    seen: list[dict[str, str]] = []

    async def script(peer: Peer) -> None:
        pairs: dict[str, dict[str, int]] = {}
        for _ in range(4):
            stream = await peer.frame()
            assert isinstance(stream, SynStream)
            seen.append(dict(stream.headers))
            pairs.setdefault(stream.headers["requestid"], {})[stream.headers["streamtype"]] = stream.stream
            await peer.send(SynReply(stream.stream, {}))
        for request, pair in reversed(pairs.items()):
            await peer.send(Data(pair["data"], f"for {request}".encode(), fin=True), Data(pair["error"], b"", fin=True))
        await peer.until_gone()

    async def work(way: PortForward) -> None:
        first, second = await asyncio.gather(way.open(80), way.open(81))
        assert [await everything(first), await everything(second)] == [b"for 0", b"for 1"]
        assert [await first.wait(), await second.wait(), await second.wait()] == [CommandExited(0)] * 3

    play(script, work)
    assert sorted((each["requestid"], each["streamtype"], each["port"]) for each in seen) == [
        *(("0", "data", "80"), ("0", "error", "80")),
        *(("1", "data", "81"), ("1", "error", "81")),
    ]


@pytest.mark.parametrize("replied_first", [("data",), ("error",), ()])
def test_data_before_both_streams_are_accepted_is_received(replied_first: tuple[str, ...]) -> None:
    """containerd forwards as soon as it has both streams, even before its replies. More data than our buffer holds may
    arrive before them.
    """
    piece, count = b"0123456789abcdef" * 2048, 32

    async def script(peer: Peer) -> None:
        numbers = {}
        for _ in range(2):
            stream = await peer.frame()
            assert isinstance(stream, SynStream)
            numbers[stream.headers["streamtype"]] = stream.stream
        assert count * len(piece) > 2 * BUFFER_BYTES
        await peer.send(*(SynReply(numbers[name], {}) for name in replied_first))
        await peer.send(*[Data(numbers["data"], piece)] * count)
        await peer.send(*(SynReply(numbers[name], {}) for name in ("error", "data") if name not in replied_first))
        await peer.send(Data(numbers["data"], b"", fin=True), Data(numbers["error"], b"", fin=True))
        await peer.until_gone()

    async def work(way: PortForward) -> None:
        forwarded = await way.open(80)
        assert await everything(forwarded) == piece * count
        assert await forwarded.wait() == CommandExited(0)

    play(script, work)


def test_a_failed_forward_reports_the_error_and_sends_nothing() -> None:
    left: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        await peer.send(Data(numbers["error"], b"connection "), Data(numbers["error"], b"refused\n", fin=True))
        await peer.send(Data(numbers["data"], b"", fin=True))
        left.extend(await peer.until_gone())

    async def work(way: PortForward) -> None:
        forwarded = await way.open(9)
        assert await everything(forwarded) == b""
        await forwarded.send(b"hello")
        assert await forwarded.wait() == NotRun("connection refused")
        await forwarded.close()

    play(script, work)
    assert left == [Reset(3, 5), GoAway(0)]


def test_a_refused_forward_resets_its_other_stream_at_once() -> None:
    reset: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = [frame.stream for frame in (await peer.frame(), await peer.frame()) if isinstance(frame, SynStream)]
        await peer.send(Reset(numbers[0], 3))
        reset.append(await peer.frame())
        await peer.until_gone()

    async def work(way: PortForward) -> None:
        with pytest.raises(TryLater, match="refused"):
            await way.open(80)
        async with asyncio.timeout(5):
            while not reset:  # before the whole connection is closed
                await asyncio.sleep(0.01)

    play(script, work)
    assert reset == [Reset(3, 5)]


def test_closing_one_forwarded_connection_keeps_the_others() -> None:
    async def script(peer: Peer) -> None:
        first, other = (await peer.accept(2))["data"], (await peer.accept(2))["data"]
        await peer.send(*[Data(first, bytes(30_000))] * 20)  # more than any buffer holds
        while isinstance(frame := await peer.frame(), Reset):
            pass
        assert frame == Data(other, b"ping")
        await peer.send(Data(other, b"pong"))
        await peer.until_gone()

    async def work(way: PortForward) -> None:
        unread, used = await way.open(80), await way.open(80)
        await asyncio.sleep(0.05)
        await unread.close()
        await used.send(b"ping")
        assert await anext(used.output()) == ("stdout", b"pong")

    play(script, work)


def test_a_lost_connection_ends_all_forwarded_connections() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(2)
        await peer.accept(2)
        peer.writer.transport.abort()

    async def work(way: PortForward) -> None:
        both = [await way.open(80), await way.open(81)]
        assert [await everything(each) for each in both] == [b"", b""]
        assert [type(await each.wait()) for each in both] == [NotRun, NotRun]
        with pytest.raises(TryLater):
            await way.open(82)

    play(script, work)


def test_a_single_forward_closes_its_connection_and_can_half_close() -> None:
    left: list[list[Frame]] = []

    async def script(peer: Peer) -> None:
        await peer.accept(2)
        left.append(await peer.until_gone())

    async def work(way: PortForward) -> None:
        forwarded = await way.open(80, alone=True)
        await forwarded.send(b"all")
        await forwarded.close_input()
        await forwarded.close()
        with pytest.raises(TryLater):
            await way.open(80)

    play(script, work)
    assert left == [[Data(3, b"all"), Data(3, b"", fin=True), Reset(3, 5), Reset(1, 5), GoAway(0)]]
