"""Conflicts between two strategic merge patches of one object.

The result is the first field that both patches set to different values, or None. Merged lists are compared item by
item. Two patches may each add items to a list of scalars.

Kubelet counterpart: `MergingMapsHaveConflicts` in apimachinery's pkg/util/strategicpatch/patch.go.
"""

from podkeeper.model.field_path import FieldPath
from podkeeper.rules.patch.directives import DELETE_FROM, DIRECTIVE, RETAIN_KEYS
from podkeeper.rules.patch.items import holds_objects, identities_of, named
from podkeeper.rules.patch.schema import PLAIN, Field, Fields, fields_of
from podkeeper.rules.patch.value import Json, JsonObject, same


def conflict_between(left: JsonObject, right: JsonObject, fields: Fields, path: FieldPath = ()) -> FieldPath | None:
    """Return the path of the first field that both patches set to different values."""
    if left.get(DIRECTIVE) != right.get(DIRECTIVE):
        return path
    for key in left:
        if key in (DIRECTIVE, RETAIN_KEYS) or key.startswith(DELETE_FROM) or key not in right:
            continue
        found = _member_conflict(left[key], right[key], fields.get(key, PLAIN), (*path, key))
        if found is not None:
            return found
    return None


def _member_conflict(left: Json, right: Json, field: Field, path: FieldPath) -> FieldPath | None:
    if isinstance(left, dict) and isinstance(right, dict):
        if field.replaces and left.get(DIRECTIVE) == right.get(DIRECTIVE):
            return None  # the later one replaces the object, which apimachinery does not count as a conflict
        return conflict_between(left, right, fields_of(field.type), path)
    if isinstance(left, list) and isinstance(right, list):
        if field.merges:
            return _merged_list_conflict(left, right, field, path)
        return _atomic_list_conflict(left, right, field, path)
    return None if same(left, right) else path


def _merged_list_conflict(left: list[Json], right: list[Json], field: Field, path: FieldPath) -> FieldPath | None:
    if not holds_objects(path, left, right):
        return None
    theirs = dict(zip(identities_of(right, field.merge_key, path), right, strict=True))
    ours = dict(zip(identities_of(left, field.merge_key, path), left, strict=True))
    for identity, item in ours.items():
        other = theirs.get(identity)
        if isinstance(item, dict) and isinstance(other, dict):
            found = conflict_between(item, other, fields_of(field.type), named(path, field.merge_key, identity[1]))
            if found is not None:
                return found
    return None


def _atomic_list_conflict(left: list[Json], right: list[Json], field: Field, path: FieldPath) -> FieldPath | None:
    """Lists of objects conflict if an item does, lists of scalars if their values differ."""
    if same(left, right):
        return None
    if len(left) != len(right):
        return path
    if holds_objects(path, left, right):
        pairs = zip(left, right, strict=True)
        found = (_member_conflict(one, other, Field(field.type), path) for one, other in pairs)
        return next((conflict for conflict in found if conflict is not None), None)
    return None if set(identities_of(left, "", path)) == set(identities_of(right, "", path)) else path
