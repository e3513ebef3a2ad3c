"""Compare recorded kubelet behaviour with ours.

A *replay* takes a recorded case and yields the differences. For a table with an input and an output per row, `answers`
makes the replay from a function that returns our output.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Json = Any  # a recorded value from JSON, only used in these replays


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where our result differs from that of the kubelet."""

    where: str
    expected: Json
    got: Json

    def __str__(self) -> str:
        return f"at {self.where or 'the answer'}\n      kubelet:   {self.expected!r}\n      podkeeper: {self.got!r}"


Replay = Callable[[Json, Json], Iterable[Difference]]
"""Takes (in, out) of a recorded row and returns the differences."""

MISSING = "<absent>"


def differences(expected: Json, got: Json, where: str = "") -> Iterator[Difference]:
    """Yield the differences between two JSON values."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            place = f"{where}.{key}" if where else str(key)
            yield from differences(expected.get(key, MISSING), got.get(key, MISSING), place)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (left, right) in enumerate(zip(expected, got, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif type(expected) is not type(got) or expected != got:
        yield Difference(where, expected, got)


def answers(decide: Callable[[Json], Json]) -> Replay:
    """Return the replay of a table with one input and one output per row."""

    def replay(given: Json, expected: Json) -> Iterator[Difference]:
        yield from differences(expected, decide(given))

    return replay
