"""SPDY/3 frames: bytes in, values out, and back.

    data      0 | stream (31 bits)              flags (8) | length (24) | data
    control   1 | version 3 (15) | type (16)    flags (8) | length (24) | fields

Pure: `Encoder` and `Decoder` hold no more than the header compression of their direction and, the latter, bytes of a
frame that is not complete yet. Frames of a type that is not known are passed over, as the specification demands. The
Go ancestor is spdystream's `spdy` package.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from podkeeper.runtimes.cri.streaming.headers import BadHeaders, Squeezer, Unsqueezer

VERSION: Final = 3
FIN: Final = 0x01
SETTINGS_INITIAL_WINDOW: Final = 7
MAX_CONTROL_BYTES: Final = 64 * 1024
MAX_LENGTH: Final = 2**24 - 1
_STREAM_BITS: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct("!II")
_WORD: Final = struct.Struct("!I")
_TWO_WORDS: Final = _HEAD


class BadFrame(ValueError):
    """Bytes that are no SPDY: nothing that follows can be trusted."""


class SynStream(msgspec.Struct, frozen=True):
    """A stream begins."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class SynReply(msgspec.Struct, frozen=True):
    """The other side takes a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class MoreHeaders(msgspec.Struct, frozen=True):
    """HEADERS: later news of a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class Data(msgspec.Struct, frozen=True):
    """Bytes of a stream; `fin`: the last ones in this direction."""

    stream: int
    data: bytes
    fin: bool = False


class Reset(msgspec.Struct, frozen=True):
    """RST_STREAM: a stream is over, in both directions."""

    stream: int
    status: int


class Settings(msgspec.Struct, frozen=True):
    """What the other side wants: pairs of id and value."""

    values: tuple[tuple[int, int], ...]


class Ping(msgspec.Struct, frozen=True):
    """Are you there? Who hears it says it back."""

    id: int


class GoAway(msgspec.Struct, frozen=True):
    """No more streams; those after `last_stream` were never looked at."""

    last_stream: int
    status: int = 0


class WindowUpdate(msgspec.Struct, frozen=True):
    """So many more bytes may be sent on a stream, or (stream 0) on all together."""

    stream: int
    delta: int


Frame = SynStream | SynReply | MoreHeaders | Data | Reset | Settings | Ping | GoAway | WindowUpdate

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9


class Encoder:
    """Frames of one direction, as bytes."""

    def __init__(self) -> None:
        self._squeezer = Squeezer()

    def encode(self, frame: Frame) -> bytes:
        """The bytes of a frame; frames with headers must be sent in the order in which they were encoded."""
        match frame:
            case Data(stream, data, fin):
                return _HEAD.pack(stream, _flags(fin) | len(data)) + data
            case SynStream(stream, headers, fin):
                # Associated stream, priority and slot: nobody uses them.
                return self._control(_SYN_STREAM, _WORD.pack(stream) + bytes(6) + self._squeezer.squeeze(headers), fin)
            case SynReply(stream, headers, fin):
                return self._control(_SYN_REPLY, _WORD.pack(stream) + self._squeezer.squeeze(headers), fin)
            case MoreHeaders(stream, headers, fin):
                return self._control(_HEADERS, _WORD.pack(stream) + self._squeezer.squeeze(headers), fin)
            case Reset(stream, status):
                return self._control(_RST_STREAM, _TWO_WORDS.pack(stream, status))
            case Settings(values):
                pairs = b"".join(_TWO_WORDS.pack(*pair) for pair in values)
                return self._control(_SETTINGS, _WORD.pack(len(values)) + pairs)
            case Ping(number):
                return self._control(_PING, _WORD.pack(number))
            case GoAway(last_stream, status):
                return self._control(_GOAWAY, _TWO_WORDS.pack(last_stream, status))
            case WindowUpdate(stream, delta):
                return self._control(_WINDOW_UPDATE, _TWO_WORDS.pack(stream, delta))

    def _control(self, kind: int, fields: bytes, fin: bool = False) -> bytes:
        return _HEAD.pack(0x80000000 | VERSION << 16 | kind, _flags(fin) | len(fields)) + fields


class Decoder:
    """Bytes of one direction, as frames."""

    def __init__(self) -> None:
        self._unsqueezer = Unsqueezer()
        self._rest = bytearray()  # of a frame that is not complete

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Raises BadFrame, after those that came before."""
        self._rest += data
        start, length = 0, len(self._rest)
        while length - start >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._rest, start)
            body, end = start + _HEAD.size, start + _HEAD.size + (second & MAX_LENGTH)
            if first >> 31:
                _check_control(first, second)
            if end > length:
                break
            if (frame := self._frame(first, second >> 24, bytes(memoryview(self._rest)[body:end]))) is not None:
                yield frame
            start = end
        del self._rest[:start]

    def _frame(self, first: int, flags: int, fields: bytes) -> Frame | None:
        fin = bool(flags & FIN)
        if not first >> 31:
            return Data(first, fields, fin)
        try:
            return self._control_frame(first & 0xFFFF, fin, fields)
        except struct.error:
            raise BadFrame(f"a control frame of type {first & 0xFFFF} with {len(fields)} bytes") from None
        except BadHeaders as error:
            raise BadFrame(str(error)) from None

    def _control_frame(self, kind: int, fin: bool, fields: bytes) -> Frame | None:
        if kind == _SYN_STREAM:
            return SynStream(_stream(fields), self._unsqueezer.unsqueeze(fields[10:]), fin)
        if kind == _SYN_REPLY:
            return SynReply(_stream(fields), self._unsqueezer.unsqueeze(fields[4:]), fin)
        if kind == _HEADERS:
            return MoreHeaders(_stream(fields), self._unsqueezer.unsqueeze(fields[4:]), fin)
        if kind == _RST_STREAM:
            return Reset(*_stream_and_number(fields))
        if kind == _SETTINGS:
            return Settings(_settings(fields))
        if kind == _PING:
            return Ping(_WORD.unpack(fields)[0])
        if kind == _GOAWAY:
            return GoAway(*_stream_and_number(fields))
        if kind == _WINDOW_UPDATE:
            stream, delta = _stream_and_number(fields)
            return WindowUpdate(stream, delta & _STREAM_BITS)
        return None


def _flags(fin: bool) -> int:
    return FIN << 24 if fin else 0


def _check_control(first: int, second: int) -> None:
    """Refuse a control frame by its head: what is no SPDY must not be waited for."""
    if first >> 16 & 0x7FFF != VERSION:
        raise BadFrame(f"a control frame of version {first >> 16 & 0x7FFF}, not {VERSION}")
    if second & MAX_LENGTH > MAX_CONTROL_BYTES:
        raise BadFrame(f"a control frame of {second & MAX_LENGTH} bytes")


def _stream(fields: bytes) -> int:
    (number,) = _WORD.unpack_from(fields)
    return int(number) & _STREAM_BITS


def _stream_and_number(fields: bytes) -> tuple[int, int]:
    stream, number = _TWO_WORDS.unpack(fields)
    return stream & _STREAM_BITS, number


def _settings(fields: bytes) -> tuple[tuple[int, int], ...]:
    """Pairs of id and value; the flags above the id say what to remember for another time, and are left out."""
    (count,) = _WORD.unpack_from(fields)
    if len(fields) != _WORD.size + count * _TWO_WORDS.size:
        raise BadFrame(f"settings that are not as many as they say ({count})")
    return tuple((key & 0xFFFFFF, value) for key, value in _TWO_WORDS.iter_unpack(fields[_WORD.size :]))
