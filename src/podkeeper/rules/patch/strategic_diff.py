"""The difference of two objects as a strategic merge patch.

The patch contains changed members, null for removed ones, and for lists merged by key the changed items,
`$patch: delete` for removed ones and `$setElementOrder`. `Parts` selects the parts, because the three-way diff needs
deletions and changes separately. Identical parts (the same object) are skipped, so the diff of two versions that share
structure is cheap.

The patch equals that of apimachinery, with two exceptions. apimachinery compares a list of scalars with a sorted copy,
so it writes an order that did not change and misses one that did. And it always writes an object whose strategy is
`replace`. Here both are written only if they changed.

Kubelet counterpart: `diffMaps` in apimachinery's pkg/util/strategicpatch/patch.go.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest

from podkeeper.model.field_path import FieldPath
from podkeeper.rules.patch.directives import DELETE, DELETE_FROM, DIRECTIVE, RETAIN_KEYS, SET_ORDER
from podkeeper.rules.patch.errors import PatchError
from podkeeper.rules.patch.items import Identity, holds_objects, identities_of, identity_of, named, positions_of
from podkeeper.rules.patch.schema import PLAIN, Field, Fields, fields_of
from podkeeper.rules.patch.value import ABSENT, MAX_DEPTH, Json, JsonObject, check_levels, dotted, same


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts of a difference to write."""

    changes: bool = True  # including additions
    deletions: bool = True
    order: bool = True


def diff_of_objects(
    original: JsonObject,
    modified: JsonObject,
    fields: Fields,
    parts: Parts,
    path: FieldPath = (),
    retain_keys: bool = False,
) -> JsonObject:
    """Return the patch that turns one object into the other."""
    check_levels(MAX_DEPTH - len(path))
    patch: JsonObject = {}
    for key, new in modified.items():
        old = original.get(key, ABSENT)
        if old is new:
            continue
        if type(old) is not type(new):
            if parts.changes:
                patch[key] = new
        elif isinstance(old, dict) and isinstance(new, dict):
            _diff_object_member(patch, key, old, new, fields.get(key, PLAIN), parts, (*path, key))
        elif isinstance(old, list) and isinstance(new, list):
            field = fields.get(key, PLAIN)
            if same(old, new):
                continue
            if field.merges:
                _diff_merged_list(patch, key, old, new, field, parts, (*path, key))
            elif parts.changes:
                patch[key] = new
        elif parts.changes and old != new:
            patch[key] = new
    removed = [key for key in original if key not in modified]
    if parts.deletions:
        for key in removed:
            patch[key] = None
    if retain_keys and (patch or any(original[key] is not None for key in removed)):
        retained: list[Json] = [*sorted(key for key, value in modified.items() if value is not None)]
        if retained:
            patch[RETAIN_KEYS] = retained
    return patch


def _diff_object_member(
    patch: JsonObject, key: str, old: JsonObject, new: JsonObject, field: Field, parts: Parts, path: FieldPath
) -> None:
    """Write the difference of a member that is an object in both."""
    if field.replaces:
        if parts.changes and not same(old, new):
            patch[key] = new
        return
    inner = diff_of_objects(old, new, fields_of(field.type), parts, path, field.retain_keys)
    if inner:
        patch[key] = inner


def _diff_merged_list(
    patch: JsonObject, key: str, old: list[Json], new: list[Json], field: Field, parts: Parts, path: FieldPath
) -> None:
    if not old:
        if parts.changes:
            patch[key] = new
        return
    if not holds_objects(path, old, new):
        _diff_scalars(patch, key, old, new, parts, path)
        return
    if not field.merge_key:
        raise PatchError("cannot diff: the list contains objects, expected scalars", dotted(path))
    old_names, new_names = identities_of(old, field.merge_key, path), identities_of(new, field.merge_key, path)
    changed, deleted = _changed_items(_by_text(old, old_names), _by_text(new, new_names), field, parts, path)
    places = positions_of(new_names)
    changed.sort(key=lambda item: places[identity_of(item, field.merge_key, path, 0)])
    listed: list[Json] = [*changed, *deleted]
    if listed:
        patch[key] = listed
    reordered = parts.changes and old_names != new_names
    if parts.order and new and (listed or reordered):
        patch[f"{SET_ORDER}/{key}"] = [{field.merge_key: value} for _, value in new_names]


def _diff_scalars(patch: JsonObject, key: str, old: list[Json], new: list[Json], parts: Parts, path: FieldPath) -> None:
    """Write the difference of a merged list of scalars, which is an ordered set."""
    left = Counter(identities_of(old, "", path))
    added: list[Json] = []
    for identity in identities_of(new, "", path):
        if left[identity] > 0:
            left[identity] -= 1
        else:
            added.append(identity[1])
    deleted: list[Json] = [value for _, value in sorted(+left, key=_text)]
    if added and parts.changes:
        patch[key] = added
    if deleted and parts.deletions:
        patch[f"{DELETE_FROM}/{key}"] = deleted
    if parts.order and new and (parts.changes or deleted):
        patch[f"{SET_ORDER}/{key}"] = new


def _by_text(items: list[Json], names: list[Identity]) -> dict[str, list[JsonObject]]:
    """Group objects by the text of their merge key. Duplicates are in reverse order, as after Go's sort."""
    groups: dict[str, list[JsonObject]] = {}
    for item, name in zip(reversed(items), reversed(names), strict=True):
        if isinstance(item, dict):
            groups.setdefault(_text(name), []).append(item)
    return groups


def _changed_items(
    old: dict[str, list[JsonObject]], new: dict[str, list[JsonObject]], field: Field, parts: Parts, path: FieldPath
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return changed or new items, and directives that delete removed ones. Duplicates are compared in pairs."""
    changed: list[JsonObject] = []
    deleted: list[JsonObject] = []
    key = field.merge_key
    for text in sorted({*old, *new}):
        for before, after in zip_longest(old.get(text, ()), new.get(text, ())):
            if before is None:
                if parts.changes:
                    changed.append(after)
            elif after is None:
                if parts.deletions:
                    deleted.append({key: before[key], DIRECTIVE: DELETE})
            elif before is not after:
                here = named(path, key, text)
                inner = diff_of_objects(before, after, fields_of(field.type), parts, here, field.retain_keys)
                if inner:
                    inner[key] = after[key]
                    changed.append(inner)
    return changed, deleted


def _text(identity: Identity) -> str:
    """Return the text that apimachinery sorts by: 443 comes before 80."""
    value = identity[1]
    return str(value).lower() if isinstance(value, bool) else str(value)
