"""Send queue: decide which key is sent next.

The number of slots is limited. Each target has at most one send at a time.

    offer -> queued -> start -> in flight -> done -> removed
               ^   (target busy: parked)      |
               `---- retry <---- held <-------' failed

A key carries no data. The sender reads the current data when the key is started. So a key that is offered twice before
its start is sent once. Guarantees:

* A target has at most one send in flight. A key that is offered meanwhile is sent afterwards.
* A failed key waits for its own retry, with a delay that doubles, and blocks no other key.
* A send that takes too long gives its slot back (`release_slot`), so hung calls block no slot.
* Urgent keys come first, but every fourth slot is for the others. Otherwise the order is first in, first out.

This module has no clock and no tasks. The shell (`engine/api_sender.py`) sends what `start` returns, and reports the
result. Kubelet counterpart: client-go's workqueue, which has no targets and no urgency.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from podkeeper.concurrency.backoff import GrowingDelay

K = TypeVar("K", bound=Hashable)

_NOT_URGENT_EVERY = 4
"""Every fourth started key is not urgent, so that urgent keys cannot starve the others."""

# The kubelet retries a failed status with its next batch, at most 10 s later.
_DELAY = GrowingDelay(first_seconds=1.0, longest_seconds=30.0)


@dataclass(slots=True)
class _Flight(Generic[K]):
    key: K
    urgent: bool
    holds_slot: bool = True


class Outbox(Generic[K]):
    """The queued, held and in-flight keys."""

    def __init__(self, *, slots: int, delay: GrowingDelay = _DELAY) -> None:
        self._free = slots
        self._delay = delay
        self._targets: dict[K, Hashable] = {}  # of every known key
        # OrderedDicts, because in a plain dict the search for the first key is slow after many removals at the front.
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._others: OrderedDict[K, None] = OrderedDict()
        self._started = 0
        self._flights: dict[Hashable, _Flight[K]] = {}
        self._parked: dict[Hashable, dict[K, bool]] = {}  # keys that wait for a busy target; whether urgent
        self._held: dict[K, bool] = {}  # failed keys until `retry`; whether urgent
        self._failures: dict[K, int] = {}

    def offer(self, key: K, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        """Queue a key. `at_once`: even if it is held after a failure."""
        # A static pod with a fixed UID can get another name, and so another target. A send in flight keeps its old
        # target, because `done` searches it there.
        if self._flight(key) is None:
            self._targets[key] = target
        if key in self._held and not at_once:
            self._held[key] |= urgent
        else:
            self._enqueue(key, urgent | self._held.pop(key, False))

    def retry(self, key: K) -> None:
        """Queue a key that is held after a failure."""
        if key in self._held:
            self._enqueue(key, self._held.pop(key))

    def start(self) -> K | None:
        """Return the next key and take a slot. None if no slot is free, or no key has a free target."""
        while self._free > 0 and (queued := self._pop()) is not None:
            key, urgent = queued
            target = self._targets[key]
            if target in self._flights:
                self._enqueue(key, urgent)
                continue
            self._flights[target] = _Flight(key, urgent)
            self._free -= 1
            return key
        return None

    def release_slot(self, key: K) -> None:
        """Release the slot of a send that takes too long. It stays in flight."""
        flight = self._flight(key)
        if flight is not None and flight.holds_slot:
            flight.holds_slot = False
            self._free += 1

    def done(self, key: K, *, failed: bool, fraction: float) -> float | None:
        """Store the result of a send. After a failure, return the seconds after which to call `retry`.

        `fraction` in [0, 1) spreads retries over the second half of each delay.
        """
        target = self._targets[key]
        flight = self._flights.pop(target)
        self._free += flight.holds_slot
        parked = self._parked.pop(target, {})
        delay = None
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            # The key was offered again during the failed send. One retry covers both.
            self._held[key] = flight.urgent | parked.pop(key, False)
            # Jitter, so that the retries of many pods do not reach the API at the same time after an outage.
            delay = self._delay.after(self._failures[key]) * (0.5 + fraction / 2)
        else:
            self._failures.pop(key, None)
            if key not in parked:
                del self._targets[key]
        for waiting, urgent in parked.items():
            self._enqueue(waiting, urgent)
        return delay

    def forget(self, key: K) -> None:
        """Remove a key and its failures. A send in flight continues."""
        target = self._targets.get(key)
        for waiting in (self._urgent, self._others, self._held, self._failures, self._parked.get(target, {})):
            waiting.pop(key, None)
        if self._flight(key) is None:
            self._targets.pop(key, None)

    def is_pending(self, key: K) -> bool:
        """Return whether a key is queued or in flight, but not held after a failure."""
        return key in self._targets and key not in self._held

    def has_failed(self, key: K) -> bool:
        """Return whether the last send of a key failed."""
        return key in self._failures

    def _enqueue(self, key: K, urgent: bool) -> None:
        target = self._targets[key]
        if target in self._flights:
            parked = self._parked.setdefault(target, {})
            parked[key] = parked.get(key, False) | urgent
        elif urgent:
            # A key is in one queue only. It became urgent while it waited.
            self._others.pop(key, None)
            self._urgent[key] = None
        elif key not in self._urgent:
            self._others[key] = None

    def _pop(self) -> tuple[K, bool] | None:
        """Remove and return the next queued key, and whether it is urgent."""
        if not self._urgent and not self._others:
            return None
        self._started += 1
        urgent = not self._others or (bool(self._urgent) and self._started % _NOT_URGENT_EVERY != 0)
        queue = self._urgent if urgent else self._others
        return queue.popitem(last=False)[0], urgent

    def _flight(self, key: K) -> _Flight[K] | None:
        flight = self._flights.get(self._targets.get(key))
        return flight if flight is not None and flight.key == key else None
