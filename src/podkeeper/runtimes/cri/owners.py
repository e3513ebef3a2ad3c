"""The pod of each sandbox and container, by ID.

Filled from lists, statuses and our own calls, so that an event can be assigned to its pod without a call. The size is
limited: the oldest entries are dropped first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from podkeeper.model.messages import PodUID

KEPT: Final = 32_768


class Kind(Enum):
    SANDBOX = auto()
    CONTAINER = auto()


@dataclass(frozen=True, slots=True)
class Owner:
    uid: PodUID
    kind: Kind
    made_here: bool = False  # this agent process created it


class OwnerIndex:
    def __init__(self) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, object_id: str) -> Owner | None:
        return self._owners.get(object_id)

    def saw(self, object_id: str, uid: str, kind: Kind) -> None:
        """Record the pod of an ID from a list or status."""
        # Keep an existing entry: it may have `made_here`, which a list does not show.
        if object_id not in self._owners:
            self._note(object_id, Owner(PodUID(uid), kind))

    def made(self, object_id: str, uid: str, kind: Kind) -> None:
        """Record an object that this agent created."""
        self._note(object_id, Owner(PodUID(uid), kind, made_here=True))

    def drop(self, object_id: str) -> Owner | None:
        """Remove an ID. Return its owner."""
        return self._owners.pop(object_id, None)

    def _note(self, object_id: str, owner: Owner) -> None:
        self._owners[object_id] = owner
        if len(self._owners) > KEPT:
            self._owners.popitem(last=False)
