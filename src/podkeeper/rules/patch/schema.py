"""How strategic merge patch treats each field: the generated table, made ready for use.

The table (`model/k8s/patch_schema.py`) lists only fields that are special or lead to special ones. Any
other field is `PLAIN`: objects are merged, lists and scalars replaced. So unlike in Go, where an unknown
field is an error as soon as an object in it must be merged, a field that is newer than our table is merged
like a plain one. The Go ancestor is `PatchMetaFromStruct` in apimachinery's pkg/util/strategicpatch/meta.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from podkeeper.model.k8s.patch_schema import KINDS, TYPES
from podkeeper.rules.patch.errors import UnsupportedKind


@dataclass(frozen=True, slots=True)
class Field:
    """One field: the type of its value (or of its list's items), and how a patch of it is meant."""

    type: str = ""  # empty: nothing inside is special
    merges: bool = False  # a list that is merged item by item
    replaces: bool = False  # an object that is replaced as a whole
    retain_keys: bool = False  # patches name, in `$retainKeys`, the only members that may stay
    merge_key: str = ""  # what identifies an item of a merged list of objects; empty for scalars


Fields: TypeAlias = Mapping[str, Field]

PLAIN = Field()


@cache
def fields_of(type_name: str) -> Fields:
    """The special fields of a type."""
    return {
        name: Field(target, "merge" in (how := strategies.split(",")), "replace" in how, "retainKeys" in how, key)
        for name, (target, strategies, key) in TYPES.get(type_name, {}).items()
    }


def fields_of_kind(kind: str) -> Fields:
    """The special fields of a kind ("apps/v1/Deployment", "v1/Pod") or of a type of the table ("core.v1.PodSpec")."""
    name = KINDS.get(kind, kind)
    if name not in TYPES:
        raise UnsupportedKind(
            f"cannot use a strategic merge patch on {kind}: only built-in kinds have one; "
            "use a JSON merge patch (application/merge-patch+json)"
        )
    return fields_of(name)
