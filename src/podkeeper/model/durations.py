"""Durations in Go's format: `1m30s`, `100ms`, `1.5h`.

Values are whole nanoseconds, as in Go, so parsing and formatting lose nothing.

Kubelet counterparts: `time.ParseDuration` and `Duration.String`.
"""

import re
from typing import Final

from podkeeper.model.errors import BadInput, Problem, quoted

NANOSECONDS_PER_SECOND: Final = 1_000_000_000

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, the Greek letter
    "ms": 1_000_000,
    "s": NANOSECONDS_PER_SECOND,
    "m": 60 * NANOSECONDS_PER_SECOND,
    "h": 3600 * NANOSECONDS_PER_SECOND,
}
_LIMIT: Final = 2**63
_TERM: Final = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[^.0-9]+)")
_MAX_DIGITS: Final = 4000  # int() raises for longer texts


def parse_duration(text: str) -> int:
    """Return nanoseconds. Raises `BadInput` where Go fails: no unit, unknown units, more than 292 years."""
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest):
        term = _TERM.match(rest, position)
        if term is None or not (term["whole"] or term["fraction"]) or term["unit"] not in _NANOSECONDS:
            raise _invalid(text)
        total += _term_nanoseconds(text, term)
        position = term.end()
    negative = text.startswith("-")
    if not rest or total > _LIMIT or (total == _LIMIT and not negative):
        raise _invalid(text)
    return -total if negative else total


def format_duration(nanoseconds: int) -> str:
    """Return the text that Go writes: `1h0m0s`, `1.5s`, `100ms`, `0s`."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    if rest < NANOSECONDS_PER_SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if rest >= _NANOSECONDS[unit])
        return f"{sign}{_decimal(rest, _NANOSECONDS[unit])}{unit}"
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    seconds = f"{_decimal(rest, NANOSECONDS_PER_SECOND)}s"
    if not minutes:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"


def seconds_of(text: str) -> float:
    """Return a duration in seconds, for timers that need no nanoseconds."""
    return parse_duration(text) / NANOSECONDS_PER_SECOND


def _term_nanoseconds(text: str, term: re.Match[str]) -> int:
    unit = _NANOSECONDS[term["unit"]]
    digits = term["whole"].lstrip("0")
    # 2**63 has 19 digits. Check the length first, because int() is slow for very long texts.
    if len(digits) > 19 or (value := int(digits or "0") * unit) > _LIMIT:
        raise _invalid(text)
    if fraction := (term["fraction"] or "")[:_MAX_DIGITS]:
        value += _fraction_nanoseconds(fraction, unit)
    return value


def _fraction_nanoseconds(digits: str, unit: int) -> int:
    """Return a fraction of a unit, rounded as in Go: with floats, and cut off after 63 bits."""
    number, scale = 0, 1.0
    for digit in digits:
        if (longer := number * 10 + int(digit)) > _LIMIT or number > (_LIMIT - 1) // 10:
            break
        number, scale = longer, scale * 10
    return int(float(number) * (float(unit) / scale))


def _decimal(value: int, unit: int) -> str:
    """Return value / unit as a decimal without trailing zeros. The unit is a power of ten."""
    whole, rest = divmod(value, unit)
    places = len(str(unit)) - 1
    return f"{whole}.{rest:0{places}d}".rstrip("0") if rest else str(whole)


def _invalid(text: str) -> BadInput:
    return BadInput(Problem(f"Invalid value: {quoted(text)}: must be a duration (e.g. 1m30s, 100ms or 4h)"))
