"""Results of API calls besides objects: versioned lists and watch events."""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from podkeeper.model.wire import Wire

K = TypeVar("K", bound=Wire)


class Listed(msgspec.Struct, Generic[K], frozen=True):
    """All objects of a kind at one resource version."""

    items: tuple[K, ...]
    resource_version: str


class WatchType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # no change, only a new resource version


class ObjectEvent(msgspec.Struct, Generic[K], frozen=True):
    """One change. A later watch can continue from `resource_version`."""

    type: WatchType
    object: K
    resource_version: str
