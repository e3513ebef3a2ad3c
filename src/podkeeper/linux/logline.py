"""Parse the lines of a container log: CRI format and Docker's json-file.

    2016-10-06T00:17:09.669794202Z stdout F a complete line
    2016-10-06T00:17:09.669794203Z stderr P a part of a line
    {"log":"a line\\n","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}

Input: bytes. Output: a `LogLine` with the bytes that the container wrote. The content ends with a newline if the line
is complete (tag F), so `LogLine` has no field for the tag. `LogTime` keeps the nanoseconds and the offset of the text,
because `datetime` has neither nanoseconds nor the year 0 that Go accepts. `container_log` writes these files. Kubelet
counterpart: k8s.io/cri-client/pkg/logs.
"""

import json
import re
from dataclasses import dataclass
from typing import NewType

UnixNanoseconds = NewType("UnixNanoseconds", int)


class BadLogLine(ValueError):
    """A log line or a time in it cannot be parsed."""


STDOUT = "stdout"
STDERR = "stderr"
ZERO_TIME = UnixNanoseconds(-62_135_596_800 * 10**9)
"""The first instant of the year 1, Go's zero time."""

_NANOSECONDS = 10**9
_DAY_SECONDS = 86_400
_TIMESTAMP = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)  # Go accepts a one-digit hour and a comma
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LogTime:
    """An instant, and the UTC offset that it is written with."""

    unix_nanoseconds: UnixNanoseconds
    offset_minutes: int = 0

    def __str__(self) -> str:
        """Return RFC 3339 with exactly nine fractional digits."""
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
    """Output of a container at one time. Without a newline at its end, the line continues in the next `LogLine`."""

    time: LogTime
    stream: str
    content: bytes


def parse_log_time(text: bytes) -> LogTime:
    """Parse an RFC 3339 time as Go does. Digits after the nanosecond are ignored. Raises BadLogLine."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise _unreadable(text, "expected a time like 2016-10-06T00:17:09.669794202Z")
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        raise _unreadable(text, "the day does not exist")
    if hour > 23 or minute > 59 or second > 59:
        raise _unreadable(text, "the time of day does not exist")
    nanosecond = int((found[7] or b"")[:9].ljust(9, b"0"))
    offset_minutes = 0
    if found[8] is not None:
        offset_hours, minutes_more = int(found[9]), int(found[10])
        if offset_hours > 24 or minutes_more > 60:  # Go accepts 24 hours and 60 minutes
            raise _unreadable(text, "the UTC offset does not exist")
        offset_minutes = (offset_hours * 60 + minutes_more) * (-1 if found[8] == b"-" else 1)
    seconds = _days_before(year, month, day) * _DAY_SECONDS + (hour * 60 + minute - offset_minutes) * 60 + second
    return LogTime(UnixNanoseconds(seconds * _NANOSECONDS + nanosecond), offset_minutes)


def parse_cri_line(line: bytes) -> LogLine:
    """Parse a line in the CRI format, with or without its newline. Raises BadLogLine."""
    parts = line.split(b" ", 3)
    if len(parts) < 2:
        raise _bad_line("it has no timestamp")
    time = parse_log_time(parts[0])
    if len(parts) < 3:
        raise _bad_line("it has no stream")
    stream = parts[1]
    if stream not in (b"stdout", b"stderr"):
        raise _bad_line(f"its stream is {stream!r}, expected stdout or stderr")
    if len(parts) < 4:
        raise _bad_line("it has no tag")
    tag, content = parts[2].partition(b":")[0], parts[3]  # the CRI reserves more tags after ':' for later versions
    return LogLine(time, stream.decode(), content.removesuffix(b"\n") if tag == b"P" else content)


def parse_docker_line(line: bytes) -> LogLine:
    """Parse a line in Docker's json-file format, as leniently as Go parses JSON. Raises BadLogLine."""
    log, stream, time = "", "", LogTime(ZERO_TIME)
    for key, value in _json_object(line):
        if value is None:
            continue
        name = next(
            (name for name in ("log", "stream", "time") if len(key) == len(name) and key.casefold() == name), ""
        )
        if name and not isinstance(value, str):
            raise _bad_line(f"its {name} is not a string")
        match name, value:
            case "log", str():
                log = value
            case "stream", str():
                stream = value
            case "time", str():
                time = parse_log_time(value.encode())
    return LogLine(time, stream, log.encode())


class _JsonObject(tuple[tuple[str, object], ...]):
    """The members of a JSON object in order, including repeated keys."""

    __slots__ = ()


def _json_object(line: bytes) -> _JsonObject:
    """Return the members of an object. `null` has none. Each byte that is not UTF-8 becomes U+FFFD."""
    try:
        value = json.loads(
            line.decode("utf-8", "surrogateescape"),
            object_pairs_hook=_JsonObject,
            parse_int=float,  # numbers are ignored, and int() refuses very long ones
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise _bad_line(f"it is not JSON: {error}") from error
    if value is None:
        return _JsonObject()
    if not isinstance(value, _JsonObject):
        raise _bad_line("it is not a JSON object")
    return _JsonObject(
        (_SURROGATE.sub("\ufffd", key), _SURROGATE.sub("\ufffd", member) if isinstance(member, str) else member)
        for key, member in value
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _days_before(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to a date of the Gregorian calendar, including dates before the year 1."""
    if month <= 2:
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


def _date_of(days: int) -> tuple[int, int, int]:
    """Return the date that many days after 1970-01-01. Inverse of `_days_before`."""
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


def _unreadable(text: bytes, hint: str) -> BadLogLine:
    return _bad_line(f"{text!r} is not a time: {hint}")


def _bad_line(reason: str) -> BadLogLine:
    return BadLogLine(f"cannot parse a log line: {reason}")
