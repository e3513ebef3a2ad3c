"""What is sent next: many keys that have news, few slots, and targets that each bear one sender at a time.

    offer -> queued -> start -> in flight -> ended -> nowhere
               ^   (target busy: parked)      |
               `---- retry <---- held <-------' failed

A key stands for "whatever there is to say about it when its turn comes": it carries no data, so offering it
twice before its turn is offering it once. Promises:

* a target has at most one sending in flight; a key offered meanwhile gets its turn afterwards;
* a failed key waits for its own retry, longer each time, and nobody waits with it;
* a sending that takes too long gives its slot back (`lease_over`): hung calls cost no one a slot;
* urgent keys go first, but every fourth turn belongs to the others; among equals, first come first served.

No clock and no tasks: shells (`engine/status.py`, `engine/events.py`) start what `start` says and tell how it ended.
The Go ancestor is client-go's workqueue, which knows neither targets nor urgency.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_TURNS_FOR_OTHERS = 4
"""One of so many turns goes to a key that is not urgent."""


@dataclass(slots=True)
class _Flight(Generic[K]):
    """One sending under way."""

    key: K
    urgent: bool
    holds_slot: bool = True


class Outbox(Generic[K]):
    """Keys to send, in order."""

    def __init__(self, *, slots: int, first_delay_seconds: float = 1.0, longest_delay_seconds: float = 30.0) -> None:
        self._free = slots
        self._first_delay_seconds = first_delay_seconds
        self._longest_delay_seconds = longest_delay_seconds
        self._targets: dict[K, Hashable] = {}  # of every key that is anywhere in here
        # Plain dicts remember order too, but looking for their first key gets slow once many were taken from the front.
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._others: OrderedDict[K, None] = OrderedDict()
        self._turns = 0
        self._flights: dict[Hashable, _Flight[K]] = {}
        self._parked: dict[Hashable, dict[K, bool]] = {}  # by busy target: who waits for it, and whether urgently
        self._held: dict[K, bool] = {}  # after a failure, until `retry`; whether urgent
        self._failures: dict[K, int] = {}

    def offer(self, key: K, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        """Ask for a turn; a key keeps its target. `at_once`: even if it is held after a failure."""
        if self._flight(key) is None:  # a sending under way ends at the target at which it began
            self._targets[key] = target
        if key in self._held and not at_once:
            self._held[key] |= urgent
        else:
            self._enqueue(key, urgent | self._held.pop(key, False))

    def retry(self, key: K) -> None:
        """End the wait after a failure."""
        if key in self._held:
            self._enqueue(key, self._held.pop(key))

    def start(self) -> K | None:
        """Take the next key and a slot; None: no slot is free, or nobody waits whose target is."""
        while self._free > 0 and (taken := self._take()) is not None:
            key, urgent = taken
            target = self._targets[key]
            if target in self._flights:
                self._enqueue(key, urgent)
                continue
            self._flights[target] = _Flight(key, urgent)
            self._free -= 1
            return key
        return None

    def lease_over(self, key: K) -> None:
        """Give back the slot of a sending that takes too long; it is still in flight."""
        flight = self._flight(key)
        if flight is not None and flight.holds_slot:
            flight.holds_slot = False
            self._free += 1

    def ended(self, key: K, *, failed: bool, fraction: float) -> float | None:
        """Note how a sending ended. After a failure: the seconds until `retry` should be called.

        `fraction` in [0, 1) spreads retries over the second half of each delay.
        """
        target = self._targets[key]
        flight = self._flights.pop(target)
        self._free += flight.holds_slot
        parked = self._parked.pop(target, {})
        delay = None
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            self._held[key] = flight.urgent | parked.pop(key, False)
            delay = self._delay_seconds(self._failures[key]) * (0.5 + fraction / 2)
        else:
            self._failures.pop(key, None)
            if key not in parked:
                del self._targets[key]
        for waiting, urgent in parked.items():
            self._enqueue(waiting, urgent)
        return delay

    def forget(self, key: K) -> None:
        """Take back an offer and forget past failures. A sending in flight goes on."""
        target = self._targets.get(key)
        for waiting in (self._urgent, self._others, self._held, self._failures, self._parked.get(target, {})):
            waiting.pop(key, None)
        if self._flight(key) is None:
            self._targets.pop(key, None)

    def is_pending(self, key: K) -> bool:
        """Whether a key is in flight or waits for its turn; one held after a failure is not."""
        return key in self._targets and key not in self._held

    def has_failed(self, key: K) -> bool:
        """Whether the last sending of a key failed."""
        return key in self._failures

    def _enqueue(self, key: K, urgent: bool) -> None:
        target = self._targets[key]
        if target in self._flights:
            parked = self._parked.setdefault(target, {})
            parked[key] = parked.get(key, False) | urgent
        elif urgent:
            self._others.pop(key, None)
            self._urgent[key] = None
        elif key not in self._urgent:
            self._others[key] = None

    def _take(self) -> tuple[K, bool] | None:
        """The next queued key, and whether it is urgent."""
        if not self._urgent and not self._others:
            return None
        self._turns += 1
        urgent = not self._others or (bool(self._urgent) and self._turns % _TURNS_FOR_OTHERS != 0)
        queue = self._urgent if urgent else self._others
        return queue.popitem(last=False)[0], urgent

    def _flight(self, key: K) -> _Flight[K] | None:
        """The sending of this key that is under way."""
        flight = self._flights.get(self._targets.get(key))
        return flight if flight is not None and flight.key == key else None

    def _delay_seconds(self, failures: int) -> float:
        doublings = min(failures - 1, 32)  # beyond that the cap has long been met, and floats end
        return min(self._first_delay_seconds * 2.0**doublings, self._longest_delay_seconds)
