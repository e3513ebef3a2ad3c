"""What the API answers besides objects: lists with their version, and watch events."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from podkeeper.model.wire import Wire

K = TypeVar("K", bound=Wire)


@dataclass(frozen=True, slots=True)
class Listed(Generic[K]):
    """All objects of a kind at one version."""

    items: tuple[K, ...]
    resource_version: str


class WatchType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing happened; only the version counts


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[K]):
    """One change; `resource_version` is where to watch on from."""

    type: WatchType
    object: K
    resource_version: str
