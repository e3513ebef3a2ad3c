"""Instants: text on the wire, aware UTC `datetime` inside.

`Time` has whole seconds and `MicroTime` exactly six digits when the reference writes them;
both are RFC 3339 when read. The zero time of Go is None here and `null` on the wire.
"""

import re
from datetime import UTC, datetime

from podkeeper.model.errors import BadInput, Problem

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)  # Go: upper-case T and Z only


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 instant; digits beyond the microsecond are cut, as Go's are by `MicroTime`."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise BadInput(Problem(f"cannot read {text!r} as a time; right would be 2000-01-31T23:59:59Z"))
    date, clock, fraction, zone = match.groups()
    digits = (fraction or "")[:6].ljust(6, "0")
    try:
        return datetime.fromisoformat(f"{date}T{clock}.{digits}{'+00:00' if zone == 'Z' else zone}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadInput(Problem(f"cannot read {text!r} as a time: {error}")) from error


def instant(text: str | None) -> datetime | None:
    """Read a field that may be absent."""
    return None if text is None else parse_time(text)


def format_time(moment: datetime) -> str:
    """Write a `Time`: UTC, the fraction of a second cut off."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


def format_micro_time(moment: datetime) -> str:
    """Write a `MicroTime`: UTC, always six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
