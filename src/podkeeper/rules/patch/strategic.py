"""Strategic merge patch: apply one, or create one from two or three versions.

A kind is `apiVersion/kind` ("v1/Pod", "apps/v1/Deployment") or a type of the generated table ("core.v1.PodSpec"). For
all objects without nulls and without duplicates in merged lists, `apply(a, two_way_diff(a, b))` is `b`.

Kubelet counterparts: `StrategicMergePatch`, `CreateTwoWayMergePatch` and `CreateThreeWayMergePatch` in apimachinery's
pkg/util/strategicpatch/patch.go.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from podkeeper.rules.patch.conflict import conflict_between
from podkeeper.rules.patch.errors import PatchConflict, PreconditionFailed
from podkeeper.rules.patch.schema import fields_of_kind
from podkeeper.rules.patch.strategic_apply import MergeTarget, merged_objects
from podkeeper.rules.patch.strategic_diff import Parts, diff_of_objects
from podkeeper.rules.patch.value import Json, JsonObject, check_depth, dotted, object_of

Precondition: TypeAlias = Callable[[JsonObject], bool]
"""Returns whether a computed patch may be sent."""


def apply(original: Json, patch: Json, kind: str) -> JsonObject:
    fields = fields_of_kind(kind)
    old, change = object_of(original, "the original"), object_of(patch, "the patch")
    check_depth(change, "the patch")
    return merged_objects(old, change, fields, MergeTarget.OBJECT, ())


def two_way_diff(original: Json, modified: Json, kind: str, preconditions: Iterable[Precondition] = ()) -> JsonObject:
    """Return the patch that turns the original into the modified object."""
    fields = fields_of_kind(kind)
    old, new = object_of(original, "the original"), object_of(modified, "the modified object")
    patch = diff_of_objects(old, new, fields, Parts())
    _check(patch, preconditions)
    return patch


def three_way_diff(
    original: Json,
    modified: Json,
    current: Json,
    kind: str,
    *,
    overwrite: bool = True,
    preconditions: Iterable[Precondition] = (),
) -> JsonObject:
    """Return the patch that turns `current` into `modified` and deletes only members of `original` (applied last time).

    Without `overwrite`, a field that changed differently between original and current raises `PatchConflict`.
    """
    fields = fields_of_kind(kind)
    old, new = object_of(original, "the original"), object_of(modified, "the modified object")
    now = object_of(current, "the current object")
    delta = diff_of_objects(now, new, fields, Parts(deletions=False))
    deletions = diff_of_objects(old, new, fields, Parts(changes=False))
    patch = merged_objects(deletions, delta, fields, MergeTarget.PATCH, ())
    _check(patch, preconditions)
    if not overwrite:
        changed = diff_of_objects(old, now, fields, Parts(order=False))
        conflict = conflict_between(patch, changed, fields)
        if conflict is not None:
            raise PatchConflict("cannot patch: the field has changed since the last apply", dotted(conflict))
    return patch


def _check(patch: JsonObject, preconditions: Iterable[Precondition]) -> None:
    if not all(holds(patch) for holds in preconditions):
        raise PreconditionFailed(
            f"cannot patch: a precondition does not hold for {', '.join(patch) or 'an empty patch'}"
        )
