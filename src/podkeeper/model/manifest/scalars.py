"""Convert YAML scalars to JSON values as go-yaml v2 and kubectl do.

Input: text and tag. Output: a string, bool, int, float or None, the value that `kubectl` would send. Surprising cases:

* `0644` is 420 and `0o17` is 15. `yes` and `y` are true. `22:22` and dates are strings.
* `1e3` is the integer 1000, because JSON does not distinguish the two.
* An integer beyond 64 bits is a float. Infinity is an error, because JSON cannot express it.

Kubelet counterparts: `resolve` in go-yaml v2 and `convertToJSONableObject` in sigs.k8s.io/yaml.
"""

import base64
import binascii
import math
import re
import struct
from decimal import Decimal
from typing import Final

from podkeeper.model.errors import quoted

Scalar = str | bool | int | float | None

TOO_DEEP: Final = "cannot parse a document that is nested deeper than {} levels"
LONG_TAG: Final = "tag:yaml.org,2002:"
MERGE_TAG: Final = LONG_TAG + "merge"

_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
# Most scalars are words. Their first character already shows that they are no number, boolean or null.
_FIRST_OF_OTHERS: Final = frozenset(["", *"0123456789+-.", *(word[:1] for word in _WORDS)])

_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES: Final = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_POINT_FLOAT: Final = re.compile(
    r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)?"
)  # after a leading point, go-yaml accepts only single underscores
_MAX_DIGITS: Final = 4000  # int() raises for longer texts, and no longer integer fits in 64 bits

_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[Tt](\d{1,2}):(\d{1,2}):(\d{1,2})(?:[.,]\d+)?(?:Z|[-+]\d\d:\d\d)| (\d{1,2}):(\d{1,2}):(\d{1,2})(?:[.,]\d+)?)?",
    re.ASCII,
)
_LONE_BYTES: Final = re.compile("[\udc80-\udcff]")


class NotReadable(ValueError):
    """A scalar that does not match its tag, or that JSON cannot express."""


def plain_value(text: str) -> Scalar:
    """Return the JSON value of an untagged, unquoted scalar."""
    return text if text[:1] not in _FIRST_OF_OTHERS else json_value(_resolve(text))


def tagged_value(tag: str, text: str) -> Scalar:
    """Return the JSON value of a scalar with an explicit tag. With an unknown tag it is a string, as in Go."""
    return json_value(_resolve_tagged(tag, text))


def plain_key(text: str) -> str:
    """Return the JSON key, a string, of an untagged, unquoted mapping key."""
    return text if text[:1] not in _FIRST_OF_OTHERS else key_text(_resolve(text))


def tagged_key(tag: str, text: str) -> str:
    """Return the JSON key of a mapping key with an explicit tag."""
    return key_text(_resolve_tagged(tag, text))


def json_value(value: Scalar) -> Scalar:
    """Return a value after a round trip through Go's JSON encoder and decoder. Only numbers can change."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return value if fits_int64(value) else float(value)
        case float():
            return json_float(value)


def fits_int64(value: int) -> bool:
    return -_INT64_MAX - 1 <= value <= _INT64_MAX


def json_float(value: float) -> int | float:
    """Return a whole float as an integer if it fits in 64 bits, because Go writes it without a point."""
    if not math.isfinite(value):
        raise NotReadable(f"cannot express {value} in JSON; use a finite number or put the text in quotes")
    # 1e19 is beyond 64 bits, and larger floats would become very long integers.
    if value.is_integer() and abs(value) < 1e19:
        # Go writes the shortest digits. Above 2**53 they differ from int(value).
        whole = int(Decimal(repr(value)))
        if fits_int64(whole):
            return whole
    return value


def _resolve(text: str) -> Scalar:
    """Return go-yaml's value of an untagged scalar, before the JSON conversion."""
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        number = _float(text.replace("_", "")) if _POINT_FLOAT.fullmatch(text) else None
    elif first in "+-" or "0" <= first <= "9":
        number = _number(text.replace("_", ""))
    else:
        return text
    return text if number is None else number


def _number(plain: str) -> int | float | None:
    if (match := _INTEGER.fullmatch(plain)) is not None and len(plain) < _MAX_DIGITS:
        base = str(match.lastgroup)
        value = int(match["sign"] + match[base], _BASES[base])
        if -_INT64_MAX - 1 <= value <= (_UINT64_MAX if not match["sign"] else _INT64_MAX):
            return value
    return _float(plain) if _FLOAT.fullmatch(plain) else None


def _float(plain: str) -> float | None:
    value = float(plain)
    return value if math.isfinite(value) else None  # a number out of range is a string in Go


def _resolve_tagged(tag: str, text: str) -> Scalar:
    match tag.removeprefix(LONG_TAG) if tag.startswith(LONG_TAG) else "":
        case "binary":
            return _from_base64(text)
        case "timestamp":
            if not _is_timestamp(text):
                raise _cannot_be(text, "timestamp")
            return text
        case "bool" | "int" | "float" | "null" as wanted:
            value = _resolve(text)
            match wanted, value:
                case ("bool", bool()) | ("null", None) | ("float", float()):
                    return value
                case "int", int() if not isinstance(value, bool):
                    return value
                case "float", int() if not isinstance(value, bool) and value <= _INT64_MAX:
                    return float(value)
                case _:
                    raise _cannot_be(text, wanted)
        case _:  # "str", and tags that go-yaml ignores
            return text


def _cannot_be(text: str, tag: str) -> NotReadable:
    return NotReadable(f"cannot parse {shown(text)} as !!{tag}")


def shown(text: str) -> str:
    """Return a text in double quotes for an error message, cut to 40 characters."""
    return quoted(text if len(text) <= 40 else text[:37] + "...")


def repetition(key: str) -> str:
    return f"Duplicate value: key {shown(key)} already set in map"


def _from_base64(text: str) -> str:
    try:
        data = base64.b64decode(text.replace("\r", "").replace("\n", "").encode(), validate=True)
    except binascii.Error as error:
        raise NotReadable(f"cannot parse {shown(text)} as !!binary: {error}; expected standard base64") from error
    # JSON has no bytes, so each byte that is not UTF-8 becomes one replacement character, as in Go.
    return _LONE_BYTES.sub("\ufffd", data.decode("utf-8", "surrogateescape"))


def _is_timestamp(text: str) -> bool:
    if (match := _TIMESTAMP.fullmatch(text)) is None:
        return False
    year, month, day = (int(part) for part in match.groups()[:3])
    clock = [int(part) for part in match.groups()[3:] if part is not None] or [0, 0, 0]
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return 1 <= month <= 12 and 1 <= day <= lengths[month - 1] and clock[0] < 24 and clock[1] < 60 and clock[2] < 60


def key_text(value: Scalar) -> str:
    """Return a key as Go's JSON encoder writes it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() if value <= _INT64_MAX:
            return str(value)
        case float():
            return _short_float(value)
        case None:
            raise NotReadable("cannot use null as a key; put it in quotes or add the name of the field")
        case _:
            raise NotReadable(f"cannot use {value} as a key, because it does not fit in 64 bits; put it in quotes")


def _short_float(value: float) -> str:
    """Return the shortest text that parses to the same 32-bit float. Go writes float keys this way."""
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        single = math.copysign(math.inf, value)
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else ".inf" if single > 0 else "-.inf"
    text = next(
        candidate
        for precision in range(9)
        if struct.pack("f", float(candidate := f"{single:.{precision}e}")) == struct.pack("f", single)
    )
    mantissa, _, exponent = text.partition("e")
    return f"{Decimal(text):f}" if -4 <= int(exponent) < 6 else f"{mantissa}e{exponent}"
