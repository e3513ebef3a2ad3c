"""Keys ordered by the time at which they are due.

Keys with equal times are ordered by key. Each key has one time, which can be changed.

A changed or discarded entry stays in the heap until it reaches the top, or until more than half of the heap are such
entries. So every operation costs O(log n) amortised, however often a key is postponed.
"""

import heapq
from datetime import datetime
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)
T = TypeVar("T", float, datetime)

_FEW = 64  # leftovers that are not worth a rebuild


class DueHeap(Generic[K, T]):
    def __init__(self) -> None:
        self._due: dict[K, T] = {}
        self._heap: list[tuple[T, K]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due: T) -> None:
        """Add a key, or change its time."""
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + _FEW:
            self._heap = [(due, key) for key, due in self._due.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Remove a key. Unknown keys are ignored."""
        self._due.pop(key, None)

    def next_due(self) -> T | None:
        """Return the earliest time. None if there is no key."""
        while self._heap:
            due, key = self._heap[0]
            # An entry with another time is a leftover: the key was set again or discarded.
            if self._due.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def pop(self) -> K:
        """Remove and return the key that is due first. Raises IndexError if there is none."""
        if self.next_due() is None:
            raise IndexError("pop from an empty DueHeap")
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        return key
