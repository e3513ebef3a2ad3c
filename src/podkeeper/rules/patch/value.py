"""Plain JSON values: their type, when two of them are the same, and how deep they may be.

Python takes `1`, `1.0` and `True` for equal; JSON does not, and a patch must not lose the difference
between `1` and `true`. So two values are the `same` here only when their types agree all the way down.
Depth is limited, because the rooms next door walk values recursively: API objects stay far below
the limit, and a document of 10,000 brackets shall be refused, not crash the agent.
"""

from enum import Enum
from itertools import repeat
from typing import Final, TypeAlias

from podkeeper.rules.patch.errors import PatchError, PatchTooLarge

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]
Path: TypeAlias = tuple[str, ...]

MAX_DEPTH = 128
"""Levels of objects and lists. A pod has about ten; schemas in CRDs go deepest, and stay well below."""

_CONTAINERS = (dict, list)


class Absent(Enum):
    """The one thing that is no JSON value: what a missing member holds."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


def same(left: Json, right: Json, levels: int = MAX_DEPTH) -> bool:
    """Whether two values are equal, numbers of different types apart."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        if len(left) != len(right):
            return False
        check_levels(levels)
        for key, value in left.items():
            other = right.get(key, ABSENT)
            if value is not other and (other is ABSENT or not same(value, other, levels - 1)):
                return False
        return True
    if isinstance(left, list) and isinstance(right, list):
        check_levels(levels)
        return len(left) == len(right) and all(map(same, left, right, repeat(levels - 1)))
    return left == right


def check_levels(levels_left: int) -> None:
    """Stop a recursion that has gone down far enough."""
    if levels_left <= 0:
        raise PatchTooLarge(f"cannot compare: the values are nested deeper than {MAX_DEPTH} levels")


def type_name(value: Json) -> str:
    """A value's type in JSON's words, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def dotted(path: Path) -> str:
    """A path as the API writes it: `spec.containers[name=web].env`."""
    return "".join(part if part.startswith("[") else f".{part}" for part in path).removeprefix(".")


def object_of(value: Json, what: str) -> JsonObject:
    """The value itself, once it is known to be an object."""
    if not isinstance(value, dict):
        raise PatchError(f"cannot use {what}: it is {type_name(value)}, an object is expected")
    return value


def check_depth(value: Json, what: str) -> None:
    """Refuse a value that is too deep. This walk goes level by level: it must not itself recurse."""
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [member for outer in level if isinstance(outer, dict) for member in outer.values()]
        inner += [item for outer in level if isinstance(outer, list) for item in outer]
        level = [one for one in inner if isinstance(one, _CONTAINERS)]
        if not level:
            return
    raise PatchTooLarge(f"cannot use {what}: it is nested deeper than {MAX_DEPTH} levels")
