"""One SPDY/3.1 connection from the client's side: streams that begin here, and what comes on them.

    begin(headers, inbox) -> Stream: accepted, write, finish, reset -->  other side  --> Inbox.take -> (stream, bytes)

An `Inbox` gathers what comes on some streams in the order in which it came, and is bounded: when nobody takes from a
full one, nothing more is read from the connection, and TCP makes the other side wait. So streams that must not wait for
each other, of which one may be read slowly, go over connections of their own. (Windows, SPDY's own way to do this, are
spoken with who speaks them, see `windows.py`: no CRI runtime does.)

A connection that breaks is told, as `StreamsLost`, to everyone who waits, after all that had come before. That is why
this is a protocol and not a reader of asyncio's streams: those throw away what came when a connection breaks, and a
runtime breaks it whenever it has unread input of a process that ended.
The Go ancestor is spdystream's Connection.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.cri.streaming.frames import (
    SETTINGS_INITIAL_WINDOW,
    BadFrame,
    Data,
    Decoder,
    Encoder,
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
from podkeeper.runtimes.cri.streaming.windows import CONNECTION, ReceiveWindows, SendWindows

REPLY_SECONDS: Final = 30.0
"""As long as the reference waits for a stream to be taken."""
INBOX_BYTES: Final = 256 * 1024
FRAME_BYTES: Final = 32 * 1024
CANCEL: Final = 5
_REFUSED: Final = 3
_CLOSE_SECONDS: Final = 1.0


class StreamsLost(RuntimeUnavailable):
    """The connection broke, or the other side does not speak SPDY."""


class StreamClosed(RuntimeRefused):
    """Nothing can be written to this stream any more."""


class Inbox:
    """What came on some streams, until somebody takes it."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._pieces: deque[tuple[Stream, bytes]] = deque()
        self._bytes = 0
        self._closed = False
        self._news = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the connection must wait for somebody to take."""
        return self._bytes >= INBOX_BYTES

    async def take(self) -> tuple["Stream", bytes]:
        """The next piece; an empty one: this stream has ended. Raises StreamsLost once all has been taken."""
        while not self._pieces:
            if self._closed or self._connection.lost is not None:
                raise StreamsLost(str(self._connection.lost or "nobody listens any more"))
            self._news.clear()
            await self._news.wait()
        stream, data = self._pieces.popleft()
        self._bytes -= len(data)
        self._connection.was_taken(self, stream, len(data))
        return stream, data

    def put(self, stream: "Stream", data: bytes) -> None:
        """Something came."""
        self._pieces.append((stream, data))
        self._bytes += len(data)
        self._news.set()

    def wake(self) -> None:
        """Let who waits look again."""
        self._news.set()

    def close(self) -> None:
        """Nobody will take any more; what still comes on its streams, which should be over, is lost."""
        self._pieces.clear()
        self._bytes = 0
        self._closed = True
        self._news.set()
        self._connection.forget(self)


class Stream:
    """One stream that we began."""

    def __init__(
        self, connection: "Connection", number: int, inbox: Inbox, *, finished: bool, vouches_for: "Stream | None"
    ) -> None:
        self.number = number
        self.vouches_for = vouches_for
        self.inbox = inbox
        self.finished = finished  # by us
        self.ended = False  # by the other side
        self.reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection

    @property
    def is_over(self) -> bool:
        """Whether neither side says anything any more."""
        return self.finished and self.ended

    async def accepted(self) -> None:
        """Wait until the other side has taken this stream. Raises RuntimeRefused, StreamsLost."""
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                await asyncio.shield(self.reply)
        except TimeoutError:
            raise StreamsLost(f"cannot open a stream: the runtime did not take it in {REPLY_SECONDS:g} s") from None

    async def write(self, data: bytes) -> None:
        """Send bytes; returns when there is room for more. Raises StreamClosed, StreamsLost."""
        view = memoryview(data)
        while view:
            sent = await self._connection.send_some(self, view[:FRAME_BYTES])
            view = view[sent:]

    def finish(self) -> None:
        """Tell the other side that no more comes."""
        if not self.finished:
            self.finished = True
            self._connection.send(Data(self.number, b"", fin=True))
            self._connection.drop_if_over(self)

    def reset(self) -> None:
        """End the stream, whatever is still under way."""
        if not self.is_over:
            self.finished = True
            self.end()
            self._connection.send(Reset(self.number, CANCEL))
            self._connection.drop_if_over(self)

    def end(self) -> None:
        """The other side says nothing any more on this stream."""
        if not self.ended:
            self.ended = True
            self.inbox.put(self, b"")


class Connection(asyncio.Protocol):
    """Streams over one transport; whoever opens it closes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.lost: StreamsLost | None = None
        self._transport = transport
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._streams: dict[int, Stream] = {}
        self._inboxes: set[Inbox] = set()
        self._full: set[Inbox] = set()
        self._next = 1
        self._goes_away = False
        self._send_windows = SendWindows()
        self._receive_windows = ReceiveWindows()
        self._may_send = asyncio.Event()  # set whenever it is worth trying again
        self._is_congested = False
        self._disconnected = asyncio.Event()

    def inbox(self) -> Inbox:
        """A new place for what comes."""
        made = Inbox(self)
        self._inboxes.add(made)
        return made

    def begin(
        self, headers: Mapping[str, str], inbox: Inbox, *, finished: bool = False, vouches_for: Stream | None = None
    ) -> Stream:
        """Begin a stream; `finished`: we will write nothing on it. Raises StreamsLost.

        When something comes on it, it was taken, and so was the one that it `vouches_for`: a reply that says so may
        stand behind more than an inbox holds, and would never be read.
        """
        if self._goes_away:
            raise StreamsLost(f"cannot open a stream: {self.lost or 'the runtime is closing the connection'}")
        stream = Stream(self, self._next, inbox, finished=finished, vouches_for=vouches_for)
        self._next += 2
        self._streams[stream.number] = stream
        self._send_windows.open(stream.number)
        self.send(SynStream(stream.number, headers, finished))
        return stream

    async def close(self) -> None:
        """End all streams and hang up."""
        for stream in tuple(self._streams.values()):
            stream.reset()
        if self.lost is None:
            self.send(GoAway(0))
        self._lose("the connection was closed")
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # a runtime that takes nothing is not waited for
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._disconnected.wait()
        except TimeoutError:
            self._transport.abort()

    # ---- sending ----

    def send(self, frame: Frame) -> None:
        """Send a small frame without waiting; on a broken connection nothing happens."""
        if self.lost is None and not self._transport.is_closing():
            self._transport.write(self._encoder.encode(frame))

    async def send_some(self, stream: Stream, data: memoryview) -> int:
        """Send as much as may go in one frame; how much that was. Waits until something may."""
        while True:
            self._check_open(stream)
            if not self._is_congested and (count := self._send_windows.room(stream.number, len(data))) > 0:
                break
            self._may_send.clear()
            await self._may_send.wait()
        self._send_windows.take(stream.number, count)
        self.send(Data(stream.number, bytes(data[:count])))
        return count

    def pause_writing(self) -> None:
        """The other side reads too slowly."""
        self._is_congested = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._is_congested = False
        self._may_send.set()

    def _check_open(self, stream: Stream) -> None:
        if self.lost is not None:
            raise StreamsLost(str(self.lost))
        if stream.finished or stream.number not in self._streams:
            raise StreamClosed("cannot write: the stream is closed")

    # ---- receiving ----

    def was_taken(self, inbox: Inbox, stream: Stream, count: int) -> None:
        """Somebody took bytes from an inbox: there is room for more."""
        if not inbox.is_full:
            self._empty(inbox)
        if stream.number in self._streams:
            self._give_back(stream.number, count)

    def forget(self, inbox: Inbox) -> None:
        """Nobody takes from an inbox any more."""
        self._inboxes.discard(inbox)
        self._empty(inbox)

    def _empty(self, inbox: Inbox) -> None:
        if inbox in self._full:
            self._full.discard(inbox)
            if not self._full:
                self._transport.resume_reading()

    def _give_back(self, number: int, count: int) -> None:
        self._receive_windows.add(number, count)
        # Only to who understands: spdystream may close the connection before it has read this, and a close with
        # something unread makes the kernel throw away what was still on its way to us.
        if self._send_windows.are_spoken and (delta := self._receive_windows.due(number)):
            self.send(WindowUpdate(number, delta))

    def drop_if_over(self, stream: Stream) -> None:
        """Forget a stream that both sides have ended."""
        if stream.is_over:
            self._streams.pop(stream.number, None)
            self._send_windows.forget(stream.number)
            self._receive_windows.forget(stream.number)
            self._may_send.set()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        try:
            for frame in self._decoder.feed(data):
                self._handle(frame)
        except BadFrame as error:
            self._lose(f"the runtime sent {error}")
            self._transport.abort()

    def eof_received(self) -> None:
        """The other side has said all."""
        self._lose("the runtime closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._lose(f"the connection broke: {exc}" if exc is not None else "the runtime closed the connection")
        self._disconnected.set()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Data(number, data, fin) if (stream := self._streams.get(number)) is not None:
                self._give_back(CONNECTION, len(data))
                for taken in (stream, stream.vouches_for):
                    if taken is not None:
                        _settle(taken, None)
                if data and not stream.ended:
                    stream.inbox.put(stream, data)
                    self._look_at(stream.inbox)
                self._end(stream, fin)
            case SynReply(number, _, fin) if (stream := self._streams.get(number)) is not None:
                _settle(stream, None)
                self._end(stream, fin)
            case MoreHeaders(number, _, fin) if (stream := self._streams.get(number)) is not None:
                self._end(stream, fin)
            case Reset(number, status) if (stream := self._streams.get(number)) is not None:
                _settle(stream, RuntimeRefused(f"cannot open a stream: the runtime refused it (status {status})"))
                stream.finished = True
                self._end(stream, True)
            case Data(_, data):
                self._give_back(CONNECTION, len(data))  # its stream is over: it was under way when we ended it
            case SynReply() | MoreHeaders() | Reset():
                pass  # likewise
            case Ping(number):
                if number % 2 == 0:  # odd ones would be answers to pings of ours
                    self.send(frame)
            case WindowUpdate(number, delta):
                self._send_windows.give(number, delta)
                self._may_send.set()
            case Settings(values):
                for key, value in values:
                    if key == SETTINGS_INITIAL_WINDOW:
                        self._send_windows.begin_with(value)
                self._may_send.set()
            case GoAway(last_stream):
                self._go_away(last_stream)
            case SynStream(number):
                self.send(Reset(number, _REFUSED))  # nobody here would talk on it

    def _look_at(self, inbox: Inbox) -> None:
        """Read no more while somebody does not take."""
        if inbox.is_full:
            if not self._full:
                self._transport.pause_reading()
            self._full.add(inbox)

    def _end(self, stream: Stream, fin: bool) -> None:
        if fin:
            stream.end()
            self.drop_if_over(stream)

    def _go_away(self, last_stream: int) -> None:
        """No new streams; those that were taken go on to their end."""
        self._goes_away = True
        for stream in tuple(self._streams.values()):
            if stream.number > last_stream and not stream.reply.done():
                self._handle(Reset(stream.number, _REFUSED))

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = StreamsLost(why)
        self._goes_away = True
        for stream in self._streams.values():
            _settle(stream, StreamsLost(f"cannot open a stream: {why}"))
        self._streams.clear()
        self._may_send.set()
        for inbox in self._inboxes:
            inbox.wake()


def _settle(stream: Stream, error: Exception | None) -> None:
    """Tell who waits whether the stream was taken; the first word counts."""
    if stream.reply.done():
        return
    if error is None:
        stream.reply.set_result(None)
    else:
        stream.reply.set_exception(error)
        stream.reply.exception()  # whoever does not wait for it does not miss it
