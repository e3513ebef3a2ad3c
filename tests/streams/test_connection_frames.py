"""A connection on a fake transport: the frames it sends, when it pauses, how it reports a loss."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.streams.connection import ReceiveBuffer, SpdyConnection, Stream, StreamClosed, StreamsLost
from podkeeper.streams.frames import (
    Data,
    Decoder,
    Encoder,
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
from podkeeper.streams.windows import INITIAL_BYTES, ReceiveWindows, SendWindows
from podkeeper.testing.virtual_time import simulate

KIB = 1024


class Wire(asyncio.Transport):
    """Records sent frames and calls. The test plays the peer."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Frame] = []
        self.requested: list[str] = []
        self.buffered = 0
        self.hangs = False
        self.closing = False
        self._decoder, self._encoder = Decoder(), Encoder()
        self.connection = SpdyConnection(self)

    def write(self, data: Any) -> None:
        self.sent += self._decoder.feed(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.requested.append("pause")

    def resume_reading(self) -> None:
        self.requested.append("resume")

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def abort(self) -> None:
        self.requested.append("abort")

    def close(self) -> None:
        self.requested.append("close")
        if not self.hangs:
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def receive(self, *frames: Frame) -> None:
        for frame in frames:
            self.connection.data_received(self._encoder.encode(frame))

    def take_sent(self) -> list[Frame]:
        found, self.sent = self.sent, []
        return found

    def begun(self, **options: Any) -> tuple[Stream, ReceiveBuffer]:
        """A stream that the other side has taken."""
        buffer = self.connection.buffer()
        stream = self.connection.open_stream({"a": "b"}, buffer, **options)
        self.receive(SynReply(stream.number, {}))
        self.sent.clear()
        return stream, buffer


def play(work: Callable[[Wire], Awaitable[None]]) -> float:
    """Returns how long it took."""

    async def scenario() -> None:
        await work(Wire())

    return simulate(scenario())[1]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_streams_have_odd_numbers_and_their_headers() -> None:
    async def work(wire: Wire) -> None:
        buffer = wire.connection.buffer()
        first = wire.connection.open_stream({"streamtype": "data"}, buffer)
        second = wire.connection.open_stream({"streamtype": "error"}, buffer, finished=True)
        assert (first.number, second.number, first.finished, second.finished) == (1, 3, False, True)
        assert wire.sent == [SynStream(1, {"streamtype": "data"}), SynStream(3, {"streamtype": "error"}, True)]
        wire.receive(SynReply(1, {}))
        await first.accepted()
        await first.accepted()

    assert play(work) == 0.0


def test_a_stream_that_is_not_accepted_times_out_after_30_seconds() -> None:
    async def work(wire: Wire) -> None:
        stream = wire.connection.open_stream({}, wire.connection.buffer())
        with pytest.raises(StreamsLost, match="the runtime did not accept it within 30 s"):
            await stream.accepted()

    assert play(work) == 30.0


def test_data_accepts_a_stream_and_its_companion() -> None:
    async def work(wire: Wire) -> None:
        buffer = wire.connection.buffer()
        error = wire.connection.open_stream({}, buffer)
        data = wire.connection.open_stream({}, buffer, accepted_with=error)
        wire.receive(Data(data.number, b"x"))
        await data.accepted()
        await error.accepted()
        other = wire.connection.open_stream({}, buffer)
        wire.receive(Headers(other.number, {}))
        assert not other.reply.done()

    assert play(work) == 0.0


def test_bytes_are_sent_in_frames_of_32_kib() -> None:
    async def work(wire: Wire) -> None:
        stream, _ = wire.begun()
        data = bytes(range(256)) * 280
        await stream.write(data)
        await stream.write(b"")
        sent = [each for each in wire.sent if isinstance(each, Data)]
        assert [len(each.data) for each in sent] == [32 * KIB, 32 * KIB, len(data) - 64 * KIB]
        assert (b"".join(each.data for each in sent), len(sent)) == (data, len(wire.sent))

    play(work)


def test_writing_waits_while_the_transport_is_congested() -> None:
    async def work(wire: Wire) -> None:
        stream, _ = wire.begun()
        wire.connection.pause_writing()
        writing = asyncio.ensure_future(stream.write(b"x"))
        await asyncio.sleep(1)
        assert wire.sent == []
        wire.connection.resume_writing()
        await writing
        assert wire.sent == [Data(1, b"x")]

    play(work)


def test_windows_limit_writing() -> None:
    async def work(wire: Wire) -> None:
        stream, _ = wire.begun()
        wire.receive(SettingsFrame(((4, 1), (7, 10))))
        writing = asyncio.ensure_future(stream.write(bytes(25)))
        await settle()
        wire.receive(WindowUpdate(1, 5))
        await settle()
        wire.receive(WindowUpdate(1, 100))
        await writing
        assert [len(each.data) for each in wire.sent if isinstance(each, Data)] == [10, 5, 10]

    play(work)


def test_reading_pauses_while_256_kib_are_buffered() -> None:
    async def work(wire: Wire) -> None:
        stream, buffer = wire.begun()
        other, second = wire.begun()
        wire.receive(*[Data(stream.number, bytes(64 * KIB))] * 3, Data(stream.number, bytes(64 * KIB - 1)))
        assert (buffer.is_full, wire.requested) == (False, [])
        wire.receive(Data(stream.number, b"x"))
        assert (buffer.is_full, wire.requested) == (True, ["pause"])
        wire.receive(*[Data(other.number, bytes(128 * KIB))] * 2)
        assert wire.requested == ["pause"]
        assert (await buffer.take())[0] is stream
        assert wire.requested == ["pause"]  # the other one is full
        await second.take()
        assert wire.requested == ["pause", "resume"]
        wire.receive(*[Data(other.number, bytes(128 * KIB))] * 2)
        assert wire.requested == ["pause", "resume", "pause"]
        second.close()
        assert wire.requested == ["pause", "resume", "pause", "resume"]
        with pytest.raises(StreamsLost, match="the buffer is closed"):
            await second.take()

    play(work)


def test_window_updates_are_sent_in_half_windows_to_peers_that_use_them() -> None:
    async def work(wire: Wire) -> None:
        _, buffer = wire.begun()
        wire.receive(Data(1, bytes(32 * KIB)))
        await buffer.take()
        assert wire.take_sent() == []
        wire.receive(WindowUpdate(0, 1), Data(1, b"x"))
        assert wire.take_sent() == [WindowUpdate(0, 32 * KIB + 1)]
        await buffer.take()
        assert wire.take_sent() == [WindowUpdate(1, 32 * KIB + 1)]
        wire.receive(Data(1, bytes(32 * KIB - 1)))
        await buffer.take()
        assert wire.take_sent() == []
        wire.receive(Data(99, b"x"))  # of a stream that is over
        assert wire.take_sent() == [WindowUpdate(0, 32 * KIB)]

    play(work)


def test_data_arrives_in_order_and_empty_data_is_the_end() -> None:
    async def work(wire: Wire) -> None:
        buffer = wire.connection.buffer()
        first, second = (wire.connection.open_stream({}, buffer, finished=True) for _ in range(2))
        waiting = asyncio.ensure_future(buffer.take())
        await settle()
        wire.receive(Data(3, b"b"), Data(1, b"a", fin=True), Data(1, b"late"), Data(3, b"", fin=True))
        assert [await waiting, *[await buffer.take() for _ in range(3)]] == [
            (second, b"b"), (first, b"a"), (first, b""), (second, b""),
        ]  # fmt: skip
        assert (first.ended, first.is_over) == (True, True)
        wire.receive(SynReply(1, {}), Headers(1, {}), Reset(1, 1))

    play(work)


@pytest.mark.parametrize("last", [SynReply(1, {}, True), Headers(1, {}, True), Reset(1, 2)], ids=repr)
def test_every_frame_may_be_the_last_of_a_stream(last: Frame) -> None:
    async def work(wire: Wire) -> None:
        stream, buffer = wire.begun()
        wire.receive(last)
        assert await buffer.take() == (stream, b"")
        assert stream.is_over is isinstance(last, Reset)
        if isinstance(last, Reset):
            with pytest.raises(StreamClosed, match="cannot write: the stream is closed"):
                await stream.write(b"x")
        else:
            await stream.write(b"x")
            assert wire.sent == [Data(1, b"x")]

    play(work)


def test_a_refused_stream_raises() -> None:
    async def work(wire: Wire) -> None:
        stream = wire.connection.open_stream({}, wire.connection.buffer())
        wire.receive(Reset(1, 7))
        with pytest.raises(RuntimeRefused, match=r"cannot open a stream: the runtime refused it \(status 7\)"):
            await stream.accepted()

    play(work)


def test_a_stream_is_finished_and_reset_once() -> None:
    async def work(wire: Wire) -> None:
        stream, buffer = wire.begun()
        stream.finish()
        stream.finish()
        assert wire.take_sent() == [Data(1, b"", fin=True)]
        with pytest.raises(StreamClosed):
            await stream.write(b"x")
        stream.reset()
        stream.reset()
        assert wire.take_sent() == [Reset(1, 5)]
        assert await buffer.take() == (stream, b"")
        assert stream.is_over

    play(work)


def test_a_blocked_writer_raises_when_its_stream_is_reset() -> None:
    async def work(wire: Wire) -> None:
        stream, _ = wire.begun()
        wire.receive(SettingsFrame(((7, 0),)))
        writing = asyncio.ensure_future(stream.write(b"x"))
        await settle()
        wire.receive(Reset(1, 1))
        with pytest.raises(StreamClosed):
            await writing

    play(work)


def test_pings_are_answered_and_streams_of_the_server_refused() -> None:
    async def work(wire: Wire) -> None:
        wire.receive(Ping(2), Ping(3), SynStream(2, {}), Ping(0))
        assert wire.sent == [Ping(2), Reset(2, 3), Ping(0)]

    play(work)


def test_after_goaway_only_accepted_streams_continue() -> None:
    async def work(wire: Wire) -> None:
        buffer = wire.connection.buffer()
        streams = [wire.connection.open_stream({}, buffer) for _ in range(4)]
        wire.receive(SynReply(7, {}), GoAway(3))
        assert [stream.ended for stream in streams] == [False, False, True, False]
        with pytest.raises(RuntimeRefused, match=r"status 3"):
            await streams[2].accepted()
        with pytest.raises(StreamsLost, match="cannot open a stream: the runtime is closing the connection"):
            wire.connection.open_stream({}, buffer)
        await streams[3].write(b"x")

    play(work)


LOSSES: dict[str, tuple[Callable[[SpdyConnection], object], str, list[str]]] = {
    "an end": (lambda it: it.eof_received(), "the runtime closed the connection", []),
    "a hang-up": (lambda it: it.connection_lost(None), "the runtime closed the connection", []),
    "a break": (lambda it: it.connection_lost(OSError("reset")), "the connection broke: reset", []),
    "no SPDY": (
        lambda it: it.data_received(b"\x80\x02\0\6\0\0\0\4\0\0\0\2"),
        "the runtime sent a control frame of version 2, expected 3", ["abort"]),
}  # fmt: skip


@pytest.mark.parametrize("lose, why, requested", LOSSES.values(), ids=LOSSES.keys())
def test_all_waiting_callers_get_an_error_after_a_lost_connection(
    lose: Callable[[SpdyConnection], object], why: str, requested: list[str]
) -> None:
    async def work(wire: Wire) -> None:
        stream, buffer = wire.begun()
        opening = wire.connection.open_stream({}, wire.connection.buffer())
        wire.receive(Data(1, b"before"))
        wire.connection.pause_writing()
        writing = asyncio.ensure_future(stream.write(b"x"))
        other = asyncio.ensure_future(opening.buffer.take())
        await settle()
        wire.sent.clear()
        lose(wire.connection)
        wire.connection.eof_received()
        assert (await buffer.take())[1] == b"before"
        for waiting in (buffer.take(), writing, other):
            with pytest.raises(StreamsLost) as raised:
                await waiting
            assert str(raised.value) == why
        with pytest.raises(StreamsLost, match=f"cannot open a stream: {why}"):
            await opening.accepted()
        with pytest.raises(StreamsLost, match=f"cannot open a stream: {why}"):
            wire.connection.open_stream({}, buffer)
        stream.finish()
        assert (wire.sent, wire.requested) == ([], requested)

    play(work)


def test_close_resets_all_streams_and_sends_goaway() -> None:
    async def work(wire: Wire) -> None:
        wire.begun()
        wire.begun()
        await wire.connection.close()
        assert (wire.sent, wire.requested) == ([Reset(1, 5), Reset(3, 5), GoAway(0)], ["close"])
        assert str(wire.connection.lost) == "the connection was closed"
        await wire.connection.close()
        assert len(wire.sent) == 3

    assert play(work) == 0.0


def test_close_waits_at_most_one_second() -> None:
    async def work(wire: Wire) -> None:
        wire.hangs = True
        await wire.connection.close()
        assert wire.requested == ["close", "abort"]

    assert play(work) == 1.0


def test_close_does_not_wait_for_unread_data() -> None:
    async def work(wire: Wire) -> None:
        wire.buffered = 1
        await wire.connection.close()
        assert wire.requested == ["abort", "close"]

    assert play(work) == 0.0


def test_data_after_the_end_of_a_stream_is_dropped() -> None:
    async def work(wire: Wire) -> None:
        stream, buffer = wire.begun()
        wire.receive(Data(stream.number, b"last", fin=True), Data(stream.number, b"late"))
        assert [await buffer.take(), await buffer.take()] == [(stream, b"last"), (stream, b"")]
        waiting = asyncio.create_task(buffer.take())
        await settle()
        assert not waiting.done()
        waiting.cancel()

    play(work)


def test_closed_streams_and_buffers_leave_nothing() -> None:
    async def work(wire: Wire) -> None:
        wire.receive(SettingsFrame(((7, 1),)))
        for _ in range(3):
            stream, buffer = wire.begun()
            wire.receive(Data(stream.number, b"x"))
            await buffer.take()
            stream.reset()
            buffer.close()
        connection = wire.connection
        windows = (connection._send_windows._left.keys(), connection._receive_windows._done.keys())
        assert (connection._streams, connection._buffers, *map(set, windows)) == ({}, set(), {0}, {0})

    play(work)


def test_nothing_is_sent_on_a_closing_transport() -> None:
    async def work(wire: Wire) -> None:
        stream, _ = wire.begun()
        wire.closing = True
        stream.finish()
        assert wire.sent == []

    play(work)


# Windows.


def test_the_smaller_window_of_stream_and_connection_limits() -> None:
    windows = SendWindows()
    windows.open(1)
    assert (windows.in_use, windows.room(1, 10**9)) == (False, 10**9)
    windows.give(0, 0)
    assert (windows.in_use, INITIAL_BYTES) == (True, 64 * KIB)
    assert [windows.room(1, wanted) for wanted in (0, 64 * KIB, 64 * KIB + 1)] == [0, 64 * KIB, 64 * KIB]
    windows.take(1, 1000)
    windows.give(0, 5000)
    assert windows.room(1, 10**9) == 64 * KIB - 1000
    windows.take(3, 5000)  # a stream that is over counts for all together
    windows.give(1, 5000)
    assert windows.room(1, 10**9) == 64 * KIB - 1000
    assert windows.room(3, 10) == 0
    windows.begin_with(0)
    assert windows.room(1, 10**9) == 4000
    windows.take(1, 5000)
    assert windows.room(1, 10) == 0


def test_half_a_window_is_due_and_closed_streams_are_not() -> None:
    windows = ReceiveWindows()
    windows.add(1, 32 * KIB - 1)
    assert (windows.due(1), windows.due(3)) == (0, 0)
    windows.add(1, 1)
    assert (windows.due(1), windows.due(1)) == (32 * KIB, 0)
    windows.add(1, 32 * KIB)
    windows.forget(1)
    windows.forget(1)
    assert windows.due(1) == 0
