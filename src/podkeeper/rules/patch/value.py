"""Plain JSON values: types, equality and maximum depth.

In Python `1`, `1.0` and `True` are equal. In JSON they are not, and a patch must keep the difference between `1` and
`true`. So `same` requires equal types at every level. Depth is limited, because the patch modules recurse into values.
API objects are far below the limit, and a document with 10,000 brackets is rejected instead of crashing the agent.
"""

from enum import Enum
from itertools import repeat
from typing import Final, TypeAlias

from podkeeper.model.field_path import FieldPath
from podkeeper.rules.patch.errors import PatchError, PatchTooLarge

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]

MAX_DEPTH = 128
"""Levels of objects and lists. A pod has about ten. Schemas in CRDs have the most, still well below the limit."""

_CONTAINERS = (dict, list)


class Absent(Enum):
    """The value of a missing member."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


def same(left: Json, right: Json, levels: int = MAX_DEPTH) -> bool:
    """Return whether two values are equal, including the types of numbers."""
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
    """Stop a recursion that is too deep."""
    if levels_left <= 0:
        raise PatchTooLarge(f"cannot compare: the values are nested deeper than {MAX_DEPTH} levels")


def type_name(value: Json) -> str:
    """Return the JSON type of a value for messages."""
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


def dotted(path: FieldPath) -> str:
    """Return a path as the API writes it: `spec.containers[name=web].env`."""
    return "".join(part if part.startswith("[") else f".{part}" for part in path).removeprefix(".")


def object_of(value: Json, what: str) -> JsonObject:
    """Return the value if it is an object, else raise PatchError."""
    if not isinstance(value, dict):
        raise PatchError(f"cannot use {what}: it is {type_name(value)}, expected an object")
    return value


def check_depth(value: Json, what: str) -> None:
    """Reject a value that is too deep. The walk goes level by level, because it must not recurse itself."""
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [member for outer in level if isinstance(outer, dict) for member in outer.values()]
        inner += [item for outer in level if isinstance(outer, list) for item in outer]
        level = [one for one in inner if isinstance(one, _CONTAINERS)]
        if not level:
            return
    raise PatchTooLarge(f"cannot use {what}: it is nested deeper than {MAX_DEPTH} levels")
