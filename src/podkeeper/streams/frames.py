"""SPDY/3 frames: encode values to bytes and decode bytes to values.

    data      0 | stream (31 bits)              flags (8) | length (24) | data
    control   1 | version 3 (15) | type (16)    flags (8) | length (24) | fields

This module does no I/O. `Encoder` and `Decoder` hold the header compression of their direction. The decoder also holds
the bytes of an incomplete frame. Frames of unknown types are ignored, as the specification requires. Go counterpart:
spdystream's `spdy` package.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from podkeeper.streams.headers import BadHeaders, HeaderCompressor, HeaderDecompressor

VERSION: Final = 3
FIN: Final = 0x01
SETTINGS_INITIAL_WINDOW: Final = 7
# Control frames of these protocols have about 100 bytes. The limit keeps a wrong length from being buffered.
MAX_CONTROL_BYTES: Final = 64 * 1024
MAX_LENGTH: Final = 2**24 - 1
_STREAM_BITS: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct("!II")
_WORD: Final = struct.Struct("!I")
_TWO_WORDS: Final = _HEAD


class BadFrame(ValueError):
    """The received bytes are not SPDY/3. The connection cannot continue."""


class SynStream(msgspec.Struct, frozen=True):
    """SYN_STREAM: open a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class SynReply(msgspec.Struct, frozen=True):
    """SYN_REPLY: accept a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class Headers(msgspec.Struct, frozen=True):
    """HEADERS: more headers of an open stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


class Data(msgspec.Struct, frozen=True):
    """Data of a stream. `fin`: the last data in this direction."""

    stream: int
    data: bytes
    fin: bool = False


class Reset(msgspec.Struct, frozen=True):
    """RST_STREAM: end a stream in both directions."""

    stream: int
    status: int


class SettingsFrame(msgspec.Struct, frozen=True):
    """SETTINGS: pairs of ID and value."""

    values: tuple[tuple[int, int], ...]


class Ping(msgspec.Struct, frozen=True):
    """PING: the receiver sends it back."""

    id: int


class GoAway(msgspec.Struct, frozen=True):
    """GOAWAY: accept no more streams. Streams after `last_stream` were not processed."""

    last_stream: int
    status: int = 0


class WindowUpdate(msgspec.Struct, frozen=True):
    """WINDOW_UPDATE: allow `delta` more bytes on a stream, or with stream 0 on all streams together."""

    stream: int
    delta: int


Frame = SynStream | SynReply | Headers | Data | Reset | SettingsFrame | Ping | GoAway | WindowUpdate

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9


class Encoder:
    def __init__(self) -> None:
        self._compressor = HeaderCompressor()

    def encode(self, frame: Frame) -> bytes:
        """Return the bytes of a frame. Frames with headers must be sent in the order of encoding."""
        match frame:
            case Data(stream, data, fin):
                return _HEAD.pack(stream, _flags(fin) | len(data)) + data
            case SynStream(stream, headers, fin):
                # The zeros are associated stream, priority and slot, which are not used.
                return self._control(
                    _SYN_STREAM, _WORD.pack(stream) + bytes(6) + self._compressor.compress(headers), fin
                )
            case SynReply(stream, headers, fin):
                return self._control(_SYN_REPLY, _WORD.pack(stream) + self._compressor.compress(headers), fin)
            case Headers(stream, headers, fin):
                return self._control(_HEADERS, _WORD.pack(stream) + self._compressor.compress(headers), fin)
            case Reset(stream, status):
                return self._control(_RST_STREAM, _TWO_WORDS.pack(stream, status))
            case SettingsFrame(values):
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
    def __init__(self) -> None:
        self._decompressor = HeaderDecompressor()
        self._rest = bytearray()  # an incomplete frame

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that these bytes complete. Raises BadFrame after the frames before the error."""
        self._rest += data
        start, length = 0, len(self._rest)
        while length - start >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._rest, start)
            body, end = start + _HEAD.size, start + _HEAD.size + (second & MAX_LENGTH)
            # Check the head before the body has arrived, because an invalid length may announce 16 MiB.
            if first >> 31:
                _check_control(first, second)
            if end > length:
                break
            if (frame := self._frame(first, second >> 24, bytes(memoryview(self._rest)[body:end]))) is not None:
                yield frame
            start = end
        # Once per call and not per frame, because each deletion moves the rest of the buffer.
        del self._rest[:start]

    def _frame(self, first: int, flags: int, fields: bytes) -> Frame | None:
        fin = bool(flags & FIN)
        if not first >> 31:
            return Data(first, fields, fin)
        try:
            return self._control_frame(first & 0xFFFF, fin, fields)
        except struct.error:
            raise BadFrame(f"a malformed control frame of type {first & 0xFFFF} with {len(fields)} bytes") from None
        except BadHeaders as error:
            raise BadFrame(str(error)) from None

    def _control_frame(self, kind: int, fin: bool, fields: bytes) -> Frame | None:
        if kind == _SYN_STREAM:
            return SynStream(_stream(fields), self._decompressor.decompress(fields[10:]), fin)
        if kind == _SYN_REPLY:
            return SynReply(_stream(fields), self._decompressor.decompress(fields[4:]), fin)
        if kind == _HEADERS:
            return Headers(_stream(fields), self._decompressor.decompress(fields[4:]), fin)
        if kind == _RST_STREAM:
            return Reset(*_stream_and_number(fields))
        if kind == _SETTINGS:
            return SettingsFrame(_settings(fields))
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
    """Check the head of a control frame.

    Otherwise the decoder would wait for the bytes of an invalid length. Raises BadFrame.
    """
    if first >> 16 & 0x7FFF != VERSION:
        raise BadFrame(f"a control frame of version {first >> 16 & 0x7FFF}, expected {VERSION}")
    if second & MAX_LENGTH > MAX_CONTROL_BYTES:
        raise BadFrame(f"a control frame of {second & MAX_LENGTH} bytes, which exceeds the limit")


def _stream(fields: bytes) -> int:
    (number,) = _WORD.unpack_from(fields)
    return int(number) & _STREAM_BITS


def _stream_and_number(fields: bytes) -> tuple[int, int]:
    stream, number = _TWO_WORDS.unpack(fields)
    return stream & _STREAM_BITS, number


def _settings(fields: bytes) -> tuple[tuple[int, int], ...]:
    """Return pairs of ID and value, without the flags that request persistence."""
    (count,) = _WORD.unpack_from(fields)
    if len(fields) != _WORD.size + count * _TWO_WORDS.size:
        raise BadFrame(f"a settings frame whose size does not match its {count} settings")
    return tuple((key & 0xFFFFFF, value) for key, value in _TWO_WORDS.iter_unpack(fields[_WORD.size :]))
