"""Parse JSON text into plain values. One text may hold several objects in a row.

The result is the same as in `kubectl`: whole floats become integers, integers beyond 64 bits become floats, a lone
surrogate becomes the replacement character, and NaN is an error. One difference: duplicate keys are an error, as in
our YAML parser. Go uses the last one.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from podkeeper.model.manifest import scalars
from podkeeper.model.manifest.tree import MAX_DEPTH, Unreadable, Value, read_tree

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


@dataclass(frozen=True, slots=True)
class ParsedObject:
    """One object of a text: its value or its error, and its start and end offsets."""

    value: Value | Unreadable
    start: int
    end: int


def objects(text: str) -> Iterator[ParsedObject]:
    """Yield the objects of the text up to the first part that is not a JSON object."""
    if _SURROGATE.search(text) is not None:
        text = _ESCAPE.sub(_without_lone_surrogate, text)  # keeps the length, because callers use the offsets
    start = _skip_space(text, 0)
    while text.startswith("{", start):
        found = _read_object(text, start)
        if found is None:
            return
        yield found
        start = _skip_space(text, found.end)


def _read_object(text: str, start: int) -> ParsedObject | None:
    errors = _DecodeErrors()
    decoder = json.JSONDecoder(
        object_pairs_hook=errors.pairs, parse_int=errors.integer, parse_float=errors.number, parse_constant=_reject
    )
    try:
        value, end = decoder.raw_decode(text, start)
    except RecursionError:
        # Python's decoder is recursive, unlike our YAML builder.
        return ParsedObject(Unreadable(scalars.TOO_DEEP.format(MAX_DEPTH), 1), start, len(text))
    except ValueError:
        return None
    if errors.too_large is not None:
        line = text.count("\n", start, text.find(errors.too_large, start)) + 1
        message = f"cannot parse {scalars.shown(errors.too_large)}: the number does not fit in 64 bits"
        return ParsedObject(Unreadable(message, line), start, end)
    if _is_too_deep(value):
        return ParsedObject(Unreadable(scalars.TOO_DEEP.format(MAX_DEPTH), 1), start, end)
    if errors.repeated is not None:
        return ParsedObject(_duplicate_key_error(text[start:end], errors.repeated), start, end)
    return ParsedObject(value, start, end)


class _DecodeErrors:
    """Errors of the decoder's hooks. The hooks do not receive the position."""

    def __init__(self) -> None:
        self.repeated: str | None = None
        self.too_large: str | None = None

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        # The hook cannot stop the decoder with a position, so the error is reported after the whole object was read.
        if len(value) != len(pairs):
            self.repeated = _first_repeated(key for key, _ in pairs)
        return value

    def integer(self, text: str) -> int | float:
        # Check the length first: longer integers never fit in 64 bits, and int() is slow for very long ones.
        return number if len(text) <= 20 and scalars.fits_int64(number := int(text)) else self.number(text)

    def number(self, text: str) -> int | float:
        try:
            return scalars.json_float(float(text))
        except scalars.NotReadable:
            self.too_large = text
            return 0


def _reject(name: str) -> Value:
    raise ValueError(name)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _without_lone_surrogate(match: re.Match[str]) -> str:
    return match[0] if match["lone"] is None else r"\ufffd"


def _is_too_deep(value: Value) -> bool:
    # Level by level and not recursively, because this checks values that are too deep.
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _first_repeated(keys: Iterable[str]) -> str:
    """Return the first key that occurs again. One pass, because a large object with one repeated key must not block."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")


def _duplicate_key_error(text: str, key: str) -> Unreadable:
    """Return the error about a duplicate key, with its line if the YAML parser can parse this JSON."""
    message = scalars.repetition(key)
    try:
        read_tree(text)
    except Unreadable as error:
        if error.message == message:
            return error
    return Unreadable(message, 1)
