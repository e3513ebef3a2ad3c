"""Streams over one connection: order, bounds, both kinds of flow control, and every way to lose it."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.runtimes.cri.streaming.connection import INBOX_BYTES, Connection, StreamClosed, StreamsLost
from podkeeper.runtimes.cri.streaming.frames import (
    SETTINGS_INITIAL_WINDOW,
    Data,
    Frame,
    GoAway,
    MoreHeaders,
    Ping,
    Reset,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)
from podkeeper.runtimes.cri.streaming.remote_command import PROTOCOL
from podkeeper.runtimes.cri.streaming.upgrade import open_connection
from podkeeper.runtimes.cri.streaming.windows import CONNECTION
from tests.runtimes.cri.streaming.scripted import PATIENCE_SECONDS, Peer, Script, serving

Work = Callable[[Connection], Awaitable[None]]
LARGE = 20_000_000


def play(script: Script, work: Work) -> None:
    """Have a server do one thing and a client another."""

    async def switched(peer: Peer) -> None:
        await peer.switch()
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), serving(switched) as url:
            connection = await open_connection(url, PROTOCOL)
            try:
                await work(connection)
            finally:
                await connection.close()

    asyncio.run(scenario())


def test_what_comes_on_several_streams_is_taken_in_the_order_in_which_it_came() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        one, two = numbers["a"], numbers["b"]
        await peer.send(Data(one, b"1"), Data(two, b"2"), Data(one, b"3", fin=True), Data(two, b"", fin=True))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        streams = {connection.begin({"streamtype": name}, inbox): name for name in "ab"}
        for stream in streams:
            await stream.accepted()
        taken = [await inbox.take() for _ in range(5)]
        assert [(streams[stream], data) for stream, data in taken] == [
            *(("a", b"1"), ("b", b"2"), ("a", b"3")),
            *(("a", b""), ("b", b"")),
        ]

    play(script, work)


def test_what_nobody_takes_is_not_read_and_comes_complete_when_somebody_does() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        number = (await peer.accept(1))["a"]
        for _ in range(LARGE // 20_000):
            await peer.send(Data(number, b"x" * 20_000))
            sent += 20_000
        await peer.send(Data(number, b"", fin=True))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        await connection.begin({"streamtype": "a"}, inbox).accepted()
        before, taken = -1, 0
        while sent != before:  # until the server can send no more
            before = sent
            await asyncio.sleep(0.1)
        assert sent >= INBOX_BYTES
        while data := (await inbox.take())[1]:
            taken += len(data)
        assert taken == LARGE
        assert tracemalloc.get_traced_memory()[1] < LARGE / 5  # the server's part is in it

    tracemalloc.start()
    try:
        play(script, work)
    finally:
        tracemalloc.stop()


def test_an_inbox_that_is_closed_holds_nobody_up() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        await peer.send(*[Data(numbers["a"], bytes(30_000))] * 20, Data(numbers["b"], b"late"))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        stuck, inbox = connection.inbox(), connection.inbox()
        streams = [connection.begin({"streamtype": "a"}, stuck), connection.begin({"streamtype": "b"}, inbox)]
        for stream in streams:
            await stream.accepted()
        while not stuck.is_full:
            await asyncio.sleep(0.01)
        streams[0].reset()
        stuck.close()
        assert (await inbox.take())[1] == b"late"
        with pytest.raises(StreamsLost):
            await stuck.take()

    play(script, work)


def test_much_can_be_sent_to_who_knows_no_windows_as_fast_as_it_reads() -> None:
    got = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        count = 0
        while isinstance(frame := await peer.frame(), Data) and not frame.fin:
            assert frame.stream == number
            count += len(frame.data)
        got.append(count)
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        stream = connection.begin({"streamtype": "a"}, connection.inbox())
        await stream.accepted()
        await stream.write(bytes(LARGE))
        stream.finish()
        while not got:
            await asyncio.sleep(0.01)

    play(script, work)
    assert got == [LARGE]


def test_windows_are_kept_to_with_who_has_them() -> None:
    window = 50_000

    async def script(peer: Peer) -> None:
        await peer.send(Settings(((SETTINGS_INITIAL_WINDOW, window),)))
        number = (await peer.accept(1))["a"]
        came, given = 0, window
        while isinstance(frame := await peer.frame(), Data) and not frame.fin:
            came += len(frame.data)
            assert came <= given
            if came == given:
                given += window
                await asyncio.sleep(0.02)  # what was sent too much would be there by now
                await peer.send(WindowUpdate(number, window), WindowUpdate(CONNECTION, window))
        assert came == 210_000
        await peer.send(Data(number, b"", fin=True))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        stream = connection.begin({"streamtype": "a"}, connection.inbox())
        await stream.accepted()
        await stream.write(bytes(210_000))
        stream.finish()
        assert await stream.inbox.take() == (stream, b"")

    play(script, work)


def test_what_was_taken_is_given_back_to_who_has_windows_and_to_nobody_else() -> None:
    heard: list[list[Frame]] = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Data(number, bytes(40_000)), Data(number, b"", fin=True))
        heard.append([frame for frame in await peer.until_gone() if isinstance(frame, WindowUpdate)])

    async def speaking(peer: Peer) -> None:
        await peer.send(Settings(((SETTINGS_INITIAL_WINDOW, 2**16),)))
        await script(peer)

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        await connection.begin({"streamtype": "a"}, inbox).accepted()
        while (await inbox.take())[1]:
            pass

    play(script, work)
    play(speaking, work)
    assert heard == [[], [WindowUpdate(0, 40_000), WindowUpdate(1, 40_000)]]


def test_pings_are_answered_streams_of_the_server_refused_and_late_news_passed_over() -> None:
    answers = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Ping(4), Ping(1), SynStream(2, {}), Data(77, b"?"), Reset(77, 5), SynReply(number, {}))
        await peer.send(MoreHeaders(number, {"x": "y"}), Data(number, b"", fin=True))
        answers.extend([await peer.frame(), await peer.frame()])
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        stream = connection.begin({"streamtype": "a"}, inbox)
        assert await inbox.take() == (stream, b"")

    play(script, work)
    assert answers == [Ping(4), Reset(2, 3)]


def test_after_goaway_streams_that_were_taken_go_on_and_others_are_refused() -> None:
    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        assert isinstance(await peer.frame(), SynStream)
        await peer.send(GoAway(number), Data(number, b"still here"))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        await connection.begin({"streamtype": "a"}, inbox).accepted()
        late = connection.begin({"streamtype": "b"}, connection.inbox())
        with pytest.raises(RuntimeRefused, match="refused it"):
            await late.accepted()
        assert (await inbox.take())[1] == b"still here"
        with pytest.raises(StreamsLost, match="closing the connection"):
            connection.begin({"streamtype": "c"}, inbox)

    play(script, work)


async def cut(peer: Peer) -> None:
    peer.writer.transport.abort()


async def close(peer: Peer) -> None:
    peer.writer.close()


async def garbage(peer: Peer) -> None:
    peer.writer.write(b"\xc8TTP/1.1 400 Bad Request\r\n\r\n")
    await peer.until_gone()


LOSSES: dict[str, tuple[Script, str]] = {
    "the connection is cut": (cut, "broke|closed"),
    "the server closes it": (close, "closed the connection"),
    "something comes that is no SPDY": (garbage, "the runtime sent a control frame of version"),
}


@pytest.mark.parametrize("lose, words", LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_is_told_to_everyone_who_waits_after_all_that_had_come(lose: Script, words: str) -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(1)
        assert isinstance(await peer.frame(), SynStream)
        await peer.send(Data(numbers["a"], b"before"))
        await lose(peer)

    async def work(connection: Connection) -> None:
        inbox, other = connection.inbox(), connection.inbox()
        stream = connection.begin({"streamtype": "a"}, inbox)
        await stream.accepted()
        waiting: list[Awaitable[object]] = [other.take(), connection.begin({"streamtype": "b"}, inbox).accepted()]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in told] == [StreamsLost, StreamsLost]
        assert (await inbox.take())[1] == b"before"
        with pytest.raises(StreamsLost, match=words):
            await inbox.take()
        with pytest.raises(StreamsLost):
            await stream.write(b"more")
        with pytest.raises(TryLater):
            connection.begin({}, inbox)

    play(script, work)


def test_a_stream_that_the_server_resets_ends_and_takes_nothing_more() -> None:
    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Data(number, b"word"), Reset(number, 5))
        await peer.until_gone()

    async def work(connection: Connection) -> None:
        inbox = connection.inbox()
        stream = connection.begin({"streamtype": "a"}, inbox)
        await stream.accepted()
        assert [(await inbox.take())[1] for _ in range(2)] == [b"word", b""]
        with pytest.raises(StreamClosed):
            await stream.write(b"more")

    play(script, work)


def test_whoever_closes_is_not_held_up_by_a_server_that_reads_nothing() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(1)
        transport = peer.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await asyncio.sleep(0.5)

    async def work(connection: Connection) -> None:
        stream = connection.begin({"streamtype": "a"}, connection.inbox())
        await stream.accepted()
        writing = asyncio.create_task(stream.write(bytes(LARGE)))
        await asyncio.sleep(0.2)
        assert not writing.done()
        async with asyncio.timeout(0.2):
            await connection.close()
        with pytest.raises(StreamsLost):
            await writing

    play(script, work)
