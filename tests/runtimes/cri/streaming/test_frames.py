"""Laws of the SPDY codec: whatever is encoded is decoded, however the bytes are cut; what is no SPDY is refused."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.runtimes.cri.streaming.frames import (
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
from podkeeper.runtimes.cri.streaming.headers import DICTIONARY, MAX_BLOCK_BYTES, BadHeaders, Squeezer, Unsqueezer

STREAMS = st.integers(0, 2**31 - 1)
WORDS = st.integers(0, 2**32 - 1)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-:", min_size=1, max_size=20)
HEADERS = st.dictionaries(NAMES, st.text(max_size=40), max_size=6)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Data, STREAMS, st.binary(max_size=300), st.booleans()),
    st.builds(SynStream, STREAMS, HEADERS, st.booleans()),
    st.builds(SynReply, STREAMS, HEADERS, st.booleans()),
    st.builds(MoreHeaders, STREAMS, HEADERS, st.booleans()),
    st.builds(Reset, STREAMS, WORDS),
    st.builds(Settings, st.lists(st.tuples(st.integers(0, 2**24 - 1), WORDS), max_size=4).map(tuple)),
    st.builds(Ping, WORDS),
    st.builds(GoAway, STREAMS, WORDS),
    st.builds(WindowUpdate, STREAMS, STREAMS),
)


def encoded(frames: list[Frame]) -> bytes:
    encoder = Encoder()
    return b"".join(map(encoder.encode, frames))


@given(st.lists(FRAMES, max_size=12), st.data())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(frames: list[Frame], data: st.DataObject) -> None:
    whole = encoded(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    decoder = Decoder()
    parts = (whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True))
    assert [frame for part in parts for frame in decoder.feed(part)] == frames


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_frames_that_come_byte_by_byte_are_told_with_their_last_byte(frames: list[Frame]) -> None:
    encoder, decoder = Encoder(), Decoder()
    for frame in frames:
        *first, last = (bytes([each]) for each in encoder.encode(frame))
        assert [told for byte in first for told in decoder.feed(byte)] == []
        assert list(decoder.feed(last)) == [frame]


@given(st.binary(max_size=2000))
def test_bytes_of_any_kind_are_frames_or_refused(noise: bytes) -> None:
    decoder, told = Decoder(), 0
    with contextlib.suppress(BadFrame):
        told = sum(len(frame.data) for frame in decoder.feed(noise) if isinstance(frame, Data))
    assert told <= len(noise)


def control(kind: int, fields: bytes, *, version: int = 3, length: int | None = None) -> bytes:
    return struct.pack("!HHI", 0x8000 | version, kind, len(fields) if length is None else length) + fields


REFUSED = {
    "another version": control(6, b"\0\0\0\2", version=2),
    "a ping without its number": control(6, b"\0\0"),
    "a reset that is too long": control(3, bytes(12)),
    "settings that are fewer than they say": control(4, struct.pack("!I", 7) + bytes(8)),
    "a reply without headers": control(2, struct.pack("!I", 1)),
    "a reply whose headers are no zlib": control(2, struct.pack("!I", 1) + b"something else"),
    "a control frame that is larger than any, before it is there": control(2, b"", length=2**24 - 1),
    "an answer in HTTP, of which the first byte says that it is a control frame": b"\xc8TTP/1.1 200 OK\r\n",
}


@pytest.mark.parametrize("broken", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_spdy_is_refused(broken: bytes) -> None:
    told = Decoder().feed(Encoder().encode(Ping(2)) + broken)
    assert next(told) == Ping(2)
    with pytest.raises(BadFrame):
        next(told)


def test_frames_of_a_kind_that_is_not_known_are_passed_over() -> None:
    after = Encoder().encode(Ping(2))
    assert list(Decoder().feed(control(10, b"credentials") + control(99, b"") + after)) == [Ping(2)]


@given(st.lists(HEADERS, max_size=8))
def test_header_blocks_come_out_as_they_went_in(blocks: list[dict[str, str]]) -> None:
    squeezer, unsqueezer = Squeezer(), Unsqueezer()
    assert [unsqueezer.unsqueeze(squeezer.squeeze(block)) for block in blocks] == blocks


def test_names_travel_in_lower_case_and_what_was_said_before_makes_later_blocks_short() -> None:
    squeezer, unsqueezer = Squeezer(), Unsqueezer()
    sizes = []
    for number in range(5):
        block = squeezer.squeeze({"streamType": "data", "port": "8080", "requestID": str(number)})
        assert set(unsqueezer.unsqueeze(block)) == {"streamtype", "port", "requestid"}
        sizes.append(len(block))
    assert max(sizes[1:]) < sizes[0] / 2


def test_the_dictionary_is_the_one_of_the_specification() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_header_block_that_grows_without_end_is_refused() -> None:
    squeezer, unsqueezer = Squeezer(), Unsqueezer()
    with pytest.raises(BadHeaders, match="more than"):
        unsqueezer.unsqueeze(squeezer.squeeze({"a": "x" * (MAX_BLOCK_BYTES + 1)}))


@given(st.binary(max_size=60))
def test_a_header_block_that_breaks_off_is_refused(plain: bytes) -> None:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    block = compressor.compress(struct.pack("!I", 9) + plain) + compressor.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(BadHeaders):
        Unsqueezer().unsqueeze(block)
