"""Work queue: pods with the time of their next sync.

Input: `enqueue(uid, delay_seconds)`. A pod has at most one entry, and a new entry replaces it. Outputs: `get_work()`
returns the pods whose time is in the past (not equal to now). `next_due()` makes polling unnecessary.

Both calls take O(log n), however often a pod is enqueued. Kubelet counterpart: pkg/kubelet/util/queue.
"""

from collections.abc import Callable

from podkeeper.concurrency.due_heap import DueHeap
from podkeeper.model.messages import PodUID


class WorkQueue:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: DueHeap[PodUID, float] = DueHeap()

    def __len__(self) -> int:
        return len(self._due)

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """Set the time of the next sync of a pod. An earlier entry is replaced."""
        self._due.set(uid, self._monotonic() + delay_seconds)

    def get_work(self) -> list[PodUID]:
        """Remove and return the pods whose time is in the past, in the order of their times."""
        now = self._monotonic()
        work = []
        while (due := self._due.next_due()) is not None and due < now:
            work.append(self._due.pop())
        return work

    def next_due(self) -> float | None:
        """Return the time of the first entry. None: the queue is empty."""
        return self._due.next_due()
