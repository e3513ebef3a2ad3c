"""One line of a container's log file: read it, write it, cut long output into lines.

    2016-10-06T00:17:09.669794202Z stdout F a whole line
    2016-10-06T00:17:09.669794203Z stderr P a piece, to be continued
    {"log":"a line\\n","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}     (Docker's, only read)

Comes in: bytes. Goes out: a `LogLine` whose content is what the container wrote; it ends with a newline
exactly when the container ended its line there. So the tag needs no field, and
`parse_cri_line(format_cri_line(line)) == line`. Nanoseconds and the offset a time was written with are kept:
`datetime` has neither the digits nor the year 0 that Go reads.

The Go ancestor is k8s.io/cri-client/pkg/logs; the writer's is containerd's, which splits at 16 KiB.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType

from podkeeper.model.errors import BadInput, Problem

UnixNanoseconds = NewType("UnixNanoseconds", int)

STDOUT = "stdout"
STDERR = "stderr"
MAX_PIECE_BYTES = 16 * 1024
"""The longest content of one written line, its end not counted."""

ZERO_TIME = UnixNanoseconds(-62_135_596_800 * 10**9)
"""The first instant of the year 1: what Go takes a missing time for."""

_NANOSECONDS = 10**9
_DAY_SECONDS = 86_400
_TIMESTAMP = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)  # a one-digit hour and a comma are Go's leniency
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LogTime:
    """An instant, and the offset from UTC it is written with."""

    unix_nanoseconds: UnixNanoseconds
    offset_minutes: int = 0

    def __str__(self) -> str:
        """RFC 3339 with exactly nine digits of a second."""
        seconds, nanosecond = divmod(self.unix_nanoseconds + self.offset_minutes * 60 * _NANOSECONDS, _NANOSECONDS)
        days, second_of_day = divmod(seconds, _DAY_SECONDS)
        year, month, day = _date_of(days)
        hour, minute, second = second_of_day // 3600, second_of_day // 60 % 60, second_of_day % 60
        width = 4 if year >= 0 else 5
        date = f"{year:0{width}d}-{month:02d}-{day:02d}"
        return f"{date}T{hour:02d}:{minute:02d}:{second:02d}.{nanosecond:09d}{self._zone()}"

    def _zone(self) -> str:
        if self.offset_minutes == 0:
            return "Z"
        hours, minutes = divmod(abs(self.offset_minutes), 60)
        return f"{'-' if self.offset_minutes < 0 else '+'}{hours:02d}:{minutes:02d}"


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a container wrote at one time to one stream; without a newline at its end it goes on in the next."""

    time: LogTime
    stream: str
    content: bytes


def parse_log_time(text: bytes) -> LogTime:
    """Read an RFC 3339 time as Go does; digits beyond the nanosecond are cut."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise _unreadable(text, "right would be 2016-10-06T00:17:09.669794202Z")
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        raise _unreadable(text, "there is no such day")
    if hour > 23 or minute > 59 or second > 59:
        raise _unreadable(text, "there is no such time of day")
    nanosecond = int((found[7] or b"")[:9].ljust(9, b"0"))
    offset_minutes = 0
    if found[8] is not None:
        offset_hours, minutes_more = int(found[9]), int(found[10])
        if offset_hours > 24 or minutes_more > 60:  # so far Go is lenient
            raise _unreadable(text, "there is no such offset from UTC")
        offset_minutes = (offset_hours * 60 + minutes_more) * (-1 if found[8] == b"-" else 1)
    seconds = _days_before(year, month, day) * _DAY_SECONDS + (hour * 60 + minute - offset_minutes) * 60 + second
    return LogTime(UnixNanoseconds(seconds * _NANOSECONDS + nanosecond), offset_minutes)


def parse_cri_line(line: bytes) -> LogLine:
    """Read one line of the CRI format, with or without its newline."""
    parts = line.split(b" ", 3)
    if len(parts) < 2:
        raise _bad_line("it has no timestamp")
    time = parse_log_time(parts[0])
    if len(parts) < 3:
        raise _bad_line("it has no stream")
    stream = parts[1]
    if stream not in (b"stdout", b"stderr"):
        raise _bad_line(f"its stream is {stream!r}; right would be stdout or stderr")
    if len(parts) < 4:
        raise _bad_line("it has no tag")
    tag, content = parts[2].partition(b":")[0], parts[3]  # further tags after ':' are for later versions
    return LogLine(time, stream.decode(), content.removesuffix(b"\n") if tag == b"P" else content)


def parse_docker_line(line: bytes) -> LogLine:
    """Read one line of Docker's json-file format, as leniently as Go reads JSON."""
    log, stream, time = "", "", LogTime(ZERO_TIME)
    for key, value in _json_object(line):
        if value is None:
            continue
        name = next(
            (name for name in ("log", "stream", "time") if len(key) == len(name) and key.casefold() == name), ""
        )
        if name and not isinstance(value, str):
            raise _bad_line(f"its {name} is no text")
        match name, value:
            case "log", str():
                log = value
            case "stream", str():
                stream = value
            case "time", str():
                time = parse_log_time(value.encode())
    return LogLine(time, stream, log.encode())


def format_cri_line(line: LogLine) -> bytes:
    """Write one line of the CRI format; its content must hold no newline but at its end."""
    tag = "F" if line.content.endswith(b"\n") else "P"
    return f"{line.time} {line.stream} {tag} ".encode() + line.content.removesuffix(b"\n") + b"\n"


def cut_output(pending: bytes, more: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """The contents to write now, and what to keep until more comes.

    What is kept is never longer than a piece; at the end of the output it is a piece by itself, if not empty.
    """
    whole, newline, rest = (pending + more).rpartition(b"\n")
    pieces: list[bytes] = []
    if newline:
        for text in whole.split(b"\n"):
            *full, last = _cut(text)
            pieces += [*full, last + b"\n"]
    *full, last = _cut(rest)
    return (*pieces, *full), last


def _cut(text: bytes) -> Iterator[bytes]:
    """Pieces of the greatest length; the last one, perhaps empty, is what remains."""
    start = 0
    while len(text) - start > MAX_PIECE_BYTES:
        yield text[start : start + MAX_PIECE_BYTES]
        start += MAX_PIECE_BYTES
    yield text[start:]


class _JsonObject(tuple[tuple[str, object], ...]):
    """The members of a JSON object in their order, repeated ones too."""

    __slots__ = ()


def _json_object(line: bytes) -> _JsonObject:
    """The members of a line's object; `null` has none. Bytes that are no UTF-8 become U+FFFD, one each."""
    try:
        value = json.loads(
            line.decode("utf-8", "surrogateescape"),
            object_pairs_hook=_JsonObject,
            parse_int=float,  # numbers are not looked at, and a very long int would be refused
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise _bad_line(f"it is no JSON: {error}") from error
    if value is None:
        return _JsonObject()
    if not isinstance(value, _JsonObject):
        raise _bad_line("it is no JSON object")
    return _JsonObject(
        (_SURROGATE.sub("\ufffd", key), _SURROGATE.sub("\ufffd", member) if isinstance(member, str) else member)
        for key, member in value
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _days_before(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date of the Gregorian calendar, also before its year 1."""
    if month <= 2:
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


def _date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day of so many days after 1970-01-01: the reverse of `_days_before`."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153  # from March on
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return era * 400 + year_of_era + (month <= 2), month, day


def _days_in(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _unreadable(text: bytes, hint: str) -> BadInput:
    return _bad_line(f"{text!r} is no time: {hint}")


def _bad_line(trouble: str) -> BadInput:
    return BadInput(Problem(f"cannot read a log line: {trouble}"))
