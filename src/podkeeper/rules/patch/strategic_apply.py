"""Merge a strategic merge patch into an object, or into another patch.

Into an object, directives are executed and removed:

    $patch: delete | replace            this object; in a list: the item, or the whole list
    $retainKeys: [...]                  remove all other members
    $setElementOrder/<list>: [...]      the order of the list
    $deleteFromPrimitiveList/<list>     scalars to remove from the list
    <member>: null                      remove the member

Into another patch (`MergeTarget.PATCH`, a step of the three-way diff), directives and nulls are kept.

A value that a patch adds as a whole is added without directives. apimachinery leaves some of them in and loses them
when it decodes the result into typed objects. Our store of plain JSON has no such step. Where apimachinery's result
depends on the random order of Go's maps, deletions come first here.

Kubelet counterpart: `mergeMap` in apimachinery's pkg/util/strategicpatch/patch.go.
"""

from enum import Enum

from podkeeper.model.field_path import FieldPath
from podkeeper.rules.patch.directives import (
    DELETE_FROM,
    DIRECTIVE,
    RETAIN_KEYS,
    SET_ORDER,
    is_deletion,
    is_directive,
    is_marked,
    without_directives,
    without_marked,
    without_nulls,
)
from podkeeper.rules.patch.errors import PatchError
from podkeeper.rules.patch.items import (
    Identity,
    arranged,
    holds_objects,
    identities_of,
    identity_of,
    named,
    positions_of,
)
from podkeeper.rules.patch.schema import PLAIN, Field, Fields, fields_of
from podkeeper.rules.patch.value import Json, JsonObject, dotted, same, type_name


class MergeTarget(Enum):
    """What a patch is merged into."""

    OBJECT = "an object: directives are executed"
    PATCH = "another patch: directives are kept"


def merged_objects(
    original: JsonObject, patch: JsonObject, fields: Fields, target: MergeTarget, path: FieldPath
) -> JsonObject:
    """Return the original with the patch merged in."""
    if not patch:
        return original
    if DIRECTIVE in patch:
        return _execute_directive(patch, path)
    result, rest = dict(original), dict(patch)
    if RETAIN_KEYS in rest:
        _retain_keys(result, rest, target, path)
    for key in [key for key in rest if key.startswith(SET_ORDER)]:
        _merge_ordered_list(result, rest, key, fields, target, path)
    for key in [key for key in rest if key.startswith(DELETE_FROM)]:
        _delete_from_list(result, key, rest.pop(key), target, path)
    for key, value in rest.items():
        _merge_member(result, key, value, fields, target, (*path, key))
    return result


def _execute_directive(patch: JsonObject, path: FieldPath) -> JsonObject:
    """Execute the `$patch` of an existing object."""
    match patch[DIRECTIVE]:
        case "replace":
            return {key: without_directives(value) for key, value in patch.items() if not is_directive(key)}
        case "delete":
            return {}
        case directive:
            raise PatchError(
                f"cannot execute $patch {directive!r}: expected 'delete' or 'replace'; "
                "without $patch, objects are merged",
                dotted((*path, DIRECTIVE)),
            )


def _merge_member(
    result: JsonObject, key: str, value: Json, fields: Fields, target: MergeTarget, path: FieldPath
) -> None:
    """Merge one member of a patch that is not a directive."""
    if value is None:
        result.pop(key, None)
        if target is MergeTarget.PATCH:
            result[key] = None
        return
    current = result.get(key)
    field = fields.get(key, PLAIN)
    if type(current) is not type(value):
        result.pop(key, None)
        if target is MergeTarget.PATCH:
            result[key] = value
        elif not is_marked(value):
            result[key] = without_marked(without_nulls(value))
    elif isinstance(value, dict) and isinstance(current, dict):
        if field.replaces:
            result[key] = without_directives(value)
        else:
            result[key] = merged_objects(current, value, fields_of(field.type), target, path)
    elif isinstance(value, list) and isinstance(current, list):
        result[key] = _merged_lists(current, value, field, target, path)
    else:
        result[key] = value


def _retain_keys(result: JsonObject, rest: JsonObject, target: MergeTarget, path: FieldPath) -> None:
    """Execute `$retainKeys`: remove every member that it does not list."""
    names = rest.pop(RETAIN_KEYS)
    here = dotted((*path, RETAIN_KEYS))
    if target is MergeTarget.PATCH:
        if not same(result.setdefault(RETAIN_KEYS, names), names):
            raise PatchError("cannot merge two patches that retain different members", here)
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PatchError("cannot execute $retainKeys: expected a list of member names", here)
    retained = set(names)
    for key, value in rest.items():
        if value is not None and key not in retained and not key.startswith((DELETE_FROM, SET_ORDER)):
            raise PatchError(f"cannot execute $retainKeys: the patch sets {key!r}, so add it to the list", here)
    for key in [key for key in result if key not in retained]:
        del result[key]


def _list_named(directive: str, prefix: str, path: FieldPath) -> str:
    """Return the list that a directive such as `$setElementOrder/finalizers` applies to."""
    head, slash, name = directive.partition("/")
    if head != prefix or not slash or not name:
        raise PatchError(f"cannot execute {directive!r}: expected {prefix}/<list>", dotted((*path, directive)))
    return name


def _list_or_none(members: JsonObject, name: str, path: FieldPath) -> list[Json] | None:
    """Return a member that must be a list if it exists."""
    if name not in members:
        return None
    value = members[name]
    if not isinstance(value, list):
        raise PatchError(f"cannot order the list: it is {type_name(value)}, expected a list", dotted((*path, name)))
    return value


def _delete_from_list(result: JsonObject, directive: str, unwanted: Json, target: MergeTarget, path: FieldPath) -> None:
    """Execute `$deleteFromPrimitiveList`. A missing list is fine. Null removes the whole list."""
    if target is MergeTarget.PATCH:
        result[directive] = unwanted
        return
    name = _list_named(directive, DELETE_FROM, path)
    here = (*path, directive)
    if unwanted is None:
        result.pop(name, None)
        return
    if not isinstance(unwanted, list):
        raise PatchError(
            f"cannot execute $deleteFromPrimitiveList: it is {type_name(unwanted)}, expected a list", dotted(here)
        )
    current = result.get(name)
    if not isinstance(current, list):
        return
    if holds_objects(here, current, unwanted):
        raise PatchError(
            "cannot execute $deleteFromPrimitiveList on a list of objects: use $patch: delete in its items",
            dotted(here),
        )
    deleted = set(identities_of(unwanted, "", here))
    identities = identities_of(current, "", here)
    result[name] = [item for item, identity in zip(current, identities, strict=True) if identity not in deleted]


def _merge_ordered_list(
    result: JsonObject, rest: JsonObject, directive: str, fields: Fields, target: MergeTarget, path: FieldPath
) -> None:
    """Execute `$setElementOrder`: merge the list it names, if any, and sort the result."""
    order = rest.pop(directive)
    if not isinstance(order, list):
        raise PatchError(
            f"cannot execute $setElementOrder: it is {type_name(order)}, expected a list", dotted((*path, directive))
        )
    name = _list_named(directive, SET_ORDER, path)
    if target is MergeTarget.PATCH and not same(result.setdefault(directive, order), order):
        raise PatchError("cannot merge two patches that require different orders", dotted((*path, directive)))
    here, field = (*path, name), fields.get(name, PLAIN)
    server, added = _list_or_none(result, name, path), _list_or_none(rest, name, path)
    if server is None and added is None:
        return
    wanted = identities_of(order, field.merge_key, (*path, directive))
    if added and wanted:
        _check_order_covers(added, wanted, field.merge_key, here)
    if added is None:
        merged = server or []
    elif server is None and target is MergeTarget.PATCH:
        merged = added
    elif server is None:
        merged = [without_marked(item) for item in added if not is_marked(item)]
    else:
        merged = _merged_lists(server, added, field, target, here)
    deleted = set(identities_of(filter(is_deletion, added or ()), field.merge_key, here))
    remaining = [one for one in identities_of(server or (), field.merge_key, here) if one not in deleted]
    result[name] = arranged(merged, wanted, remaining, field.merge_key, here)
    rest.pop(name, None)


def _check_order_covers(added: list[Json], wanted: list[Identity], merge_key: str, path: FieldPath) -> None:
    """Reject a list whose items, except deletions, are not all in `$setElementOrder` and in that order."""
    at = 0
    for index, item in enumerate(added):
        if is_deletion(item) or (is_marked(item) and at < len(wanted)):
            continue  # as in apimachinery, which skips a marked item unless the order list is exhausted
        identity = None if is_marked(item) else identity_of(item, merge_key, path, index)
        while at < len(wanted) and wanted[at] != identity:
            at += 1
        if at == len(wanted):
            here = dotted((*path, f"[{index}]"))
            raise PatchError(f"cannot order: this item is not in {SET_ORDER}, or not in that order", here)
        at += 1


def _merged_lists(
    original: list[Json], patch: list[Json], field: Field, target: MergeTarget, path: FieldPath
) -> list[Json]:
    """Merge two lists with the field's strategy. An atomic list is replaced."""
    if not field.merges:
        return [without_directives(item) for item in patch] if target is MergeTarget.OBJECT else patch
    if not original and not patch:
        return original
    key = field.merge_key
    if not holds_objects(path, original, patch):
        server, wanted = identities_of(original, key, path), identities_of(patch, key, path)
        unique: list[Json] = [value for _, value in dict.fromkeys([*server, *wanted])]
        return arranged(unique, wanted, server, key, path)
    if not key:
        raise PatchError("cannot merge: the list contains objects, expected scalars", dotted(path))
    original, patch = _execute_item_directives(original, patch, key, path)
    server, wanted = identities_of(original, key, path), identities_of(patch, key, path)
    return arranged(_merged_items(original, patch, field, target, path), wanted, server, key, path)


def _execute_item_directives(
    original: list[Json], patch: list[Json], merge_key: str, path: FieldPath
) -> tuple[list[Json], list[Json]]:
    """Execute the `$patch` of items. Return the remaining list and the ordinary items of the patch."""
    ordinary: list[Json] = []
    deleted: set[Identity] = set()
    replaced = False
    for index, item in enumerate(patch):
        if not isinstance(item, dict) or DIRECTIVE not in item:
            ordinary.append(item)
            continue
        match item[DIRECTIVE]:
            case "delete":
                deleted.add(identity_of(item, merge_key, path, index))
            case "replace":
                replaced = True
            case directive:
                raise PatchError(
                    f"cannot execute $patch {directive!r}: expected 'delete' (an item) or 'replace' (the list); "
                    "without $patch, items are merged",
                    dotted((*path, f"[{index}]", DIRECTIVE)),
                )
    if replaced:
        return [without_directives(item) for item in ordinary], []
    if deleted:
        identities = identities_of(original, merge_key, path)
        original = [item for item, identity in zip(original, identities, strict=True) if identity not in deleted]
    return original, ordinary


def _merged_items(
    original: list[Json], patch: list[Json], field: Field, target: MergeTarget, path: FieldPath
) -> list[Json]:
    """Merge each item of the patch into the item with its merge key, or append it."""
    key = field.merge_key
    result = list(original)
    places = positions_of(identities_of(original, key, path))
    for item, identity in zip(patch, identities_of(patch, key, path), strict=True):
        place = places.setdefault(identity, len(result))
        if place == len(result):
            result.append(without_directives(item) if target is MergeTarget.OBJECT else item)
            continue
        current = result[place]
        if isinstance(current, dict) and isinstance(item, dict):
            here = named(path, key, identity[1])
            result[place] = merged_objects(current, item, fields_of(field.type), target, here)
    return result
