"""Instants: text on the wire, aware UTC `datetime` inside.

`Time` has whole seconds and `MicroTime` exactly six digits when the reference writes them. A
`Time` is read as Go's parser reads RFC 3339, with its leniencies (a comma before the fraction, one
digit for the hour, offsets up to 24:60) and without others' (no lower-case `t` and `z`, no leap
second); a `MicroTime` must carry its six digits. The zero time of Go is None here and `null` on the
wire. Python knows the years 1 to 9999; Go's year 0 is refused.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from podkeeper.model.errors import BadInput, Problem, quoted

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_USUAL: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)  # what everybody writes
_MICRO_DIGITS: Final = 6
_GO_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> datetime:
    """Read a `Time`; what is finer than a microsecond is cut off."""
    return _parse(text, "2000-01-31T23:59:59Z")


def parse_micro_time(text: str) -> datetime:
    """Read a `MicroTime`."""
    match = _RFC3339.fullmatch(text)
    right = "2000-01-31T23:59:59.000000Z"
    if match is None or len(match[7] or "") != _MICRO_DIGITS:
        raise _unreadable(text, right)
    return _parse(text, right)


def instant(text: str | None) -> datetime | None:
    """Read a `Time` that may be absent, or be the zero that stands for absence."""
    moment = None if text is None else parse_time(text)
    return None if moment == _GO_ZERO else moment


def format_time(moment: datetime) -> str:
    """Write a `Time`: UTC, the fraction of a second cut off."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def format_micro_time(moment: datetime) -> str:
    """Write a `MicroTime`: UTC, always six digits."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def _parse(text: str, right: str) -> datetime:
    if _USUAL.fullmatch(text) is not None:
        try:
            return datetime.fromisoformat(text)  # the same, several times as fast
        except ValueError as error:
            raise _unreadable(text, right) from error
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise _unreadable(text, right)
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    microsecond = int((match[7] or "")[:_MICRO_DIGITS].ljust(_MICRO_DIGITS, "0"))
    east_hours, east_minutes = int(match[9] or 0), int(match[10] or 0)
    if east_hours > 24 or east_minutes > 60:
        raise _unreadable(text, right)
    east = timedelta(hours=east_hours, minutes=east_minutes)
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond, UTC)
        return local + east if match[8] == "-" else local - east
    except (ValueError, OverflowError) as error:
        raise _unreadable(text, right) from error


def _unreadable(text: str, right: str) -> BadInput:
    return BadInput(Problem(f"Invalid value: {quoted(text)}: must be a time in RFC 3339 format (e.g. {right})"))
