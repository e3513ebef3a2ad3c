"""JSON pointers (RFC 6901): the paths of JSON patch operations.

`/spec/containers/0/image` has four tokens. `~1` stands for `/` and `~0` for `~`. The empty pointer is the whole
document. In a list, a token is an index, or `-` for the position after the last item. As in the API server, `-1` is the
last item.
"""

import re

from podkeeper.rules.patch.value import MAX_DEPTH, Json, type_name

_INDEX = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_BAD_ESCAPE = re.compile(r"~(?![01])")

AFTER_LAST = "-"


class BadPointer(ValueError):
    """Why a pointer is malformed or has no target. The caller adds the operation."""


def tokens_of(pointer: Json) -> list[str]:
    if not isinstance(pointer, str):
        raise BadPointer(f"the pointer is {type_name(pointer)}, expected a string like '/spec/replicas'")
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise BadPointer("the pointer does not start with '/'")
    if _BAD_ESCAPE.search(pointer):
        raise BadPointer("'~' must be followed by 0 (for '~') or 1 (for '/')")
    if pointer.count("/") > MAX_DEPTH:
        raise BadPointer(f"it is deeper than {MAX_DEPTH} levels")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]


def pointer_to(tokens: tuple[str, ...]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def index_in(token: str, length: int) -> int:
    """Return the index that a token means in a list of `length` items. Negative ones count from the end."""
    if not _INDEX.fullmatch(token):
        raise BadPointer(f"{token!r} is not an index of a list")
    index = int(token)
    if not -length <= index < length:
        allowed = f"expected 0 to {length - 1}" if length else "the list is empty"
        raise BadPointer(f"index {index} is out of range, {allowed}")
    return index + length if index < 0 else index


def member(container: Json, token: str) -> Json:
    """Return the value of a token in a container."""
    match container:
        case dict():
            if token not in container:
                raise BadPointer(f"member {token!r} not found")
            return container[token]
        case list():
            return container[index_in(token, len(container))]
        case _:
            raise BadPointer(f"{token!r} cannot be looked up in {type_name(container)}")
