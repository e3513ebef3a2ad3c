"""Shell patterns over one word: `*`, `?`, `[a-z]`, `[^a-z]` and `\\` before a character that means itself.

A pattern and a text come in; whether they match goes out. A pattern that is none matches nothing. The time it takes
grows with the product of both lengths at most: patterns come from strangers, and a regular expression with twenty stars
would hold up the agent for years. The Go ancestor is `filepath.Match`.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _One:
    """One character: in one of these ranges, or in none."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def takes(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) is not self.negated


_ANY = _One((), negated=True)
_STAR = None

_Token = _One | None


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern covers all of a text."""
    try:
        tokens = tuple(_tokens(pattern))
    except ValueError:
        return False
    token, at = 0, 0
    star, star_at = -1, 0  # where to go on when it turns out that the last star must take one more
    while at < len(text):
        wanted = tokens[token] if token < len(tokens) else _One(())
        if wanted is _STAR:
            star, star_at = token, at
            token += 1
        elif wanted.takes(text[at]):
            token, at = token + 1, at + 1
        elif star >= 0:
            star_at += 1
            token, at = star + 1, star_at
        else:
            return False
    return all(left is _STAR for left in tokens[token:])


def _tokens(pattern: str) -> Iterator[_Token]:
    """What a pattern asks for, piece by piece. Raises ValueError."""
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
                yield _One(((character, character),))
        at += 1


def _class(pattern: str, at: int) -> tuple[_One, int]:
    """A class of characters, and where its bracket closes."""
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
    return _One(tuple(ranges), negated), at


def _bound(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at : at + 1] in ("-", "]"):
        raise ValueError("a class of characters is not complete")
    return _character(pattern, at)


def _character(pattern: str, at: int) -> tuple[str, int]:
    """The character that stands here, and where; a backslash is not it."""
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise ValueError("a pattern ends too soon")
    return pattern[at], at
