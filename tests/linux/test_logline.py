"""Parsing lines of a container log."""

import json
from calendar import monthrange
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.linux.logline import (
    ZERO_TIME,
    BadLogLine,
    LogLine,
    LogTime,
    UnixNanoseconds,
    parse_cri_line,
    parse_docker_line,
    parse_log_time,
)
from tests.linux.cri_lines import cri_line

AT_2000 = 946_684_800 * 10**9
TIME = b"2000-01-01T00:00:00.123456789Z"


def time(nanoseconds_after_2000: int = 123_456_789, offset_minutes: int = 0) -> LogTime:
    return LogTime(UnixNanoseconds(AT_2000 + nanoseconds_after_2000), offset_minutes)


TIMES = {
    "whole seconds": (b"2000-01-01T00:00:00Z", time(0), "2000-01-01T00:00:00.000000000Z"),
    "nanoseconds are kept": (TIME, time(), TIME.decode()),
    "more digits are ignored": (TIME[:-1] + b"999Z", time(), TIME.decode()),
    "a comma instead of a point": (b"2000-01-01T00:00:00,5Z", time(500_000_000), "2000-01-01T00:00:00.500000000Z"),
    "an offset is kept":
        (b"2000-01-01T02:00:00+02:00", time(0, 120), "2000-01-01T02:00:00.000000000+02:00"),
    "a negative offset is kept":
        (b"1999-12-31T18:30:00-05:30", time(0, -330), "1999-12-31T18:30:00.000000000-05:30"),
    "an offset of zero is UTC": (b"2000-01-01T00:00:00-00:00", time(0), "2000-01-01T00:00:00.000000000Z"),
    "the hour may have one digit": (b"2000-01-01T0:00:00Z", time(0), "2000-01-01T00:00:00.000000000Z"),
    "an offset may be a whole day":
        (b"2000-01-02T00:00:00+24:00", time(0, 1440), "2000-01-02T00:00:00.000000000+24:00"),
    "a leap day":
        (b"2000-02-29T00:00:00Z", time(59 * 86_400 * 10**9), "2000-02-29T00:00:00.000000000Z"),
    "the year 1": (b"0001-01-01T00:00:00Z", LogTime(ZERO_TIME), "0001-01-01T00:00:00.000000000Z"),
    "the year 0 is a leap year":
        (b"0000-02-29T00:00:00Z", LogTime(UnixNanoseconds(ZERO_TIME - 307 * 86_400 * 10**9)),
         "0000-02-29T00:00:00.000000000Z"),
}  # fmt: skip


@pytest.mark.parametrize("text, expected, written", TIMES.values(), ids=TIMES.keys())
def test_times(text: bytes, expected: LogTime, written: str) -> None:
    assert parse_log_time(text) == expected
    assert str(expected) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2000-01-01",
        "2000-01-01T00:00:00",
        "2000-01-01 00:00:00Z",
        "2000-01-01t00:00:00z",
        "2000-1-01T00:00:00Z",
        "2000-00-01T00:00:00Z",
        "2000-13-01T00:00:00Z",
        "2000-04-31T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2000-01-01T24:00:00Z",
        "2000-01-01T00:60:00Z",
        "2000-01-01T00:00:60Z",
        "2000-01-01T00:00:00.Z",
        "2000-01-01T00:00:00+2:00",
        "2000-01-01T00:00:00+25:00",
        "2000-01-01T00:00:00+00:61",
        "2000-01-01T00:00:00Zx",
        "２000-01-01T00:00:00Z",
    ],
)
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(BadLogLine):
        parse_log_time(text.encode())


YEARS = (1, 3, 4, 99, 100, 101, 399, 400, 401, 1599, 1600, 1899, 1900, 1970, 1999, 2000, 2023, 2024, 2100, 9999)


@pytest.mark.parametrize("year", YEARS)
def test_the_first_and_the_last_day_of_every_month(year: int) -> None:
    for month in range(1, 13):
        last = monthrange(year, month)[1]
        for day in (1, 2, last - 1, last):
            text = f"{year:04d}-{month:02d}-{day:02d}T23:59:58.000000001Z"
            moment = datetime(year, month, day, 23, 59, 58, tzinfo=UTC)
            seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
            assert parse_log_time(text.encode()) == LogTime(UnixNanoseconds(seconds * 10**9 + 1))
            assert str(LogTime(UnixNanoseconds(seconds * 10**9 + 1))) == text
        for day in (0, last + 1):
            with pytest.raises(BadLogLine, match="the day does not exist"):
                parse_log_time(f"{year:04d}-{month:02d}-{day:02d}T00:00:00Z".encode())


NO_TIMES = {
    "yesterday": "expected a time like 2016-10-06T00:17:09.669794202Z",
    "2000-00-01T00:00:00Z": "the day does not exist",
    "2000-13-01T00:00:00Z": "the day does not exist",
    "2000-01-01T24:00:00Z": "the time of day does not exist",
    "2000-01-01T00:60:00Z": "the time of day does not exist",
    "2000-01-01T00:00:60Z": "the time of day does not exist",
    "2000-01-01T00:00:00+25:00": "the UTC offset does not exist",
    "2000-01-01T00:00:00-00:61": "the UTC offset does not exist",
}


@pytest.mark.parametrize(("text", "hint"), NO_TIMES.items())
def test_the_error_of_an_invalid_time(text: str, hint: str) -> None:
    with pytest.raises(BadLogLine) as raised:
        parse_log_time(text.encode())
    message = f"cannot parse a log line: {text.encode()!r} is not a time: {hint}"
    assert str(raised.value) == message


def test_the_ends_of_a_day_and_of_offsets() -> None:
    assert str(parse_log_time(b"2000-01-01T23:59:59.999999999Z")) == "2000-01-01T23:59:59.999999999Z"
    assert parse_log_time(b"2000-01-01T12:34:56Z") == time((12 * 3600 + 34 * 60 + 56) * 10**9)
    assert parse_log_time(b"2000-01-02T01:00:00+24:60") == time(0, 1500)
    assert parse_log_time(b"1999-12-30T23:00:00-24:60") == time(0, -1500)
    assert str(time(0, 61)) == "2000-01-01T01:01:00.000000000+01:01"
    assert str(time(0, -61)) == "1999-12-31T22:59:00.000000000-01:01"


def test_years_before_the_year_0_are_written_with_a_sign() -> None:
    assert str(LogTime(UnixNanoseconds(ZERO_TIME - 366 * 86_400 * 10**9))) == "0000-01-01T00:00:00.000000000Z"
    assert str(LogTime(UnixNanoseconds(ZERO_TIME - 366 * 86_400 * 10**9 - 1))) == "-0001-12-31T23:59:59.999999999Z"


LINES = {
    "a complete line keeps its newline": (b"stdout F hello\n", "stdout", b"hello\n"),
    "a partial line loses it": (b"stderr P hello\n", "stderr", b"hello"),
    "a partial line loses only the newline": (b"stdout P hello\r\n", "stdout", b"hello\r"),
    "a truncated line has no newline": (b"stdout F hel", "stdout", b"hel"),
    "more tags are ignored": (b"stdout P:TAG1:TAG2 hello\n", "stdout", b"hello"),
    "an unknown tag means complete": (b"stdout X hello\n", "stdout", b"hello\n"),
    "an empty tag means complete": (b"stdout  hello\n", "stdout", b"hello\n"),
    "blanks belong to the content": (b"stdout F  a  b \n", "stdout", b" a  b \n"),
    "content may be empty": (b"stdout P \n", "stdout", b""),
    "content may be any bytes": (b"stdout F \xff\x00\n", "stdout", b"\xff\x00\n"),
}


@pytest.mark.parametrize("text, stream, content", LINES.values(), ids=LINES.keys())
def test_cri_lines(text: bytes, stream: str, content: bytes) -> None:
    assert parse_cri_line(TIME + b" " + text) == LogLine(time(), stream, content)


@pytest.mark.parametrize(
    "line, trouble",
    [
        (b"", "no timestamp"),
        (TIME, "no timestamp"),
        (b"yesterday stdout F hello", "not a time"),
        (TIME + b" stdout", "no stream"),
        (TIME + b" stdin F hello", "expected stdout or stderr"),
        (TIME + b"  F hello", "expected stdout or stderr"),
        (TIME + b" stdout F", "no tag"),
    ],
)
def test_an_invalid_cri_line_is_refused_with_the_reason(line: bytes, trouble: str) -> None:
    with pytest.raises(BadLogLine, match=trouble):
        parse_cri_line(line)


def docker(**members: object) -> bytes:
    return json.dumps(members).encode()


def test_a_docker_line() -> None:
    line = docker(log="hello\n", stream="stderr", time=TIME.decode())
    assert parse_docker_line(line + b"\n") == LogLine(time(), "stderr", b"hello\n")


DOCKER = {
    "names in any case": (docker(LOG="a", Stream="stdout", tiMe=TIME.decode()), LogLine(time(), "stdout", b"a")),
    "a long s is an s": (b'{"\\u017ftream":"stdout"}', LogLine(LogTime(ZERO_TIME), "stdout", b"")),
    "a ligature is not its two letters": (b'{"\\ufb06ream":"stdout"}', LogLine(LogTime(ZERO_TIME), "", b"")),
    "unknown members": (docker(log="a", attrs={"log": 1}), LogLine(LogTime(ZERO_TIME), "", b"a")),
    "nulls": (docker(log=None, stream=None, time=None), LogLine(LogTime(ZERO_TIME), "", b"")),
    "nothing but null": (b"null", LogLine(LogTime(ZERO_TIME), "", b"")),
    "the last of a repeated name wins": (b'{"log":"a","log":"b"}', LogLine(LogTime(ZERO_TIME), "", b"b")),
    "broken UTF-8 is replaced byte by byte":
        (b'{"log":"\xe6\x97\\n"}', LogLine(LogTime(ZERO_TIME), "", "\ufffd\ufffd\n".encode())),
    "half a surrogate pair is replaced": (b'{"log":"\\ud800"}', LogLine(LogTime(ZERO_TIME), "", "\ufffd".encode())),
    "a very long number elsewhere": (b'{"n":' + b"1" * 9999 + b"}", LogLine(LogTime(ZERO_TIME), "", b"")),
}  # fmt: skip


@pytest.mark.parametrize("line, expected", DOCKER.values(), ids=DOCKER.keys())
def test_docker_lines_are_parsed_as_leniently_as_go_does(line: bytes, expected: LogLine) -> None:
    assert parse_docker_line(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"1",
        b"[]",
        b'"log"',
        b'{"log":1}',
        b'{"stream":{}}',
        b'{"time":5}',
        b'{"time":""}',
        b'{"log":"a"} x',
        b'{"log":"a\tb"}',
        b'{"n":NaN}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_docker_line_is_refused(line: bytes) -> None:
    with pytest.raises(BadLogLine):
        parse_docker_line(line)


instants = st.integers(-62_135_000_000 * 10**9, 253_402_000_000 * 10**9).map(UnixNanoseconds)  # years 1 to 9999
contents = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
log_lines = st.builds(
    LogLine,
    st.builds(LogTime, instants),
    st.sampled_from(["stdout", "stderr"]),
    contents | contents.map(lambda c: c + b"\n"),
)


@given(log_lines)
def test_a_formatted_line_is_parsed(line: LogLine) -> None:
    written = cri_line(line)
    assert parse_cri_line(written) == line
    assert written.count(b"\n") == 1
    assert written.endswith(b"\n")


@given(instants, st.integers(-1439, 1439))
def test_a_formatted_time_is_parsed_with_any_offset(instant: UnixNanoseconds, offset_minutes: int) -> None:
    moment = LogTime(instant, offset_minutes)
    assert parse_log_time(str(moment).encode()) == moment


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_agree_with_the_standard_library(moment: datetime) -> None:
    read = parse_log_time(moment.isoformat(timespec="microseconds").encode())
    assert read.unix_nanoseconds == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    assert str(read) == moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").rjust(30, "0")
