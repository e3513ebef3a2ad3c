"""Directives of strategic merge patches, and how to remove them from values.

A patch that adds a whole value may contain directives for parts that do not exist. Each function returns the same
object if it has nothing to remove, so that structure is shared.

Kubelet counterparts: `removeDirectives` and `discardNullValuesFromPatch` in apimachinery's
pkg/util/strategicpatch/patch.go.
"""

from podkeeper.rules.patch.value import Json

DIRECTIVE = "$patch"
DELETE = "delete"
RETAIN_KEYS = "$retainKeys"
SET_ORDER = "$setElementOrder"
DELETE_FROM = "$deleteFromPrimitiveList"


def is_marked(value: Json) -> bool:
    """Return whether a value is an object with its own `$patch`."""
    return isinstance(value, dict) and DIRECTIVE in value


def is_deletion(item: Json) -> bool:
    """Return whether a list item only deletes the item with its merge key."""
    return isinstance(item, dict) and item.get(DIRECTIVE) == DELETE


def is_directive(key: str) -> bool:
    return key.startswith("$") and (key in (DIRECTIVE, RETAIN_KEYS) or key.startswith((SET_ORDER, DELETE_FROM)))


def without_nulls(value: Json) -> Json:
    """Remove members that are null, because there is nothing to delete. Nulls in lists stay."""
    match value:
        case dict():
            kept = {key: without_nulls(member) for key, member in value.items() if member is not None}
            return value if _unchanged(value, kept) else kept
        case list():
            return _changed_items(value, [without_nulls(item) for item in value])
        case _:
            return value


def without_marked(value: Json) -> Json:
    """Remove directives and the objects with `$patch`, because there is nothing to delete or replace."""
    match value:
        case dict():
            kept = {
                key: without_marked(member)
                for key, member in value.items()
                if not is_directive(key) and not is_marked(member)
            }
            return value if _unchanged(value, kept) else kept
        case list():
            return _changed_items(value, [without_marked(item) for item in value if not is_marked(item)])
        case _:
            return value


def without_directives(value: Json) -> Json:
    """Remove directives, but keep the objects that have them."""
    match value:
        case dict():
            kept = {key: without_directives(member) for key, member in value.items() if not is_directive(key)}
            return value if _unchanged(value, kept) else kept
        case list():
            return _changed_items(value, [without_directives(item) for item in value])
        case _:
            return value


def _unchanged(before: dict[str, Json], after: dict[str, Json]) -> bool:
    return len(before) == len(after) and all(after[key] is member for key, member in before.items())


def _changed_items(before: list[Json], after: list[Json]) -> list[Json]:
    same_items = len(before) == len(after) and all(old is new for old, new in zip(before, after, strict=True))
    return before if same_items else after
