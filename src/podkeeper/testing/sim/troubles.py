"""The book of troubles: what goes wrong, when, and for whom; so that nobody is blamed for what was done to him.

Trouble of one pod (a hung call) is booked with its UID, trouble of the whole node (the API is away) without. Who
promises something "unless disturbed" asks `touched`; the counts show that every kind of trouble really happened.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.records import Bus, TroubleBegan, TroubleEnded

KEPT_SECONDS = 7200.0


@dataclass(slots=True, eq=False)
class Trouble:
    """One thing that goes wrong."""

    kind: str
    uid: PodUID | None  # None: the whole node's
    begun: float
    ended: float = inf


class Troubles:
    """All trouble of the last hours."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._book: list[Trouble] = []
        self.counts: Counter[str] = Counter()

    def begin(self, at: float, kind: str, uid: PodUID | None = None) -> Trouble:
        """Book trouble that lasts."""
        trouble = Trouble(kind, uid, at)
        self._book = [old for old in self._book if old.ended > at - KEPT_SECONDS]
        self._book.append(trouble)
        self.counts[kind] += 1
        self._bus.tell(TroubleBegan(at, kind, uid))
        return trouble

    def end(self, at: float, trouble: Trouble) -> None:
        """It is over."""
        if trouble.ended == inf:
            trouble.ended = at
            self._bus.tell(TroubleEnded(at, trouble.kind, trouble.uid))

    def moment(self, at: float, kind: str, uid: PodUID | None = None) -> None:
        """Book trouble that is over as soon as it is there."""
        self.end(at, self.begin(at, kind, uid))

    def touched(self, since: float, uid: PodUID | None, but: Collection[str] = ()) -> str:
        """The kind of some trouble that the node, or this pod, has had since a moment; empty: none.

        Kinds in `but` do not count.
        """
        for trouble in reversed(self._book):
            if trouble.ended >= since and trouble.uid in (None, uid) and trouble.kind not in but:
                return trouble.kind
        return ""

    def lasted(self, begun_by: float, until: float, uid: PodUID, kinds: Collection[str]) -> bool:
        """Whether trouble of these kinds, of the node or this pod, began by one moment and lasted until another."""
        return any(
            trouble.begun <= begun_by and trouble.ended >= until and trouble.uid in (None, uid)
            for trouble in self._book
            if trouble.kind in kinds
        )

    def lasted_until(self, since: float, kinds: Collection[str]) -> float:
        """When the whole node was last rid of trouble of these kinds; `since`: it has had none since that moment."""
        of_all = (each.ended for each in self._book if each.uid is None and each.kind in kinds)
        return max((ended for ended in of_all if ended >= since), default=since)

    def active(self) -> list[Trouble]:
        """What goes wrong now."""
        return [trouble for trouble in self._book if trouble.ended == inf]
