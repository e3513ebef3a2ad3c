"""Reading logs: tail, since, limit, timestamps, streams, and invalid files."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.linux.logline import ZERO_TIME, LogLine, LogTime, UnixNanoseconds
from podkeeper.model.errors import BadInput
from podkeeper.rules.logs.reading import Chunk, LogOptions, advance, begin, tail_start
from tests.linux.cri_lines import cri_line
from tests.rules.logs.whole_files import read_log

AT_2000 = 946_684_800 * 10**9


def moment(second: int) -> LogTime:
    return LogTime(UnixNanoseconds(AT_2000 + second * 10**9))


def out(second: int, text: str, stream: str = "stdout") -> bytes:
    """Return a line of the log. Without a newline in the text, it is a piece of a line."""
    return cri_line(LogLine(moment(second), stream, text.encode()))


def err(second: int, text: str) -> bytes:
    return out(second, text, "stderr")


def shown(file: bytes, options: LogOptions) -> tuple[str, str]:
    """Return (stdout, stderr) of a whole file."""
    start = 0 if options.tail_lines is None else tail_start(len(file), reader(file), options.tail_lines)
    written = {"stdout": b"", "stderr": b""}
    for chunk in read_log(file[start:], options):
        written[chunk.stream] += chunk.data
    return written["stdout"].decode(), written["stderr"].decode()


def reader(file: bytes) -> Callable[[int, int], bytes]:
    """Return random access to a file. Reading outside of it fails."""

    def read_at(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(file)
        return file[offset : offset + length]

    return read_at


ALL = LogOptions()
STAMPED = LogOptions(timestamps=True)


def tail(lines: int, *, since: UnixNanoseconds = ZERO_TIME) -> LogOptions:
    return LogOptions(tail_lines=lines, since=since)


def limit(count: int, *, streams: frozenset[str] = ALL.streams, timestamps: bool = False) -> LogOptions:
    return LogOptions(limit_bytes=count, streams=streams, timestamps=timestamps)


THREE = out(0, "one\n") + err(1, "two\n") + out(2, "three\n")
PIECES = out(0, "a") + out(1, "b") + out(2, "c\n") + out(3, "d\n")

CASES = {
    "all of it, by stream": (THREE, ALL, ("one\nthree\n", "two\n")),
    "an empty file": (b"", ALL, ("", "")),
    "the last line": (THREE, tail(1), ("three\n", "")),
    "no line": (THREE, tail(0), ("", "")),
    "more lines than there are": (THREE, tail(9), ("one\nthree\n", "two\n")),
    "since is inclusive": (THREE, LogOptions(since=moment(1).unix_nanoseconds), ("three\n", "two\n")),
    "since applies to what the tail selects": (THREE, tail(2, since=moment(2).unix_nanoseconds), ("three\n", "")),
    "bytes are counted over both streams": (THREE, limit(6), ("one\n", "tw")),
    "no byte": (THREE, limit(0), ("", "")),
    "timestamps": (THREE, STAMPED, (f"{moment(0)} one\n{moment(2)} three\n", f"{moment(1)} two\n")),
    "timestamps count as bytes": (THREE, limit(2, timestamps=True), ("20", "")),
    "only one stream": (THREE, LogOptions(streams=frozenset({"stdout"})), ("one\nthree\n", "")),
    "an excluded stream does not count for the limit": (THREE, limit(9, streams=frozenset({"stderr"})), ("", "two\n")),
    "pieces are joined": (PIECES, ALL, ("abc\nd\n", "")),
    "only the first piece has a timestamp": (PIECES, STAMPED, (f"{moment(0)} abc\n{moment(3)} d\n", "")),
    "the tail counts pieces": (PIECES, tail(2), ("c\nd\n", "")),
    "an invalid line is skipped": (out(0, "a\n") + b"?\n" + out(1, "b\n"), ALL, ("a\nb\n", "")),
    "a last line without a newline is shown": (THREE[:-3], ALL, ("one\nthr", "two\n")),
    "but it does not count for the tail": (THREE[:-3], tail(1), ("", "two\n")),
}


@pytest.mark.parametrize("file, options, expected", CASES.values(), ids=CASES.keys())
def test_reading(file: bytes, options: LogOptions, expected: tuple[str, str]) -> None:
    assert shown(file, options) == expected


def docker(text: str, stream: str = "stdout") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": str(moment(0))}).encode() + b"\n"


def test_a_docker_log_is_recognised_by_its_first_line() -> None:
    assert shown(docker("a\n") + out(1, "cri\n") + docker("b\n", "stderr"), ALL) == ("a\n", "b\n")


def test_a_log_in_an_unknown_format_is_an_error() -> None:
    with pytest.raises(BadInput, match="unknown format of line b'garbage"):
        shown(b"garbage\n" + THREE, ALL)


def test_an_unknown_stream_is_an_error() -> None:
    chunks = read_log(docker("a\n") + docker("b\n", "stdin") + docker("c\n"), ALL)
    assert next(chunks) == Chunk("stdout", b"a\n")
    with pytest.raises(BadInput, match="stdin"):
        next(chunks)


def test_negative_options_are_rejected() -> None:
    with pytest.raises(BadInput, match=r"tailLines: .* greater than or equal to 0"):
        LogOptions(tail_lines=-1)
    with pytest.raises(BadInput, match=r"limitBytes: .* greater than or equal to 0"):
        LogOptions(limit_bytes=-1)


def test_a_follower_continues_after_the_tail() -> None:
    reading = begin(LogOptions(tail_lines=1, follow=True))
    for line in (out(0, "a\n"), out(1, "b\n")):
        assert reading is not None
        reading, chunk = advance(reading, line)
        assert chunk is not None
    assert reading is not None
    assert begin(LogOptions(tail_lines=0, follow=True)) is not None


# Laws.

texts = st.text("ab \n", max_size=6).map(lambda text: text.replace("\n", ""))
entries = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), texts, st.booleans()), max_size=12)
files = entries.map(
    lambda lines: b"".join(out(second, text + "\n" * ends, stream) for second, (stream, text, ends) in enumerate(lines))
)
options = st.builds(
    LogOptions,
    tail_lines=st.none() | st.integers(0, 14),
    limit_bytes=st.none() | st.integers(0, 200),
    timestamps=st.booleans(),
)


@given(files, st.integers(0, 14))
def test_the_tail_is_the_end_of_reading_everything(file: bytes, lines: int) -> None:
    everything = list(read_log(file, ALL))
    start = tail_start(len(file), reader(file), lines)
    assert list(read_log(file[start:], tail(lines))) == everything[max(0, len(everything) - lines) :]


@given(files, options)
def test_the_limit_of_bytes_is_never_exceeded_and_always_used(file: bytes, options: LogOptions) -> None:
    limited = "".join(shown(file, options))
    unlimited = "".join(shown(file, LogOptions(tail_lines=options.tail_lines, timestamps=options.timestamps)))
    limit = len(unlimited) if options.limit_bytes is None else options.limit_bytes
    assert len(limited) == min(limit, len(unlimited))


@given(entries)
def test_pieces_are_joined_to_the_text_of_each_stream(entries: list[tuple[str, str, bool]]) -> None:
    file = b"".join(out(second, text + "\n" * ends, stream) for second, (stream, text, ends) in enumerate(entries))
    expected = {"stdout": "", "stderr": ""}
    for stream, text, ends in entries:
        expected[stream] += text + "\n" * ends
    assert shown(file, LogOptions()) == (expected["stdout"], expected["stderr"])


@given(st.text("a\n", max_size=200), st.integers(0, 50), st.integers(1, 64))
def test_the_tail_begins_after_the_right_newline_whatever_the_block(text: str, lines: int, block_bytes: int) -> None:
    file = text.encode()
    ends = [index + 1 for index, byte in enumerate(file) if byte == ord("\n")]
    expected = 0 if len(ends) <= lines else ends[len(ends) - lines - 1]
    assert tail_start(len(file), reader(file), lines, block_bytes=block_bytes) == expected
