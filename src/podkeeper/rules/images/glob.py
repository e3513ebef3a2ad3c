"""Shell patterns over one word.

Supported: `*`, `?`, `[a-z]`, `[^a-z]` and a backslash before a literal character. An invalid pattern matches nothing.
The time is at most proportional to the product of both lengths. Patterns come from untrusted Secrets, and a regular
expression with twenty stars could block the agent for years.

Kubelet counterpart: `filepath.Match`.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _CharacterSet:
    """One character, inside or outside some ranges."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def contains(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) is not self.negated


_ANY = _CharacterSet((), negated=True)
_STAR = None

_Token = _CharacterSet | None


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches the whole text."""
    try:
        tokens = tuple(_tokens(pattern))
    except ValueError:
        return False
    token, at = 0, 0
    star, star_at = -1, 0  # where to continue if the last star must match one more character
    while at < len(text):
        wanted = tokens[token] if token < len(tokens) else _CharacterSet(())
        if wanted is _STAR:
            star, star_at = token, at
            token += 1
        elif wanted.contains(text[at]):
            token, at = token + 1, at + 1
        elif star >= 0:
            star_at += 1
            token, at = star + 1, star_at
        else:
            return False
    return all(left is _STAR for left in tokens[token:])


def _tokens(pattern: str) -> Iterator[_Token]:
    """Parse a pattern. Raises ValueError."""
    at = 0
    while at < len(pattern):
        match pattern[at]:
            case "*":
                yield _STAR
            case "?":
                yield _ANY
            case "[":
                one, at = _class(pattern, at + 1)
                yield one
            case _:
                character, at = _character(pattern, at)
                yield _CharacterSet(((character, character),))
        at += 1


def _class(pattern: str, at: int) -> tuple[_CharacterSet, int]:
    """Parse a character class. Return it and the index of its closing bracket."""
    negated = pattern[at : at + 1] == "^"
    at += negated
    ranges: list[tuple[str, str]] = []
    while not ranges or pattern[at : at + 1] != "]":
        low, at = _bound(pattern, at)
        high = low
        if pattern[at + 1 : at + 2] == "-":
            high, at = _bound(pattern, at + 2)
        ranges.append((low, high))
        at += 1
    return _CharacterSet(tuple(ranges), negated), at


def _bound(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at : at + 1] in ("-", "]"):
        raise ValueError("incomplete character class")
    return _character(pattern, at)


def _character(pattern: str, at: int) -> tuple[str, int]:
    """Return the character at an index, after a backslash if there is one, and its index."""
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise ValueError("the pattern ends unexpectedly")
    return pattern[at], at
