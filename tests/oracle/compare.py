"""Compare what the reference did with what we do.

A *replay* takes a recorded case and yields the differences it finds. A table row that is a plain
question and answer needs only a function from `in` to our answer: `answers` makes the replay.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Json = Any  # a recorded value; it came from JSON and goes no further than these replays


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where we and the reference disagree."""

    where: str
    expected: Json
    got: Json

    def __str__(self) -> str:
        return f"at {self.where or 'the answer'}\n      reference: {self.expected!r}\n      podkeeper: {self.got!r}"


Replay = Callable[[Json, Json], Iterable[Difference]]
"""(in, out) of a recorded row -> where we differ."""

MISSING = "<absent>"


def differences(expected: Json, got: Json, where: str = "") -> Iterator[Difference]:
    """Walk two JSON values side by side."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            place = f"{where}.{key}" if where else str(key)
            yield from differences(expected.get(key, MISSING), got.get(key, MISSING), place)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (left, right) in enumerate(zip(expected, got, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif type(expected) is not type(got) or expected != got:
        yield Difference(where, expected, got)


def answers(ask: Callable[[Json], Json]) -> Replay:
    """The replay of a question-and-answer table."""

    def replay(given: Json, expected: Json) -> Iterator[Difference]:
        yield from differences(expected, ask(given))

    return replay
