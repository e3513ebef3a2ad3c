"""Client side of a SPDY/3.1 connection: open streams, send data, receive data.

    open_stream(headers, buffer) -> Stream: accepted, write, finish, reset --> peer --> ReceiveBuffer.take

A `ReceiveBuffer` holds the received data of some streams in the order of arrival. Its size is bounded. While a buffer
is full, the connection reads nothing more, and TCP makes the peer wait. So streams that must not block each other need
connections of their own. (`windows.py` implements SPDY's own flow control, but no CRI runtime uses it.)

If the connection breaks, `take` first returns the data that has arrived, then raises `StreamsLost`. Go counterpart:
spdystream's Connection.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.streams.frames import (
    SETTINGS_INITIAL_WINDOW,
    BadFrame,
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
from podkeeper.streams.windows import CONNECTION, ReceiveWindows, SendWindows

REPLY_SECONDS: Final = 30.0
"""How long to wait until the runtime accepts a stream, as in the kubelet."""
BUFFER_BYTES: Final = 256 * 1024
FRAME_BYTES: Final = 32 * 1024
# Status codes of RST_STREAM in SPDY/3.
CANCEL: Final = 5
_REFUSED: Final = 3
_CLOSE_SECONDS: Final = 1.0


class StreamsLost(RuntimeUnavailable):
    """The connection broke, or the peer does not use SPDY."""


class StreamClosed(RuntimeRefused):
    """The stream is closed for writing."""


class ReceiveBuffer:
    """Received data of some streams, until a caller takes it."""

    def __init__(self, connection: "SpdyConnection") -> None:
        self._connection = connection
        self._pieces: deque[tuple[Stream, bytes]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self._bytes >= BUFFER_BYTES

    async def take(self) -> tuple["Stream", bytes]:
        """Return a stream and its next data. Empty data is the end of that stream.

        Raises StreamsLost after the last data of a lost connection.
        """
        while not self._pieces:
            if self._closed or self._connection.lost is not None:
                raise StreamsLost(str(self._connection.lost or "the buffer is closed"))
            self._changed.clear()
            await self._changed.wait()
        stream, data = self._pieces.popleft()
        self._bytes -= len(data)
        self._connection.was_taken(self, stream, len(data))
        return stream, data

    def put(self, stream: "Stream", data: bytes) -> None:
        self._pieces.append((stream, data))
        self._bytes += len(data)
        self._changed.set()

    def wake(self) -> None:
        """Make `take` check the connection again."""
        self._changed.set()

    def close(self) -> None:
        """Drop the data, and all data that its streams still receive."""
        self._pieces.clear()
        self._bytes = 0
        self._closed = True
        self._changed.set()
        self._connection.forget(self)


class Stream:
    """A stream that this side opened."""

    def __init__(
        self,
        connection: "SpdyConnection",
        number: int,
        buffer: ReceiveBuffer,
        *,
        finished: bool,
        accepted_with: "Stream | None",
    ) -> None:
        self.number = number
        self.accepted_with = accepted_with
        self.buffer = buffer
        self.finished = finished  # this side sends no more data
        self.ended = False  # the peer sends no more data
        self.reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection

    @property
    def is_over(self) -> bool:
        return self.finished and self.ended

    async def accepted(self) -> None:
        """Wait until the peer accepts the stream. Raises RuntimeRefused, StreamsLost."""
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                # Shield: a timeout here must not cancel the future that the connection completes.
                await asyncio.shield(self.reply)
        except TimeoutError:
            raise StreamsLost(
                f"cannot open a stream: the runtime did not accept it within {REPLY_SECONDS:g} s"
            ) from None

    async def write(self, data: bytes) -> None:
        """Send data. Return when more can be sent. Raises StreamClosed, StreamsLost."""
        view = memoryview(data)
        while view:
            sent = await self._connection.send_some(self, view[:FRAME_BYTES])
            view = view[sent:]

    def finish(self) -> None:
        """Send the end of the data. Idempotent."""
        if not self.finished:
            self.finished = True
            self._connection.send(Data(self.number, b"", fin=True))
            self._connection.drop_if_over(self)

    def reset(self) -> None:
        """Abort the stream in both directions. Idempotent."""
        if not self.is_over:
            self.finished = True
            self.end()
            self._connection.send(Reset(self.number, CANCEL))
            self._connection.drop_if_over(self)

    def end(self) -> None:
        """Record that the peer sends no more data."""
        if not self.ended:
            self.ended = True
            self.buffer.put(self, b"")


# A Protocol, not asyncio's streams: a runtime breaks the connection whenever a process exits with unread stdin, and a
# StreamReader then drops the data that it has received.
class SpdyConnection(asyncio.Protocol):
    """Streams over one transport. The caller that opens a connection closes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.lost: StreamsLost | None = None
        self._transport = transport
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._streams: dict[int, Stream] = {}
        self._buffers: set[ReceiveBuffer] = set()
        # All streams share one TCP connection, so one full buffer stops the reading for all.
        self._full: set[ReceiveBuffer] = set()
        # A client uses odd stream numbers.
        self._next = 1
        self._is_going_away = False
        self._send_windows = SendWindows()
        self._receive_windows = ReceiveWindows()
        self._may_send = asyncio.Event()  # set when a blocked `send_some` should try again
        self._is_congested = False
        self._disconnected = asyncio.Event()

    def buffer(self) -> ReceiveBuffer:
        made = ReceiveBuffer(self)
        self._buffers.add(made)
        return made

    def open_stream(
        self,
        headers: Mapping[str, str],
        buffer: ReceiveBuffer,
        *,
        finished: bool = False,
        accepted_with: Stream | None = None,
    ) -> Stream:
        """Open a stream. `finished`: this side will send no data on it. Raises StreamsLost.

        If data arrives on this stream, the peer has accepted both this stream and `accepted_with`. The explicit reply
        may be queued behind more data than a buffer can hold, so it might never be read.
        """
        if self._is_going_away:
            raise StreamsLost(f"cannot open a stream: {self.lost or 'the runtime is closing the connection'}")
        stream = Stream(self, self._next, buffer, finished=finished, accepted_with=accepted_with)
        self._next += 2
        self._streams[stream.number] = stream
        self._send_windows.open(stream.number)
        self.send(SynStream(stream.number, headers, finished))
        return stream

    async def close(self) -> None:
        """Reset all streams and close the transport."""
        for stream in tuple(self._streams.values()):
            stream.reset()
        if self.lost is None:
            self.send(GoAway(0))
        self._lose("the connection was closed")
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # do not wait for a runtime that reads nothing
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._disconnected.wait()
        except TimeoutError:
            self._transport.abort()

    # ---- sending ----

    def send(self, frame: Frame) -> None:
        """Send a small frame without waiting. Do nothing if the connection is lost."""
        if self.lost is None and not self._transport.is_closing():
            # Encode at the moment of sending: both sides share the state of the header compression, so no encoded frame
            # may be dropped or reordered.
            self._transport.write(self._encoder.encode(frame))

    async def send_some(self, stream: Stream, data: memoryview) -> int:
        """Send as much data as one frame may hold, and return its size. Waits until the peer accepts data."""
        while True:
            self._check_open(stream)
            # TCP alone limits the sender until the peer has shown that it uses windows (`windows.py`).
            if not self._is_congested and (count := self._send_windows.room(stream.number, len(data))) > 0:
                break
            self._may_send.clear()
            await self._may_send.wait()
        self._send_windows.take(stream.number, count)
        self.send(Data(stream.number, bytes(data[:count])))
        return count

    def pause_writing(self) -> None:
        self._is_congested = True

    def resume_writing(self) -> None:
        self._is_congested = False
        self._may_send.set()

    def _check_open(self, stream: Stream) -> None:
        if self.lost is not None:
            raise StreamsLost(str(self.lost))
        if stream.finished or stream.number not in self._streams:
            raise StreamClosed("cannot write: the stream is closed")

    # ---- receiving ----

    def was_taken(self, buffer: ReceiveBuffer, stream: Stream, count: int) -> None:
        """Read again, because a buffer has room."""
        if not buffer.is_full:
            self._empty(buffer)
        if stream.number in self._streams:
            self._give_back(stream.number, count)

    def forget(self, buffer: ReceiveBuffer) -> None:
        """Drop a closed buffer."""
        self._buffers.discard(buffer)
        self._empty(buffer)

    def _empty(self, buffer: ReceiveBuffer) -> None:
        if buffer in self._full:
            self._full.discard(buffer)
            if not self._full:
                self._transport.resume_reading()

    def _give_back(self, number: int, count: int) -> None:
        self._receive_windows.add(number, count)
        # Send window updates only to peers that use windows. spdystream ignores them and may close the connection
        # before it has read this frame. The kernel then resets the connection, and the data in transit to us is lost.
        if self._send_windows.in_use and (delta := self._receive_windows.due(number)):
            self.send(WindowUpdate(number, delta))

    def drop_if_over(self, stream: Stream) -> None:
        if stream.is_over:
            self._streams.pop(stream.number, None)
            self._send_windows.forget(stream.number)
            self._receive_windows.forget(stream.number)
            self._may_send.set()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._handle(frame)
        except BadFrame as error:
            self._lose(f"the runtime sent {error}")
            self._transport.abort()

    def eof_received(self) -> None:
        self._lose("the runtime closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection broke: {exc}" if exc is not None else "the runtime closed the connection")
        self._disconnected.set()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Data(number, data, fin) if (stream := self._streams.get(number)) is not None:
                self._give_back(CONNECTION, len(data))
                # The reply may be queued behind more data than a buffer holds. Without this, both sides would wait
                # forever.
                for taken in (stream, stream.accepted_with):
                    if taken is not None:
                        _settle(taken, None)
                if data and not stream.ended:
                    stream.buffer.put(stream, data)
                    self._pause_if_full(stream.buffer)
                self._end(stream, fin)
            case SynReply(number, _, fin) if (stream := self._streams.get(number)) is not None:
                _settle(stream, None)
                self._end(stream, fin)
            case Headers(number, _, fin) if (stream := self._streams.get(number)) is not None:
                self._end(stream, fin)
            case Reset(number, status) if (stream := self._streams.get(number)) is not None:
                _settle(stream, RuntimeRefused(f"cannot open a stream: the runtime refused it (status {status})"))
                stream.finished = True
                self._end(stream, True)
            case Data(_, data):
                self._give_back(CONNECTION, len(data))  # sent before the peer received our reset
            case SynReply() | Headers() | Reset():
                pass  # sent before the peer received our reset
            case Ping(number):
                if number % 2 == 0:  # odd numbers are replies to our own pings
                    self.send(frame)
            case WindowUpdate(number, delta):
                self._send_windows.give(number, delta)
                self._may_send.set()
            case SettingsFrame(values):
                for key, value in values:
                    if key == SETTINGS_INITIAL_WINDOW:
                        self._send_windows.begin_with(value)
                self._may_send.set()
            case GoAway(last_stream):
                self._go_away(last_stream)
            case SynStream(number):
                self.send(Reset(number, _REFUSED))  # a client does not accept streams from the server

    def _pause_if_full(self, buffer: ReceiveBuffer) -> None:
        if buffer.is_full:
            if not self._full:
                self._transport.pause_reading()
            self._full.add(buffer)

    def _end(self, stream: Stream, fin: bool) -> None:
        if fin:
            stream.end()
            self.drop_if_over(stream)

    def _go_away(self, last_stream: int) -> None:
        """Open no new streams. Accepted streams continue."""
        self._is_going_away = True
        for stream in tuple(self._streams.values()):
            # A stream that was accepted continues, whatever number the peer names.
            if stream.number > last_stream and not stream.reply.done():
                self._handle(Reset(stream.number, _REFUSED))

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = StreamsLost(why)
        self._is_going_away = True
        for stream in self._streams.values():
            _settle(stream, StreamsLost(f"cannot open a stream: {why}"))
        # The buffers stay: `take` returns what has arrived before it raises.
        self._streams.clear()
        self._may_send.set()
        for buffer in self._buffers:
            buffer.wake()


def _settle(stream: Stream, error: Exception | None) -> None:
    """Complete `accepted`, unless it is complete."""
    if stream.reply.done():
        return
    if error is None:
        stream.reply.set_result(None)
    else:
        stream.reply.set_exception(error)
        stream.reply.exception()  # asyncio logs exceptions that are never retrieved
