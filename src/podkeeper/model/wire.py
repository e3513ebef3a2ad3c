"""The wire format of Kubernetes objects: the base class of all structs.

Three things look similar in JSON but differ: an absent field, a field that is `null`, and a field with its zero value
(`0`, `false`, `""`, `[]`, `{}`).

* Optional fields are `T | None = None`. Absent and `null` both decode to None, because Go cannot distinguish them. A
  zero stays a zero. None is not written.
* Fields that the kubelet always writes (`ready: false`, `restartCount: 0`, `lastState: {}`) are `Filled[T]`: never None
  in Python. Absent or `null` decodes to the zero value, and the zero value is written.
* Times that Go holds by value are the exception: `lastProbeTime: null` is written.

Every struct is frozen, so parts can be shared instead of copied. `gc=False` is safe, because API objects are trees
without cycles. `tools/generate_model.py` generates code that uses these names.
"""

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import msgspec

T = TypeVar("T")

if TYPE_CHECKING:
    # For readers of the field: never None, because `__post_init__` fills it.
    Filled = Annotated[T, "null on the wire reads as zero"]
else:
    # For the decoder, because Go accepts `null` everywhere.
    Filled = Optional

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# The format of a text is only marked here. The decoder does not check it, because objects from the API are valid.
# `model.manifest` checks manifests.

Time = Annotated[str, msgspec.Meta(extra={"reads_as": "time"})]
"""RFC 3339, with whole seconds if the kubelet writes it. `model.times` parses and formats it."""

MicroTime = Annotated[str, msgspec.Meta(extra={"reads_as": "micro time"})]
"""RFC 3339 with exactly six digits of a second. `model.times` parses and formats it."""

QuantityLike = Annotated[str | int | float, msgspec.Meta(extra={"reads_as": "quantity"})]
"""A quantity as on the wire. `model.quantity` parses it."""

IntOrString = int | str

Base64 = Annotated[str, msgspec.Meta(extra={"reads_as": "base64"})]
"""Bytes as standard base64. Kept as text, because manifests may contain line breaks in it, which Go accepts."""

JSONObject = dict[str, Any]


class Wire(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """An object of the Kubernetes API, or a part of one."""


# Zero values. These are our own functions, because msgspec omits a field that equals the result of a built-in `tuple`
# or `dict` factory.


def null() -> None:
    """The zero of a time held by value, written as `null`."""
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
    """Replace each `null` in an always-written field by its zero value."""
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT and getattr(struct, field.name) is None:
            # Structs are frozen. This is only safe in `__post_init__`, before others hold a reference.
            msgspec.structs.force_setattr(struct, field.name, field.default_factory())
