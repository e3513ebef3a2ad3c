"""The work queue: when to look at a pod again.

In: `enqueue(uid, delay_seconds)`; a pod has at most one entry, and the last word counts. Out: `get_work()`, the pods
whose time has *passed* (not: has just come), and `next_due()`, so that nobody needs to poll.

Time is whatever monotonic seconds the given clock tells. An overwritten entry stays in the heap until it surfaces,
or until such leftovers are the greater part of it: both calls cost O(log n), however often a pod is put off.
The Go ancestor is pkg/kubelet/util/queue.
"""

import heapq
from collections.abc import Callable

from podkeeper.model.messages import PodUID

_FEW = 64  # leftovers not worth a rebuild


class WorkQueue:
    """Pods to be looked at again, by due time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: dict[PodUID, float] = {}
        self._heap: list[tuple[float, PodUID]] = []

    def __len__(self) -> int:
        return len(self._due)

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """Set the time of a pod's next turn, whatever it was before."""
        due = self._monotonic() + delay_seconds
        self._due[uid] = due
        heapq.heappush(self._heap, (due, uid))
        if len(self._heap) > 2 * len(self._due) + _FEW:
            self._heap = [(due, uid) for uid, due in self._due.items()]
            heapq.heapify(self._heap)

    def get_work(self) -> list[PodUID]:
        """Take out the pods whose time has passed, the longest overdue first."""
        now = self._monotonic()
        work = []
        while (due := self.next_due()) is not None and due < now:
            _, uid = heapq.heappop(self._heap)
            del self._due[uid]
            work.append(uid)
        return work

    def next_due(self) -> float | None:
        """The time after which there is work; None when nothing waits."""
        while self._heap:
            due, uid = self._heap[0]
            if self._due.get(uid) == due:
                return due
            heapq.heappop(self._heap)
        return None
