"""How a Kubernetes object lies on the wire: the base of every generated struct.

Three things look alike in JSON and are not: a field that is absent, a field that is
`null`, and a field that holds its zero (`0`, `false`, `""`, `[]`, `{}`).

* Optional fields are `T | None = None`. Absent and `null` both read as None (Go cannot
  tell them apart either); a zero stays a zero. None is not written.
* Fields the reference always writes (`ready: false`, `restartCount: 0`, `lastState: {}`)
  are `Filled[T]`: never None in Python. Absent or `null` reads as the zero, and the zero
  is written.
* The two of them meet in times that Go holds by value: `lastProbeTime: null` is written.

Every struct is frozen and `gc=False` (API objects are trees), so sharing replaces copying.
The generator that uses these names is `tools/generate_model.py`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import msgspec

T = TypeVar("T")

if TYPE_CHECKING:
    # What a reader of the field sees: never None, because `__post_init__` fills it.
    Filled = Annotated[T, "null on the wire reads as zero"]
else:
    # What the decoder accepts: Go takes `null` anywhere.
    Filled = Optional

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# What text must read as is marked here, and not checked by the decoder: an object from the API is taken as it
# is. Manifests are checked (`model.manifest`).

Time = Annotated[str, msgspec.Meta(extra={"reads_as": "time"})]
"""RFC 3339, whole seconds when the reference writes it; `model.times` reads and writes it."""

MicroTime = Annotated[str, msgspec.Meta(extra={"reads_as": "micro time"})]
"""RFC 3339 with exactly six digits of a second; `model.times` reads and writes it."""

QuantityLike = Annotated[str | int | float, msgspec.Meta(extra={"reads_as": "quantity"})]
"""A quantity as it came; `model.quantity` gives it a value."""

IntOrString = int | str

Base64 = Annotated[str, msgspec.Meta(extra={"reads_as": "base64"})]
"""Bytes as standard base64. Kept as text: manifests fold it over lines, which Go forgives."""

JSONObject = dict[str, Any]


class Wire(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One object, or a part of one, as the Kubernetes API describes it."""


# The zeros. Functions of our own, because msgspec takes a built-in `tuple` or `dict`
# factory for a default that need not be written.


def null() -> None:
    """The zero of a time held by value: written as `null`."""
    return


def zero_quantity() -> str:
    """The zero of a quantity held by value."""
    return "0"


def empty_list() -> tuple[Any, ...]:
    """The zero of a list that is always written."""
    return ()


def empty_map() -> dict[str, Any]:
    """The zero of a map that is always written."""
    return {}


def fill(struct: Wire) -> None:
    """Replace each `null` in an always-written field by its zero."""
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT and getattr(struct, field.name) is None:
            msgspec.structs.force_setattr(struct, field.name, field.default_factory())
