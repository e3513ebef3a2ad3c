"""Log of all injected faults: kinds, times and affected pods.

A fault of one pod (a hung call) is logged with its UID, a fault of the whole node (the API is down) without one.
Invariants that hold only without faults query `any_since`. The counts show that every kind of fault really happened.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.records import Bus, FaultBegan, FaultEnded

KEPT_SECONDS = 7200.0


@dataclass(slots=True, eq=False)
class ActiveFault:
    """One injected fault."""

    kind: str
    uid: PodUID | None  # None: it affects the whole node
    began: float
    ended: float = inf


class FaultLog:
    """All faults of the last `KEPT_SECONDS`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._faults: list[ActiveFault] = []
        self.counts: Counter[str] = Counter()

    def begin(self, at: float, kind: str, uid: PodUID | None = None) -> ActiveFault:
        """Log the start of a fault."""
        fault = ActiveFault(kind, uid, at)
        # Each check scans this list, and a run of hours has thousands of faults.
        self._faults = [old for old in self._faults if old.ended > at - KEPT_SECONDS]
        self._faults.append(fault)
        self.counts[kind] += 1
        self._bus.publish(FaultBegan(at, kind, uid))
        return fault

    def end(self, at: float, fault: ActiveFault) -> None:
        """Log the end of a fault."""
        if fault.ended == inf:
            fault.ended = at
            self._bus.publish(FaultEnded(at, fault.kind, fault.uid))

    def instant(self, at: float, kind: str, uid: PodUID | None = None) -> None:
        """Log a fault without duration."""
        self.end(at, self.begin(at, kind, uid))

    def any_since(self, since: float, uid: PodUID | None, ignored: Collection[str] = ()) -> str:
        """Return the kind of a fault that affected the node or this pod since a time. Empty: there was none.

        Kinds in `ignored` do not count.
        """
        for fault in reversed(self._faults):
            if fault.ended >= since and fault.uid in (None, uid) and fault.kind not in ignored:
                return fault.kind
        return ""

    def any_during(self, began_by: float, until: float, uid: PodUID, kinds: Collection[str]) -> bool:
        """Whether a fault of these kinds, of the node or this pod, was active from `began_by` to `until`."""
        return any(
            fault.began <= began_by and fault.ended >= until and fault.uid in (None, uid)
            for fault in self._faults
            if fault.kind in kinds
        )

    def last_end(self, since: float, kinds: Collection[str]) -> float:
        """Return when the last node-wide fault of these kinds ended, or `since` if none ended after it."""
        of_all = (each.ended for each in self._faults if each.uid is None and each.kind in kinds)
        return max((ended for ended in of_all if ended >= since), default=since)

    def active(self) -> list[ActiveFault]:
        """Return the faults that are active now."""
        return [fault for fault in self._faults if fault.ended == inf]
