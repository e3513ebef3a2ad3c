"""Merging a strategic merge patch into an object, or into another patch.

Into an object, directives are obeyed and vanish:

    $patch: delete | replace            of this object; in a list: of the item, or of the whole list
    $retainKeys: [...]                  no other member may stay
    $setElementOrder/<list>: [...]      the order the list must have
    $deleteFromPrimitiveList/<list>     scalars to take out of the list
    <member>: null                      take the member out

Into another patch (`Onto.PATCH`, a step of the three-way diff), directives and nulls are carried over.

What a patch adds as a whole comes without directives; the reference leaves some of them in and loses them
when it decodes the result into its own types, which our store of plain JSON does not do. Where the
reference's result hangs on the random order of Go's maps, deletions come first here.
The Go ancestor is `mergeMap` in apimachinery's pkg/util/strategicpatch/patch.go.
"""

from enum import Enum

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
from podkeeper.rules.patch.value import Json, JsonObject, Path, dotted, same, type_name


class Onto(Enum):
    """What a patch is merged into."""

    OBJECT = "an object: directives are obeyed"
    PATCH = "another patch: directives are kept"


def merged_objects(original: JsonObject, patch: JsonObject, fields: Fields, onto: Onto, path: Path) -> JsonObject:
    """The original with the patch merged in."""
    if not patch:
        return original
    if DIRECTIVE in patch:
        return _obeying(patch, path)
    result, rest = dict(original), dict(patch)
    if RETAIN_KEYS in rest:
        _retain_keys(result, rest, onto, path)
    for key in [key for key in rest if key.startswith(SET_ORDER)]:
        _merge_ordered_list(result, rest, key, fields, onto, path)
    for key in [key for key in rest if key.startswith(DELETE_FROM)]:
        _delete_from_list(result, key, rest.pop(key), onto, path)
    for key, value in rest.items():
        _merge_member(result, key, value, fields, onto, (*path, key))
    return result


def _obeying(patch: JsonObject, path: Path) -> JsonObject:
    """What `$patch` makes of an object that exists."""
    match patch[DIRECTIVE]:
        case "replace":
            return {key: without_directives(value) for key, value in patch.items() if not is_directive(key)}
        case "delete":
            return {}
        case directive:
            raise PatchError(
                f"cannot obey $patch {directive!r}: 'delete' or 'replace' is expected; "
                "without $patch, objects are merged",
                dotted((*path, DIRECTIVE)),
            )


def _merge_member(result: JsonObject, key: str, value: Json, fields: Fields, onto: Onto, path: Path) -> None:
    """Merge one member of a patch that is no directive."""
    if value is None:
        result.pop(key, None)
        if onto is Onto.PATCH:
            result[key] = None
        return
    current = result.get(key)
    field = fields.get(key, PLAIN)
    if type(current) is not type(value):
        result.pop(key, None)
        if onto is Onto.PATCH:
            result[key] = value
        elif not is_marked(value):
            result[key] = without_marked(without_nulls(value))
    elif isinstance(value, dict) and isinstance(current, dict):
        if field.replaces:
            result[key] = without_directives(value)
        else:
            result[key] = merged_objects(current, value, fields_of(field.type), onto, path)
    elif isinstance(value, list) and isinstance(current, list):
        result[key] = _merged_lists(current, value, field, onto, path)
    else:
        result[key] = value


def _retain_keys(result: JsonObject, rest: JsonObject, onto: Onto, path: Path) -> None:
    """Obey `$retainKeys`: drop every member it does not name."""
    names = rest.pop(RETAIN_KEYS)
    here = dotted((*path, RETAIN_KEYS))
    if onto is Onto.PATCH:
        if not same(result.setdefault(RETAIN_KEYS, names), names):
            raise PatchError("cannot merge two patches that retain different members", here)
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PatchError("cannot retain members: a list of their names is expected", here)
    retained = set(names)
    for key, value in rest.items():
        if value is not None and key not in retained and not key.startswith((DELETE_FROM, SET_ORDER)):
            raise PatchError(f"cannot retain only the listed members: the patch sets {key!r}, list it as well", here)
    for key in [key for key in result if key not in retained]:
        del result[key]


def _list_named(directive: str, prefix: str, path: Path) -> str:
    """The list that a directive such as `$setElementOrder/finalizers` is about."""
    head, slash, name = directive.partition("/")
    if head != prefix or not slash or not name:
        raise PatchError(f"cannot obey {directive!r}: {prefix}/<list> is expected", dotted((*path, directive)))
    return name


def _list_or_none(members: JsonObject, name: str, path: Path) -> list[Json] | None:
    """A member that must be a list when it is there."""
    if name not in members:
        return None
    value = members[name]
    if not isinstance(value, list):
        raise PatchError(f"cannot order: it is {type_name(value)}, a list is expected", dotted((*path, name)))
    return value


def _delete_from_list(result: JsonObject, directive: str, unwanted: Json, onto: Onto, path: Path) -> None:
    """Obey `$deleteFromPrimitiveList`. A list that is not there is fine; null takes the whole list out."""
    if onto is Onto.PATCH:
        result[directive] = unwanted
        return
    name = _list_named(directive, DELETE_FROM, path)
    here = (*path, directive)
    if unwanted is None:
        result.pop(name, None)
        return
    if not isinstance(unwanted, list):
        raise PatchError(f"cannot delete: it is {type_name(unwanted)}, a list is expected", dotted(here))
    current = result.get(name)
    if not isinstance(current, list):
        return
    if holds_objects(here, current, unwanted):
        raise PatchError(
            "cannot delete from a list of objects this way: patch its items with $patch: delete", dotted(here)
        )
    gone = set(identities_of(unwanted, "", here))
    identities = identities_of(current, "", here)
    result[name] = [item for item, identity in zip(current, identities, strict=True) if identity not in gone]


def _merge_ordered_list(
    result: JsonObject, rest: JsonObject, directive: str, fields: Fields, onto: Onto, path: Path
) -> None:
    """Obey `$setElementOrder`: merge the list it names, if any, and put the outcome in that order."""
    order = rest.pop(directive)
    if not isinstance(order, list):
        raise PatchError(f"cannot order: it is {type_name(order)}, a list is expected", dotted((*path, directive)))
    name = _list_named(directive, SET_ORDER, path)
    if onto is Onto.PATCH and not same(result.setdefault(directive, order), order):
        raise PatchError("cannot merge two patches that want different orders", dotted((*path, directive)))
    here, field = (*path, name), fields.get(name, PLAIN)
    server, added = _list_or_none(result, name, path), _list_or_none(rest, name, path)
    if server is None and added is None:
        return
    wanted = identities_of(order, field.merge_key, (*path, directive))
    if added and wanted:
        _check_order_covers(added, wanted, field.merge_key, here)
    if added is None:
        merged = server or []
    elif server is None and onto is Onto.PATCH:
        merged = added
    elif server is None:
        merged = [without_marked(item) for item in added if not is_marked(item)]
    else:
        merged = _merged_lists(server, added, field, onto, here)
    gone = set(identities_of(filter(is_deletion, added or ()), field.merge_key, here))
    standing = [one for one in identities_of(server or (), field.merge_key, here) if one not in gone]
    result[name] = arranged(merged, wanted, standing, field.merge_key, here)
    rest.pop(name, None)


def _check_order_covers(added: list[Json], wanted: list[Identity], merge_key: str, path: Path) -> None:
    """Refuse a list whose items, deletions apart, are not all in `$setElementOrder` and in that order."""
    at = 0
    for index, item in enumerate(added):
        if is_deletion(item) or (is_marked(item) and at < len(wanted)):
            continue  # like the reference, which overlooks a marked item unless the order list has run out
        identity = None if is_marked(item) else identity_of(item, merge_key, path, index)
        while at < len(wanted) and wanted[at] != identity:
            at += 1
        if at == len(wanted):
            here = dotted((*path, f"[{index}]"))
            raise PatchError(f"cannot order: this item is not in {SET_ORDER}, or not in that order", here)
        at += 1


def _merged_lists(original: list[Json], patch: list[Json], field: Field, onto: Onto, path: Path) -> list[Json]:
    """Two lists merged as the field's strategy says; an atomic list is replaced."""
    if not field.merges:
        return [without_directives(item) for item in patch] if onto is Onto.OBJECT else patch
    if not original and not patch:
        return original
    key = field.merge_key
    if not holds_objects(path, original, patch):
        server, wanted = identities_of(original, key, path), identities_of(patch, key, path)
        unique: list[Json] = [value for _, value in dict.fromkeys([*server, *wanted])]
        return arranged(unique, wanted, server, key, path)
    if not key:
        raise PatchError("cannot merge: scalars are expected in this list, not objects", dotted(path))
    original, patch = _obeying_items(original, patch, key, path)
    server, wanted = identities_of(original, key, path), identities_of(patch, key, path)
    return arranged(_merged_items(original, patch, field, onto, path), wanted, server, key, path)


def _obeying_items(
    original: list[Json], patch: list[Json], merge_key: str, path: Path
) -> tuple[list[Json], list[Json]]:
    """Obey the `$patch` of items: the list they leave to be patched, and the ordinary items of the patch."""
    ordinary: list[Json] = []
    gone: set[Identity] = set()
    replaced = False
    for index, item in enumerate(patch):
        if not isinstance(item, dict) or DIRECTIVE not in item:
            ordinary.append(item)
            continue
        match item[DIRECTIVE]:
            case "delete":
                gone.add(identity_of(item, merge_key, path, index))
            case "replace":
                replaced = True
            case directive:
                raise PatchError(
                    f"cannot obey $patch {directive!r}: 'delete' (an item) or 'replace' (the list) is expected; "
                    "without $patch, items are merged",
                    dotted((*path, f"[{index}]", DIRECTIVE)),
                )
    if replaced:
        return [without_directives(item) for item in ordinary], []
    if gone:
        identities = identities_of(original, merge_key, path)
        original = [item for item, identity in zip(original, identities, strict=True) if identity not in gone]
    return original, ordinary


def _merged_items(original: list[Json], patch: list[Json], field: Field, onto: Onto, path: Path) -> list[Json]:
    """Merge each item of the patch into its namesake, or append it."""
    key = field.merge_key
    result = list(original)
    places = positions_of(identities_of(original, key, path))
    for item, identity in zip(patch, identities_of(patch, key, path), strict=True):
        place = places.setdefault(identity, len(result))
        if place == len(result):
            result.append(without_directives(item) if onto is Onto.OBJECT else item)
            continue
        current = result[place]
        if isinstance(current, dict) and isinstance(item, dict):
            here = named(path, key, identity[1])
            result[place] = merged_objects(current, item, fields_of(field.type), onto, here)
    return result
