"""Lists that are merged item by item: what identifies an item, and where it stands afterwards.

An item that is an object is identified by the value of its merge key, a scalar by itself; type and value
count (`80` and `"80"` are two). The order of a merged list follows from three orders: what the patch
wants comes first, items only the server has keep their order among themselves, and the two are
interleaved as they stood on the server. The Go ancestor is `normalizeElementOrder` in
apimachinery's pkg/util/strategicpatch/patch.go; its linear searches are dictionaries here, so a huge
list costs no more than its length.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from podkeeper.rules.patch.directives import is_deletion
from podkeeper.rules.patch.errors import PatchError
from podkeeper.rules.patch.value import Json, Path, dotted, type_name

Identity: TypeAlias = tuple[type, str | int | float | bool]


def identity_of(item: Json, merge_key: str, path: Path, index: int) -> Identity:
    """What tells this item from its neighbours; an error when nothing does. An empty merge key: a list of scalars."""
    value = item
    if merge_key:
        if not isinstance(item, dict):
            raise _nameless(f"an item is {type_name(item)}, an object is expected", path, index)
        if merge_key not in item:
            raise _nameless(f"an item has no {merge_key!r}, which identifies it", path, index)
        value = item[merge_key]
    if value is None or isinstance(value, dict | list):
        what = f"the {merge_key!r} of an item" if merge_key else "an item"
        raise _nameless(f"{what} is {type_name(value)}, a string or a number is expected", path, index)
    return type(value), value


def _nameless(reason: str, path: Path, index: int) -> PatchError:
    return PatchError(f"cannot merge: {reason}", dotted((*path, f"[{index}]")))


def identities_of(items: Iterable[Json], merge_key: str, path: Path) -> list[Identity]:
    """The identity of each item, in order."""
    return [identity_of(item, merge_key, path, index) for index, item in enumerate(items)]


def positions_of(identities: Sequence[Identity]) -> dict[Identity, int]:
    """Where each identity stands first."""
    return {identity: index for index, identity in reversed(list(enumerate(identities)))}


def holds_objects(path: Path, *lists: Sequence[Json]) -> bool:
    """Whether lists to be merged hold objects (or else scalars of one type); an error when they are mixed."""
    first: type | None = None
    for items in lists:
        for index, item in enumerate(items):
            if first is None:
                first = type(item)
            if item is None or isinstance(item, list) or type(item) is not first:
                reason = f"an item is {type_name(item)}; objects, or scalars of one type, are expected"
                raise _nameless(reason, path, index)
    return first is dict


def named(path: Path, merge_key: str, value: Json) -> Path:
    """The path of one item of a list of objects."""
    return (*path, f"[{merge_key}={value}]")


def arranged(
    merged: list[Json], wanted: Sequence[Identity], server: Sequence[Identity], merge_key: str, path: Path
) -> list[Json]:
    """Put a merged list in order: `wanted` is the patch's order, `server` the one the items had before.

    Items in neither order come last, in the order they have. (Go sorts them with a comparison that
    contradicts itself, which reverses them; it takes an empty `$setElementOrder` beside a list to get there.)
    """
    identities = identities_of(merged, merge_key, path)
    wanted_at, server_at = positions_of(wanted), positions_of(server)
    both = list(zip(identities, merged, strict=True))
    ours = _sorted([entry for entry in both if entry[0] in wanted_at], wanted_at)
    theirs = _sorted([entry for entry in both if entry[0] not in wanted_at], server_at)
    return [item for _, item in _interleaved(theirs, ours, server_at)]


Entry: TypeAlias = tuple[Identity, Json]


def _sorted(entries: list[Entry], order: dict[Identity, int]) -> list[Entry]:
    """Sort by an order, deletions last (they occur where one patch is merged into another)."""
    kept = [entry for entry in entries if not is_deletion(entry[1])]
    deletions = [entry for entry in entries if is_deletion(entry[1])]
    kept.sort(key=lambda entry: order.get(entry[0], len(order)))
    return kept + deletions


def _interleaved(theirs: list[Entry], ours: list[Entry], server_at: dict[Identity, int]) -> list[Entry]:
    """Insert each of the server's own items before the first patched item that it preceded on the server."""
    result: list[Entry] = []
    start = 0
    for entry in ours:
        at = server_at.get(entry[0])
        while start < len(theirs) and at is not None and server_at.get(theirs[start][0], at) < at:
            result.append(theirs[start])
            start += 1
        result.append(entry)
    return result + theirs[start:]
