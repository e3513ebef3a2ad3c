"""Forwarded connections with a server that does as the test says."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.probing import Exited, NotRun
from podkeeper.runtimes.cri.streaming.connection import INBOX_BYTES
from podkeeper.runtimes.cri.streaming.frames import Data, Frame, GoAway, Reset, SynReply, SynStream
from podkeeper.runtimes.cri.streaming.port_forward import PROTOCOL, Forwarded, PortForward
from podkeeper.runtimes.cri.streaming.upgrade import open_connection
from tests.runtimes.cri.streaming.scripted import PATIENCE_SECONDS, Peer, Script, serving


def play(script: Script, work: Callable[[PortForward], Awaitable[None]]) -> None:
    """Have a server do one thing and a client another."""

    async def switched(peer: Peer) -> None:
        await peer.switch(PROTOCOL)
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), serving(switched) as url:
            way = PortForward(await open_connection(url, PROTOCOL))
            try:
                await work(way)
            finally:
                await way.close()

    asyncio.run(scenario())


async def everything(forwarded: Forwarded) -> bytes:
    return b"".join([data async for _, data in forwarded.output()])


def test_each_connection_has_its_own_pair_of_streams_and_they_do_not_mix() -> None:
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
        assert [await first.wait(), await second.wait(), await second.wait()] == [Exited(0)] * 3

    play(script, work)
    assert sorted((each["requestid"], each["streamtype"], each["port"]) for each in seen) == [
        *(("0", "data", "80"), ("0", "error", "80")),
        *(("1", "data", "81"), ("1", "error", "81")),
    ]


@pytest.mark.parametrize("replied_first", [("data",), ("error",), ()])
def test_one_who_speaks_before_both_streams_are_taken_is_heard(replied_first: tuple[str, ...]) -> None:
    """containerd begins to forward once it has both streams, whether or not it has said so: more than we hold at once
    may come before its replies.
    """
    piece, count = b"0123456789abcdef" * 2048, 32

    async def script(peer: Peer) -> None:
        numbers = {}
        for _ in range(2):
            stream = await peer.frame()
            assert isinstance(stream, SynStream)
            numbers[stream.headers["streamtype"]] = stream.stream
        assert count * len(piece) > 2 * INBOX_BYTES
        await peer.send(*(SynReply(numbers[name], {}) for name in replied_first))
        await peer.send(*[Data(numbers["data"], piece)] * count)
        await peer.send(*(SynReply(numbers[name], {}) for name in ("error", "data") if name not in replied_first))
        await peer.send(Data(numbers["data"], b"", fin=True), Data(numbers["error"], b"", fin=True))
        await peer.until_gone()

    async def work(way: PortForward) -> None:
        forwarded = await way.open(80)
        assert await everything(forwarded) == piece * count
        assert await forwarded.wait() == Exited(0)

    play(script, work)


def test_why_it_did_not_come_about_is_told_and_nothing_more_is_sent() -> None:
    left: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        await peer.send(Data(numbers["error"], b"connection "), Data(numbers["error"], b"refused\n", fin=True))
        await peer.send(Data(numbers["data"], b"", fin=True))
        left.extend(await peer.until_gone())

    async def work(way: PortForward) -> None:
        forwarded = await way.open(9)
        assert await everything(forwarded) == b""
        await forwarded.send(b"is anybody there?")
        assert await forwarded.wait() == NotRun("connection refused")
        await forwarded.close()

    play(script, work)
    assert left == [Reset(3, 5), GoAway(0)]


def test_one_that_ends_leaves_the_others_alone() -> None:
    async def script(peer: Peer) -> None:
        first, other = (await peer.accept(2))["data"], (await peer.accept(2))["data"]
        await peer.send(*[Data(first, bytes(30_000))] * 20)  # more than anybody wants
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


def test_a_connection_that_is_lost_is_the_end_of_all_and_told_to_each() -> None:
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


def test_one_that_is_alone_closes_the_way_with_it_and_half_closes_before() -> None:
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
