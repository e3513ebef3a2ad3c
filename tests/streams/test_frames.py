"""Laws of the SPDY codec: frames round-trip through any chunks, other bytes are refused."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from podkeeper.streams.headers import DICTIONARY, MAX_BLOCK_BYTES, BadHeaders, HeaderCompressor, HeaderDecompressor

STREAMS = st.integers(0, 2**31 - 1)
WORDS = st.integers(0, 2**32 - 1)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-:", min_size=1, max_size=20)
HEADERS = st.dictionaries(NAMES, st.text(max_size=40), max_size=6)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Data, STREAMS, st.binary(max_size=300), st.booleans()),
    st.builds(SynStream, STREAMS, HEADERS, st.booleans()),
    st.builds(SynReply, STREAMS, HEADERS, st.booleans()),
    st.builds(Headers, STREAMS, HEADERS, st.booleans()),
    st.builds(Reset, STREAMS, WORDS),
    st.builds(SettingsFrame, st.lists(st.tuples(st.integers(0, 2**24 - 1), WORDS), max_size=4).map(tuple)),
    st.builds(Ping, WORDS),
    st.builds(GoAway, STREAMS, WORDS),
    st.builds(WindowUpdate, STREAMS, STREAMS),
)


def encoded(frames: list[Frame]) -> bytes:
    encoder = Encoder()
    return b"".join(map(encoder.encode, frames))


@given(st.lists(FRAMES, max_size=12), st.data())
def test_frames_are_decoded_from_any_chunks(frames: list[Frame], data: st.DataObject) -> None:
    whole = encoded(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    decoder = Decoder()
    parts = (whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True))
    assert [frame for part in parts for frame in decoder.feed(part)] == frames


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_a_frame_is_decoded_with_its_last_byte(frames: list[Frame]) -> None:
    encoder, decoder = Encoder(), Decoder()
    for frame in frames:
        *first, last = (bytes([each]) for each in encoder.encode(frame))
        assert [decoded for byte in first for decoded in decoder.feed(byte)] == []
        assert list(decoder.feed(last)) == [frame]


@given(st.binary(max_size=2000))
def test_arbitrary_bytes_are_decoded_or_refused(noise: bytes) -> None:
    decoder, decoded = Decoder(), 0
    with contextlib.suppress(BadFrame):
        decoded = sum(len(frame.data) for frame in decoder.feed(noise) if isinstance(frame, Data))
    assert decoded <= len(noise)


def control(kind: int, fields: bytes, *, version: int = 3, length: int | None = None) -> bytes:
    return struct.pack("!HHI", 0x8000 | version, kind, len(fields) if length is None else length) + fields


REFUSED = {
    "another version": control(6, b"\0\0\0\2", version=2),
    "a ping without its number": control(6, b"\0\0"),
    "a reset that is too long": control(3, bytes(12)),
    "fewer settings than declared": control(4, struct.pack("!I", 7) + bytes(8)),
    "a reply without headers": control(2, struct.pack("!I", 1)),
    "a reply whose headers are no zlib": control(2, struct.pack("!I", 1) + b"something else"),
    "a control frame that is larger than any, before it is there": control(2, b"", length=2**24 - 1),
    "an HTTP response whose first byte looks like a control frame": b"\xc8TTP/1.1 200 OK\r\n",
}


@pytest.mark.parametrize("broken", REFUSED.values(), ids=REFUSED.keys())
def test_bytes_that_are_not_spdy_are_refused(broken: bytes) -> None:
    decoded = Decoder().feed(Encoder().encode(Ping(2)) + broken)
    assert next(decoded) == Ping(2)
    with pytest.raises(BadFrame):
        next(decoded)


def test_unknown_frame_types_are_ignored() -> None:
    after = Encoder().encode(Ping(2))
    assert list(Decoder().feed(control(10, b"credentials") + control(99, b"") + after)) == [Ping(2)]


@given(st.lists(HEADERS, max_size=8))
def test_header_blocks_round_trip(blocks: list[dict[str, str]]) -> None:
    squeezer, unsqueezer = HeaderCompressor(), HeaderDecompressor()
    assert [unsqueezer.decompress(squeezer.compress(block)) for block in blocks] == blocks


def test_names_are_lower_case_and_repeated_headers_compress_well() -> None:
    squeezer, unsqueezer = HeaderCompressor(), HeaderDecompressor()
    sizes = []
    for number in range(5):
        block = squeezer.compress({"streamType": "data", "port": "8080", "requestID": str(number)})
        assert set(unsqueezer.decompress(block)) == {"streamtype", "port", "requestid"}
        sizes.append(len(block))
    assert max(sizes[1:]) < sizes[0] / 2


def test_the_dictionary_is_the_one_of_the_specification() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_decompression_bomb_is_refused() -> None:
    squeezer, unsqueezer = HeaderCompressor(), HeaderDecompressor()
    with pytest.raises(BadHeaders, match="more than"):
        unsqueezer.decompress(squeezer.compress({"a": "x" * (MAX_BLOCK_BYTES + 1)}))


@given(st.binary(max_size=60))
def test_a_truncated_header_block_is_refused(plain: bytes) -> None:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    block = compressor.compress(struct.pack("!I", 9) + plain) + compressor.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(BadHeaders):
        HeaderDecompressor().decompress(block)


# Bytes on the wire, because a codec with the same error in both directions can still read its own output.

WIRE: dict[str, tuple[Frame, str]] = {
    "data": (Data(0x7FFFFFFF, b"abc"), "7fffffff 00000003 616263"),
    "the last data of a stream": (Data(1, b"abc", fin=True), "00000001 01000003 616263"),
    "no data": (Data(5, b""), "00000005 00000000"),
    "RST_STREAM": (Reset(0x7FFFFFFF, 0xFFFFFFFF), "80030003 00000008 7fffffff ffffffff"),
    "SETTINGS": (
        SettingsFrame(((SETTINGS_INITIAL_WINDOW, 65536), (0xFFFFFF, 0xFFFFFFFF))),
        "80030004 00000014 00000002 00000007 00010000 00ffffff ffffffff",
    ),
    "SETTINGS without values": (SettingsFrame(()), "80030004 00000004 00000000"),
    "PING": (Ping(0xFFFFFFFF), "80030006 00000004 ffffffff"),
    "GOAWAY": (GoAway(0x7FFFFFFF, 2), "80030007 00000008 7fffffff 00000002"),
    "WINDOW_UPDATE": (WindowUpdate(3, 0x7FFFFFFF), "80030009 00000008 00000003 7fffffff"),
}


@pytest.mark.parametrize("frame, wire", WIRE.values(), ids=WIRE.keys())
def test_frames_have_the_bytes_of_the_specification(frame: Frame, wire: str) -> None:
    assert Encoder().encode(frame).hex() == wire.replace(" ", "")
    assert list(Decoder().feed(bytes.fromhex(wire))) == [frame]


def header_block(**headers: str) -> bytes:
    """The first header block of a direction, built without the code under test."""
    plain = struct.pack("!I", len(headers))
    for text in (part.encode() for pair in headers.items() for part in pair):
        plain += struct.pack("!I", len(text)) + text
    return squeezed(plain)


def squeezed(plain: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    return compressor.compress(plain) + compressor.flush(zlib.Z_SYNC_FLUSH)


WITH_HEADERS = {
    "SYN_STREAM": (SynStream, 1, bytes(6)),
    "SYN_REPLY": (SynReply, 2, b""),
    "HEADERS": (Headers, 8, b""),
}


@pytest.mark.parametrize("kind, number, unused", WITH_HEADERS.values(), ids=WITH_HEADERS.keys())
@pytest.mark.parametrize("fin", [False, True])
def test_frames_with_headers_have_the_bytes_of_the_specification(
    kind: type[SynStream | SynReply | Headers], number: int, unused: bytes, fin: bool
) -> None:
    frame = kind(0x7FFFFFFF, {"streamtype": "data", "port": "80"}, fin)
    fields = b"\x7f\xff\xff\xff" + unused + header_block(streamtype="data", port="80")
    wire = struct.pack("!HHI", 0x8003, number, fin << 24 | len(fields)) + fields
    assert Encoder().encode(frame) == wire
    assert list(Decoder().feed(wire)) == [frame]
    assert kind(1, {}).fin is False


def test_the_reserved_bit_before_a_number_is_ignored() -> None:
    wire = (
        control(3, b"\x80\0\0\1\0\0\0\5")
        + control(7, b"\x80\0\0\2\0\0\0\0")
        + control(9, b"\x80\0\0\3\x80\0\0\7")
        + control(2, b"\x80\0\0\4" + header_block())
    )
    assert list(Decoder().feed(wire)) == [Reset(1, 5), GoAway(2), WindowUpdate(3, 7), SynReply(4, {})]


def test_the_flags_of_a_setting_are_ignored() -> None:
    assert list(Decoder().feed(control(4, struct.pack("!III", 1, 0xFF000007, 5)))) == [SettingsFrame(((7, 5),))]


def test_only_the_lowest_flag_ends_a_stream() -> None:
    assert list(Decoder().feed(b"\0\0\0\1\xfe\0\0\0")) == [Data(1, b"")]
    assert list(Decoder().feed(b"\0\0\0\1\xff\0\0\0")) == [Data(1, b"", fin=True)]


BROKEN_LENGTHS = {
    "a RST_STREAM of 7 bytes": control(3, bytes(7)),
    "a GOAWAY of 4 bytes": control(7, bytes(4)),
    "a WINDOW_UPDATE of 9 bytes": control(9, bytes(9)),
    "a PING of 5 bytes": control(6, bytes(5)),
    "SETTINGS with one value less than counted": control(4, struct.pack("!I", 2) + bytes(8)),
    "SETTINGS with one value more than counted": control(4, struct.pack("!I", 0) + bytes(8)),
    "SETTINGS without a count": control(4, bytes(3)),
    "a SYN_STREAM without a stream": control(1, bytes(3)),
}


@pytest.mark.parametrize("broken", BROKEN_LENGTHS.values(), ids=BROKEN_LENGTHS.keys())
def test_a_control_frame_of_a_wrong_length_is_refused(broken: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Decoder().feed(broken))


def test_a_control_frame_may_have_64_kib_and_not_a_byte_more() -> None:
    unknown = control(99, bytes(64 * 1024))
    assert list(Decoder().feed(unknown + control(6, b"\0\0\0\2"))) == [Ping(2)]
    assert list(Decoder().feed(control(99, b"", length=64 * 1024))) == []
    with pytest.raises(BadFrame, match="a control frame of 65537 bytes"):
        list(Decoder().feed(control(99, b"", length=64 * 1024 + 1)))


def test_a_data_frame_may_be_larger_than_any_control_frame() -> None:
    data = bytes(64 * 1024 + 1)
    assert list(Decoder().feed(Encoder().encode(Data(1, data)))) == [Data(1, data)]
    assert list(Decoder().feed(b"\0\0\0\1\0\xff\xff\xff")) == []


@pytest.mark.parametrize("version", [0, 2, 4, 0x7FFF])
def test_a_control_frame_of_another_version_names_it(version: int) -> None:
    with pytest.raises(BadFrame, match=f"of version {version}, expected 3"):
        list(Decoder().feed(control(6, bytes(4), version=version)))


def test_a_header_block_begins_with_the_checksum_of_the_dictionary_of_the_specification() -> None:
    assert HeaderCompressor().compress({})[:6].hex() == "78bbe3c6a7c2"
    block = header_block(version="HTTP/1.1", origin="Sat, Sun, GMT")
    assert HeaderDecompressor().decompress(block) == {"version": "HTTP/1.1", "origin": "Sat, Sun, GMT"}
    assert HeaderCompressor().compress({"Version": "HTTP/1.1", "origin": "Sat, Sun, GMT"}) == block
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


def test_a_header_block_may_have_64_kib() -> None:
    largest = 64 * 1024 - 4 - 4 - 1 - 4  # the rest after the count, two lengths and the name
    assert HeaderDecompressor().decompress(header_block(a="x" * largest)) == {"a": "x" * largest}
    with pytest.raises(BadHeaders, match="more than 65536 bytes"):
        HeaderDecompressor().decompress(header_block(a="x" * 80_000))


BROKEN_HEADERS = {
    "no count": b"\0\0\0",
    "a name that is one byte short": struct.pack("!II", 1, 2) + b"a",
    "a name without a value": struct.pack("!II", 1, 1) + b"a",
    "a value that is one byte short": struct.pack("!II", 1, 1) + b"a" + struct.pack("!I", 2) + b"v",
    "a name that is no text": struct.pack("!II", 1, 1) + b"\xff" + struct.pack("!I", 0),
}


@pytest.mark.parametrize("plain", BROKEN_HEADERS.values(), ids=BROKEN_HEADERS.keys())
def test_a_broken_header_block_is_refused(plain: bytes) -> None:
    with pytest.raises(BadHeaders, match="truncated or not UTF-8"):
        HeaderDecompressor().decompress(squeezed(plain))
    with pytest.raises(BadFrame, match="truncated or not UTF-8"):
        list(Decoder().feed(control(2, bytes(4) + squeezed(plain))))
