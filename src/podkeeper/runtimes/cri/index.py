"""Whose is it: which pod a sandbox or container belongs to, by its id.

Kept from everything that passes by (lists, statuses, what was made), so that news of an id can be told of its pod
without asking. Bounded: what nobody removed is forgotten after very many others.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from podkeeper.model.messages import PodUID

KEPT: Final = 32_768


class Kind(Enum):
    """What an id stands for."""

    SANDBOX = auto()
    CONTAINER = auto()


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod that has an id."""

    uid: PodUID
    kind: Kind
    made_here: bool = False  # by this agent, in this life: it knows without being told


class Index:
    """All ids that were seen."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, thing: str) -> Owner | None:
        """The owner of an id, if it was seen."""
        return self._owners.get(thing)

    def saw(self, thing: str, uid: str, kind: Kind) -> None:
        """Note whom an id belongs to."""
        if thing not in self._owners:
            self._note(thing, Owner(PodUID(uid), kind))

    def made(self, thing: str, uid: str, kind: Kind) -> None:
        """Note what this agent has made."""
        self._note(thing, Owner(PodUID(uid), kind, made_here=True))

    def drop(self, thing: str) -> Owner | None:
        """Forget an id that is gone. Returns whose it was."""
        return self._owners.pop(thing, None)

    def _note(self, thing: str, owner: Owner) -> None:
        self._owners[thing] = owner
        if len(self._owners) > KEPT:
            self._owners.popitem(last=False)
