"""Streams over one connection to a scripted server: order, bounds, flow control, lost connections."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.streams.connection import BUFFER_BYTES, SpdyConnection, StreamClosed, StreamsLost
from podkeeper.streams.frames import (
    SETTINGS_INITIAL_WINDOW,
    Data,
    Frame,
    GoAway,
    Headers,
    Ping,
    Reset,
    SettingsFrame,
    SynReply,
    SynStream,
    WindowUpdate,
)
from podkeeper.streams.remote_command import PROTOCOL
from podkeeper.streams.upgrade import open_connection
from podkeeper.streams.windows import CONNECTION
from tests.streams.scripted import TIMEOUT_SECONDS, Peer, Script, serving

Work = Callable[[SpdyConnection], Awaitable[None]]
LARGE = 20_000_000


def play(script: Script, work: Work) -> None:
    """Run a server script and a client against each other."""

    async def switched(peer: Peer) -> None:
        await peer.switch()
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), serving(switched) as url:
            connection = await open_connection(url, PROTOCOL)
            try:
                await work(connection)
            finally:
                await connection.close()

    asyncio.run(scenario())


def test_data_of_several_streams_arrives_in_order() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        one, two = numbers["a"], numbers["b"]
        await peer.send(Data(one, b"1"), Data(two, b"2"), Data(one, b"3", fin=True), Data(two, b"", fin=True))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        streams = {connection.open_stream({"streamtype": name}, buffer): name for name in "ab"}
        for stream in streams:
            await stream.accepted()
        taken = [await buffer.take() for _ in range(5)]
        assert [(streams[stream], data) for stream, data in taken] == [
            *(("a", b"1"), ("b", b"2"), ("a", b"3")),
            *(("a", b""), ("b", b"")),
        ]

    play(script, work)


def test_a_full_buffer_pauses_reading_and_loses_nothing() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        number = (await peer.accept(1))["a"]
        for _ in range(LARGE // 20_000):
            await peer.send(Data(number, b"x" * 20_000))
            sent += 20_000
        await peer.send(Data(number, b"", fin=True))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        await connection.open_stream({"streamtype": "a"}, buffer).accepted()
        before, taken = -1, 0
        while sent != before:  # until the server can send no more
            before = sent
            await asyncio.sleep(0.1)
        assert sent >= BUFFER_BYTES
        while data := (await buffer.take())[1]:
            taken += len(data)
        assert taken == LARGE
        assert tracemalloc.get_traced_memory()[1] < LARGE / 5  # the server's part is in it

    tracemalloc.start()
    try:
        play(script, work)
    finally:
        tracemalloc.stop()


def test_a_closed_buffer_blocks_no_other_stream() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(2)
        await peer.send(*[Data(numbers["a"], bytes(30_000))] * 20, Data(numbers["b"], b"late"))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        stuck, buffer = connection.buffer(), connection.buffer()
        streams = [
            connection.open_stream({"streamtype": "a"}, stuck),
            connection.open_stream({"streamtype": "b"}, buffer),
        ]
        for stream in streams:
            await stream.accepted()
        while not stuck.is_full:
            await asyncio.sleep(0.01)
        streams[0].reset()
        stuck.close()
        assert (await buffer.take())[1] == b"late"
        with pytest.raises(StreamsLost):
            await stuck.take()

    play(script, work)


def test_sending_to_a_peer_without_windows_is_limited_by_tcp_only() -> None:
    got = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        count = 0
        while isinstance(frame := await peer.frame(), Data) and not frame.fin:
            assert frame.stream == number
            count += len(frame.data)
        got.append(count)
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        stream = connection.open_stream({"streamtype": "a"}, connection.buffer())
        await stream.accepted()
        await stream.write(bytes(LARGE))
        stream.finish()
        while not got:
            await asyncio.sleep(0.01)

    play(script, work)
    assert got == [LARGE]


def test_windows_of_a_peer_that_uses_them_limit_sending() -> None:
    window = 50_000

    async def script(peer: Peer) -> None:
        await peer.send(SettingsFrame(((SETTINGS_INITIAL_WINDOW, window),)))
        number = (await peer.accept(1))["a"]
        came, given = 0, window
        while isinstance(frame := await peer.frame(), Data) and not frame.fin:
            came += len(frame.data)
            assert came <= given
            if came == given:
                given += window
                await asyncio.sleep(0.02)  # excess data would have arrived by now
                await peer.send(WindowUpdate(number, window), WindowUpdate(CONNECTION, window))
        assert came == 210_000
        await peer.send(Data(number, b"", fin=True))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        stream = connection.open_stream({"streamtype": "a"}, connection.buffer())
        await stream.accepted()
        await stream.write(bytes(210_000))
        stream.finish()
        assert await stream.buffer.take() == (stream, b"")

    play(script, work)


def test_window_updates_are_sent_only_to_peers_that_use_windows() -> None:
    updates: list[list[Frame]] = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Data(number, bytes(40_000)), Data(number, b"", fin=True))
        updates.append([frame for frame in await peer.until_gone() if isinstance(frame, WindowUpdate)])

    async def speaking(peer: Peer) -> None:
        await peer.send(SettingsFrame(((SETTINGS_INITIAL_WINDOW, 2**16),)))
        await script(peer)

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        await connection.open_stream({"streamtype": "a"}, buffer).accepted()
        while (await buffer.take())[1]:
            pass

    play(script, work)
    play(speaking, work)
    assert updates == [[], [WindowUpdate(0, 40_000), WindowUpdate(1, 40_000)]]


def test_pings_are_answered_server_streams_refused_and_late_frames_ignored() -> None:
    answers = []

    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Ping(4), Ping(1), SynStream(2, {}), Data(77, b"?"), Reset(77, 5), SynReply(number, {}))
        await peer.send(Headers(number, {"x": "y"}), Data(number, b"", fin=True))
        answers.extend([await peer.frame(), await peer.frame()])
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        stream = connection.open_stream({"streamtype": "a"}, buffer)
        assert await buffer.take() == (stream, b"")

    play(script, work)
    assert answers == [Ping(4), Reset(2, 3)]


def test_after_goaway_accepted_streams_continue_and_others_are_refused() -> None:
    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        assert isinstance(await peer.frame(), SynStream)
        await peer.send(GoAway(number), Data(number, b"still here"))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        await connection.open_stream({"streamtype": "a"}, buffer).accepted()
        late = connection.open_stream({"streamtype": "b"}, connection.buffer())
        with pytest.raises(RuntimeRefused, match="refused it"):
            await late.accepted()
        assert (await buffer.take())[1] == b"still here"
        with pytest.raises(StreamsLost, match="closing the connection"):
            connection.open_stream({"streamtype": "c"}, buffer)

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


@pytest.mark.parametrize("lose, message", LOSSES.values(), ids=LOSSES.keys())
def test_a_lost_connection_raises_after_all_received_data(lose: Script, message: str) -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(1)
        assert isinstance(await peer.frame(), SynStream)
        await peer.send(Data(numbers["a"], b"before"))
        await lose(peer)

    async def work(connection: SpdyConnection) -> None:
        buffer, other = connection.buffer(), connection.buffer()
        stream = connection.open_stream({"streamtype": "a"}, buffer)
        await stream.accepted()
        waiting: list[Awaitable[object]] = [
            other.take(),
            connection.open_stream({"streamtype": "b"}, buffer).accepted(),
        ]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in results] == [StreamsLost, StreamsLost]
        assert (await buffer.take())[1] == b"before"
        with pytest.raises(StreamsLost, match=message):
            await buffer.take()
        with pytest.raises(StreamsLost):
            await stream.write(b"more")
        with pytest.raises(TryLater):
            connection.open_stream({}, buffer)

    play(script, work)


def test_a_stream_reset_by_the_server_ends_and_cannot_be_written() -> None:
    async def script(peer: Peer) -> None:
        number = (await peer.accept(1))["a"]
        await peer.send(Data(number, b"word"), Reset(number, 5))
        await peer.until_gone()

    async def work(connection: SpdyConnection) -> None:
        buffer = connection.buffer()
        stream = connection.open_stream({"streamtype": "a"}, buffer)
        await stream.accepted()
        assert [(await buffer.take())[1] for _ in range(2)] == [b"word", b""]
        with pytest.raises(StreamClosed):
            await stream.write(b"more")

    play(script, work)


def test_close_does_not_block_on_a_server_that_reads_nothing() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(1)
        transport = peer.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await asyncio.sleep(0.5)

    async def work(connection: SpdyConnection) -> None:
        stream = connection.open_stream({"streamtype": "a"}, connection.buffer())
        await stream.accepted()
        writing = asyncio.create_task(stream.write(bytes(LARGE)))
        await asyncio.sleep(0.2)
        assert not writing.done()
        async with asyncio.timeout(0.2):
            await connection.close()
        with pytest.raises(StreamsLost):
            await writing

    play(script, work)
