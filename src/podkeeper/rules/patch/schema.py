"""How strategic merge patch treats each field, from the generated table.

The table (`model/k8s/patch_schema.py`) lists only special fields and those that lead to special ones. Any other field
is `PLAIN`: objects are merged, lists and scalars replaced. In Go, merging an object in an unknown field is an error.
Here, a field that is newer than the table is merged like a plain one.

Kubelet counterpart: `PatchMetaFromStruct` in apimachinery's pkg/util/strategicpatch/meta.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from podkeeper.model.k8s.patch_schema import KINDS, TYPES
from podkeeper.rules.patch.errors import UnsupportedKind


@dataclass(frozen=True, slots=True)
class Field:
    """A field: the type of its value or of its list items, and its patch strategy."""

    type: str = ""  # "": nothing inside is special
    merges: bool = False  # a list that is merged item by item
    replaces: bool = False  # an object that is replaced as a whole
    retain_keys: bool = False  # `$retainKeys` in a patch lists the members that stay
    merge_key: str = ""  # identifies an item of a merged list of objects; "" for scalars


Fields: TypeAlias = Mapping[str, Field]

PLAIN = Field()


@cache
def fields_of(type_name: str) -> Fields:
    return {
        name: Field(target, "merge" in (how := strategies.split(",")), "replace" in how, "retainKeys" in how, key)
        for name, (target, strategies, key) in TYPES.get(type_name, {}).items()
    }


def fields_of_kind(kind: str) -> Fields:
    """Return the special fields of a kind ("apps/v1/Deployment", "v1/Pod") or of a type ("core.v1.PodSpec")."""
    name = KINDS.get(kind, kind)
    if name not in TYPES:
        raise UnsupportedKind(
            f"cannot use a strategic merge patch on {kind}: only built-in kinds support it; "
            "use a JSON merge patch (application/merge-patch+json)"
        )
    return fields_of(name)
