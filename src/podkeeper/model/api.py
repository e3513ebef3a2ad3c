"""What the API answers besides objects: lists with their version, and watch events."""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from podkeeper.model.wire import Wire

K = TypeVar("K", bound=Wire)


class Listed(msgspec.Struct, Generic[K], frozen=True):
    """All objects of a kind at one version."""

    items: tuple[K, ...]
    resource_version: str


class WatchType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing happened; only the version counts


class WatchEvent(msgspec.Struct, Generic[K], frozen=True):
    """One change; `resource_version` is where to watch on from."""

    type: WatchType
    object: K
    resource_version: str
