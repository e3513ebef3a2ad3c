"""Identity and order of the items of merged lists.

The merge key identifies an object, a scalar identifies itself. Both type and value count (`80` and `"80"` differ). The
order of a merged list follows three rules. Items of the patch are in the patch's order. Items that only the server has
keep their order. The two groups are interleaved as on the server.

Kubelet counterpart: `normalizeElementOrder` in apimachinery's pkg/util/strategicpatch/patch.go. Dictionaries replace
its linear searches, so the cost is linear in the length of the list.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from podkeeper.model.field_path import FieldPath
from podkeeper.rules.patch.directives import is_deletion
from podkeeper.rules.patch.errors import PatchError
from podkeeper.rules.patch.value import Json, dotted, type_name

Identity: TypeAlias = tuple[type, str | int | float | bool]


def identity_of(item: Json, merge_key: str, path: FieldPath, index: int) -> Identity:
    """Return the identity of an item, or raise PatchError. An empty merge key means a list of scalars."""
    value = item
    if merge_key:
        if not isinstance(item, dict):
            raise _no_identity(f"an item is {type_name(item)}, expected an object", path, index)
        if merge_key not in item:
            raise _no_identity(f"an item lacks its merge key {merge_key!r}", path, index)
        value = item[merge_key]
    if value is None or isinstance(value, dict | list):
        what = f"the {merge_key!r} of an item" if merge_key else "an item"
        raise _no_identity(f"{what} is {type_name(value)}, expected a string or a number", path, index)
    return type(value), value


def _no_identity(reason: str, path: FieldPath, index: int) -> PatchError:
    return PatchError(f"cannot merge: {reason}", dotted((*path, f"[{index}]")))


def identities_of(items: Iterable[Json], merge_key: str, path: FieldPath) -> list[Identity]:
    return [identity_of(item, merge_key, path, index) for index, item in enumerate(items)]


def positions_of(identities: Sequence[Identity]) -> dict[Identity, int]:
    """Return the first index of each identity."""
    return {identity: index for index, identity in reversed(list(enumerate(identities)))}


def holds_objects(path: FieldPath, *lists: Sequence[Json]) -> bool:
    """Return whether the lists hold objects (else scalars of one type). Raises PatchError if they are mixed."""
    first: type | None = None
    for items in lists:
        for index, item in enumerate(items):
            if first is None:
                first = type(item)
            if item is None or isinstance(item, list) or type(item) is not first:
                reason = f"an item is {type_name(item)}, expected only objects or only scalars of one type"
                raise _no_identity(reason, path, index)
    return first is dict


def named(path: FieldPath, merge_key: str, value: Json) -> FieldPath:
    """Return the path of one item of a list of objects."""
    return (*path, f"[{merge_key}={value}]")


def arranged(
    merged: list[Json], wanted: Sequence[Identity], server: Sequence[Identity], merge_key: str, path: FieldPath
) -> list[Json]:
    """Sort a merged list. `wanted` is the patch's order, `server` the former order of the items.

    Items in neither order come last, in their present order. Go reverses them, because its comparison contradicts
    itself. This happens only with an empty `$setElementOrder` beside a list.
    """
    identities = identities_of(merged, merge_key, path)
    wanted_at, server_at = positions_of(wanted), positions_of(server)
    both = list(zip(identities, merged, strict=True))
    ours = _sorted([entry for entry in both if entry[0] in wanted_at], wanted_at)
    theirs = _sorted([entry for entry in both if entry[0] not in wanted_at], server_at)
    return [item for _, item in _interleaved(theirs, ours, server_at)]


Entry: TypeAlias = tuple[Identity, Json]


def _sorted(entries: list[Entry], order: dict[Identity, int]) -> list[Entry]:
    """Sort by an order, deletions last. They occur only when one patch is merged into another."""
    kept = [entry for entry in entries if not is_deletion(entry[1])]
    deletions = [entry for entry in entries if is_deletion(entry[1])]
    kept.sort(key=lambda entry: order.get(entry[0], len(order)))
    return kept + deletions


def _interleaved(theirs: list[Entry], ours: list[Entry], server_at: dict[Identity, int]) -> list[Entry]:
    """Insert each item of the server before the first patched item that it preceded on the server."""
    result: list[Entry] = []
    start = 0
    for entry in ours:
        at = server_at.get(entry[0])
        while start < len(theirs) and at is not None and server_at.get(theirs[start][0], at) < at:
            result.append(theirs[start])
            start += 1
        result.append(entry)
    return result + theirs[start:]
