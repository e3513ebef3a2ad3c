"""Quantities: `500m`, `1.5Gi`, `12e6` as exact numbers that keep their format.

The input is a wire value (a text, or a bare JSON or YAML number). The output is a `Quantity` that compares, adds and
subtracts without loss, and formats itself in Kubernetes' canonical form. No floats are used. As in Kubernetes:

* Values below a nano are rounded away from zero, so that a small value never becomes zero.
* A binary quantity (`Ki` ... `Ei`) is capped at the largest int64. The other formats are not.
* A text that is canonical, or looks so (`1.500`, `+5`), is written back unchanged.

Two deliberate differences: more than 1000 digits or an exponent above 1000 is rejected, because it could use all
memory. And `value` saturates where Go overflows.

Kubelet counterpart: apimachinery/pkg/api/resource.
"""

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeGuard

from podkeeper.model.errors import BadInput, Problem, quoted
from podkeeper.model.wire import QuantityLike

MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)

_NANO: Final = -9
_MILLI: Final = -3
_EXPECTED: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' "
    "(e.g. 2, 500m, 1.5Gi or 12e6)"
)
_LIMIT: Final = 1000  # of exponents and of digits; Go has no limit and can hang

_SHAPE: Final = re.compile(r"([+-]?)([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT: Final = re.compile(r"[eE]([-+]?[0-9]+)")
# The characters that Go trims. Control characters are not among them: in JSON text they are escaped, so Go never sees
# them.
_BLANKS: Final = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SUFFIX_OF_DECIMAL: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_SUFFIX_OF_1024: Final = ("", *_BINARY_SUFFIXES)


class Format(StrEnum):
    """How a quantity was written, and will be formatted."""

    BINARY_SI = "BinarySI"  # 12Mi
    DECIMAL_SI = "DecimalSI"  # 12M
    DECIMAL_EXPONENT = "DecimalExponent"  # 12e6


@dataclass(frozen=True, slots=True)
class Quantity:
    """The number `unscaled * 10 ** exponent`. Equal amounts are equal in every format."""

    unscaled: int
    exponent: int = 0
    format: Format = field(default=Format.DECIMAL_SI, compare=False)
    text: str = field(default="", compare=False)  # the original text, if Go would write the same

    def __post_init__(self) -> None:
        unscaled, exponent = self.unscaled, self.exponent
        # One form per amount, so that equal amounts are equal and hash alike, however they were written.
        while unscaled and unscaled % 10 == 0:
            unscaled, exponent = unscaled // 10, exponent + 1
        object.__setattr__(self, "unscaled", unscaled)
        object.__setattr__(self, "exponent", exponent if unscaled else 0)

    def __lt__(self, other: "Quantity") -> bool:
        left, right, _ = _aligned(self, other)
        return left < right

    def __le__(self, other: "Quantity") -> bool:
        left, right, _ = _aligned(self, other)
        return left <= right

    def __gt__(self, other: "Quantity") -> bool:
        return other < self

    def __ge__(self, other: "Quantity") -> bool:
        return other <= self

    def __bool__(self) -> bool:
        return self.unscaled != 0

    def __add__(self, other: "Quantity") -> "Quantity":
        left, right, exponent = _aligned(self, other)
        return Quantity(left + right, exponent, self.format if self else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        left, right, exponent = _aligned(self, other)
        return Quantity(left - right, exponent, self.format if self else other.format)

    def __str__(self) -> str:
        if self.text:
            return self.text
        if self.format is Format.BINARY_SI and self.exponent >= 0 and abs(self.unscaled) * 10**self.exponent >= 1024:
            return _binary_text(self.unscaled * 10**self.exponent)
        return _decimal_text(self.unscaled, self.exponent, self.format)

    @property
    def value(self) -> int:
        """The amount in whole units, rounded away from zero."""
        return _saturated(_rounded_up(self.unscaled, self.exponent, 0))

    @property
    def milli_value(self) -> int:
        """The amount in thousandths, rounded away from zero."""
        return _saturated(_rounded_up(self.unscaled, self.exponent, _MILLI))

    def rounded_up_to_milli(self) -> "Quantity":
        """Round up to thousandths, because the API does not store more."""
        if self.exponent >= _MILLI:
            return self
        return Quantity(_rounded_up(self.unscaled, self.exponent, _MILLI), _MILLI, self.format)


ZERO: Final = Quantity(0)


def parse_quantity(wire: QuantityLike) -> Quantity:
    """Parse a quantity from the wire. A bare number is parsed as its JSON text."""
    if isinstance(wire, str):
        return _parse(wire)
    if isinstance(wire, bool) or _is_huge(wire):
        raise _invalid(wire)
    return _parse(str(wire) if isinstance(wire, int) else _json_text(wire))


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    text = text.strip(_BLANKS)
    match = _SHAPE.fullmatch(text)
    if not text or match is None:
        raise _invalid(text)
    sign, whole, _, fraction, suffix = match.groups(default="")
    whole = whole.lstrip("0") or "0"
    if len(whole) + len(fraction) > _LIMIT:
        raise _invalid(text)
    exponent, binary_shift, form = _meaning_of(suffix, text)
    digits = whole + fraction
    scale = exponent - len(fraction)
    unscaled = int(sign + digits) << binary_shift
    if form is Format.BINARY_SI:
        small = not fraction and 15 - len(whole) - binary_shift * 3 // 10 - 1 >= 0
        kept = small and unscaled >> binary_shift & 7 != 0
    else:
        small = len(digits) <= 18 and scale >= _NANO
        kept = small and scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    if small:
        return Quantity(unscaled, scale, form, text if kept else "")
    if not re.search("[0-9]", text[: match.start(5)]):
        # As in Go, a text without digits, such as "m", is zero, unless it needs the slow path below.
        raise _invalid(text)
    return _bounded(unscaled, scale, form)


def _bounded(unscaled: int, scale: int, form: Format) -> Quantity:
    """Round up values below a nano and cap binary ones. This is Go's slow path."""
    if scale < _NANO:
        unscaled, scale = _rounded_up(unscaled, scale, _NANO), _NANO
    amount = Quantity(unscaled, scale, form)
    if form is Format.BINARY_SI:
        if abs(amount.unscaled) * 10 ** max(amount.exponent, 0) > MAX_INT64 * 10 ** max(-amount.exponent, 0):
            return Quantity(MAX_INT64 if unscaled > 0 else -MAX_INT64, 0, form)
        if amount and abs(amount.unscaled) < 10 ** max(-amount.exponent, 0):
            return replace(amount, format=Format.DECIMAL_SI)
    return amount


def _meaning_of(suffix: str, text: str) -> tuple[int, int, Format]:
    """Return the power of ten, the power of two and the format of a suffix."""
    if suffix in _DECIMAL_SUFFIXES:
        return _DECIMAL_SUFFIXES[suffix], 0, Format.DECIMAL_SI
    if suffix in _BINARY_SUFFIXES:
        return 0, _BINARY_SUFFIXES[suffix], Format.BINARY_SI
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match[1]) > len(str(_LIMIT)) + 1 or abs(int(match[1])) > _LIMIT:
        raise _invalid(text)
    return int(match[1]), 0, Format.DECIMAL_EXPONENT


def _aligned(left: Quantity, right: Quantity) -> tuple[int, int, int]:
    """Return both amounts as integers over one power of ten."""
    exponent = min(left.exponent, right.exponent)
    return (
        left.unscaled * 10 ** (left.exponent - exponent),
        right.unscaled * 10 ** (right.exponent - exponent),
        exponent,
    )


def _rounded_up(unscaled: int, exponent: int, target: int) -> int:
    """Return the amount in units of `10 ** target`, rounded away from zero."""
    if exponent >= target:
        return unscaled * int(10 ** (exponent - target))
    quotient, rest = divmod(abs(unscaled), 10 ** (target - exponent))
    magnitude = int(quotient) + (1 if rest else 0)
    return magnitude if unscaled >= 0 else -magnitude


def _saturated(number: int) -> int:
    return max(MIN_INT64, min(MAX_INT64, number))


def _binary_text(number: int) -> str:
    times = 0
    while number % 1024 == 0 and times < len(_SUFFIX_OF_1024) - 1:
        number, times = number // 1024, times + 1
    return f"{number}{_SUFFIX_OF_1024[times]}"


def _decimal_text(unscaled: int, exponent: int, form: Format) -> str:
    third = exponent - exponent % 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{unscaled * 10 ** (exponent - third)}{f'e{third}' if third else ''}"
    third = min(third, max(_SUFFIX_OF_DECIMAL))  # Go drops the suffix of 1000E and writes 1
    return f"{unscaled * 10 ** (exponent - third)}{_SUFFIX_OF_DECIMAL[third]}"


def _json_text(number: float) -> str:
    """Format a float as Go's JSON encoder does: shortest digits, exponents only for extreme numbers."""
    if number != number or number in (float("inf"), float("-inf")):
        raise _invalid(number)
    exact = Decimal(repr(number))
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        return format(exact.normalize() if number else Decimal(0), "f")
    digits, exponent = exact.as_tuple().digits, exact.adjusted()
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if number < 0 else ''}{mantissa[0]}{'.' if mantissa[1:] else ''}{mantissa[1:]}e{exponent:+d}"


def _invalid(wire: QuantityLike) -> BadInput:
    return BadInput(Problem(f"Invalid value: {quoted(wire)}: {_EXPECTED}"))


def _is_huge(wire: QuantityLike) -> TypeGuard[int]:
    """Return whether Python would refuse to print an integer."""
    return isinstance(wire, int) and wire.bit_length() > 3 * _LIMIT
