"""Times: RFC 3339 text on the wire, aware UTC `datetime` in Python.

The kubelet writes `Time` with whole seconds and `MicroTime` with exactly six digits. A `Time` is parsed as Go parses
RFC 3339. Go accepts a comma before the fraction, one digit for the hour, and offsets up to 24:60. It rejects lower-case
`t` and `z`, and leap seconds. A `MicroTime` must have six digits. Go's zero time is None here and `null` on the wire.
Python supports the years 1 to 9999, so Go's year 0 is rejected.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from podkeeper.model.errors import BadInput, Problem, quoted

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_COMMON_FORM: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)  # the common form
_MICRO_DIGITS: Final = 6
_GO_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> datetime:
    """Parse a `Time`. Digits below a microsecond are cut off."""
    return _parse(text, "2000-01-31T23:59:59Z")


def parse_micro_time(text: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    example = "2000-01-31T23:59:59.000000Z"
    if match is None or len(match[7] or "") != _MICRO_DIGITS:
        raise _invalid(text, example)
    return _parse(text, example)


def instant(text: str | None) -> datetime | None:
    """Parse a `Time` that may be absent, or the zero time, which means absent."""
    moment = None if text is None else parse_time(text)
    return None if moment == _GO_ZERO else moment


def format_time(moment: datetime) -> str:
    """Format a `Time`: UTC, without the fraction of a second."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def format_micro_time(moment: datetime) -> str:
    """Format a `MicroTime`: UTC, always six digits."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def _parse(text: str, example: str) -> datetime:
    if _COMMON_FORM.fullmatch(text) is not None:
        try:
            return datetime.fromisoformat(text)  # the same result, several times faster
        except ValueError as error:
            raise _invalid(text, example) from error
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise _invalid(text, example)
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    microsecond = int((match[7] or "")[:_MICRO_DIGITS].ljust(_MICRO_DIGITS, "0"))
    east_hours, east_minutes = int(match[9] or 0), int(match[10] or 0)
    if east_hours > 24 or east_minutes > 60:
        raise _invalid(text, example)
    east = timedelta(hours=east_hours, minutes=east_minutes)
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond, UTC)
        return local + east if match[8] == "-" else local - east
    except (ValueError, OverflowError) as error:
        raise _invalid(text, example) from error


def _invalid(text: str, example: str) -> BadInput:
    return BadInput(Problem(f"Invalid value: {quoted(text)}: must be a time in RFC 3339 format (e.g. {example})"))
