"""A bounded number of slots for concurrent work, with leases and fair order.

    take (or acquire) -> work -> give back
                           `- lease over: the slot is free again, the work continues without one

A hung call therefore blocks a slot only for the duration of its lease. A timer runs only while all slots are taken and
more work waits. Waiting callers of `acquire` are served by rank, then in the order in which they came. `Tickets` gives
ranks to owners that make several calls.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Slots(Generic[K]):
    """Slots, by holder. `on_free` runs when a slot becomes free and no `acquire` waits for it."""

    def __init__(
        self,
        slots: int,
        *,
        lease_seconds: float = inf,
        on_free: Callable[[], None] | None = None,
        on_expired: Callable[[K], None] | None = None,
    ) -> None:
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._on_free = on_free
        self._on_expired = on_expired
        self._taken: dict[K, float] = {}  # holder -> end of its lease
        # The number breaks ties between equal ranks. Holders and futures cannot be compared.
        self._waiting: list[tuple[int, int, K, float, asyncio.Future[None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, holder: K, lease_seconds: float | None = None) -> bool:
        """Take a slot if one is free. If not, `on_free` runs later."""
        if not self.has_free():
            return False
        lease = self._lease_seconds if lease_seconds is None else lease_seconds
        self._taken[holder] = asyncio.get_running_loop().time() + lease
        return True

    def has_free(self) -> bool:
        """Return whether a slot is free. If not, `on_free` runs later."""
        loop = asyncio.get_running_loop()
        if len(self._taken) < self._slots or self._expire(loop.time()):
            return True
        self._set_timer(loop)
        return False

    async def acquire(self, holder: K, rank: int = 0, lease_seconds: float | None = None) -> None:
        """Wait for a slot. The lowest rank is served first."""
        if self.take(holder, lease_seconds):
            return
        granted = asyncio.get_running_loop().create_future()
        lease = self._lease_seconds if lease_seconds is None else lease_seconds
        # A cancelled caller stays in the heap, because removing it there is expensive. `_serve` skips it.
        heapq.heappush(self._waiting, (rank, next(self._numbers), holder, lease, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # the slot was granted before the cancellation was delivered, so give it back
                self.give_back(holder)
            raise

    def give_back(self, holder: K) -> None:
        """Free the slot of a holder. A holder whose lease is over has none."""
        if self._taken.pop(holder, None) is not None:
            self._serve()

    def cancel_timer(self) -> None:
        """Cancel the timer of `on_free`, because its owner ends. A later `take` or `acquire` sets it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._taken) < self._slots:
            _, _, holder, lease, granted = heapq.heappop(self._waiting)
            if not granted.done():
                self._taken[holder] = loop.time() + lease
                granted.set_result(None)
        if self._waiting:
            self._set_timer(loop)
        elif self._on_free is not None and len(self._taken) < self._slots:
            # Only if no `acquire` waits. Otherwise work that calls `take` would overtake the waiting callers.
            self._on_free()

    def _expire(self, now: float) -> bool:
        """Free the slot whose lease ended first. Return whether there was one."""
        # A linear search over a few slots. It runs only while all of them are taken.
        holder = min(self._taken, key=self._taken.__getitem__)
        if self._taken[holder] > now:
            return False
        del self._taken[holder]
        if self._on_expired is not None:
            self._on_expired(holder)
        return True

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        end = min(self._taken.values())
        # One timer for all leases, at the earliest end. A later lease sets it again.
        if self._timer is not None and self._timer.when() <= end:
            return
        self.cancel_timer()
        self._timer = None if end == inf else loop.call_at(end, self._lease_over)

    def _lease_over(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if len(self._taken) < self._slots or self._expire(loop.time()):
            self._serve()
        else:
            self._set_timer(loop)


class Tickets(Generic[K]):
    """Ranks of owners, first come, first served.

    An owner keeps its ticket for all its calls, so it completes them before owners that came later. A ticket expires
    after `expiry_seconds` without a call.
    """

    def __init__(self, expiry_seconds: float, monotonic: Callable[[], float]) -> None:
        self._expiry_seconds = expiry_seconds
        self._monotonic = monotonic
        self._numbers = count()
        # Owner -> (ticket, last use), least recently used first.
        self._tickets: OrderedDict[K, tuple[int, float]] = OrderedDict()

    def draw(self, owner: K) -> int:
        """Return the owner's ticket, or a new one if it has none or it has expired."""
        now = self._monotonic()
        while self._tickets:
            idle, (ticket, used) = self._tickets.popitem(last=False)
            # The order of the dict is the order of last use, so the first ticket that is still valid ends the search.
            if used + self._expiry_seconds > now:
                self._tickets[idle] = ticket, used
                self._tickets.move_to_end(idle, last=False)
                break
        ticket, _ = self._tickets.pop(owner) if owner in self._tickets else (next(self._numbers), now)
        self._tickets[owner] = ticket, now
        return ticket

    def renew(self, owner: K, ticket: int) -> None:
        """Count a ticket as used now. A ticket that expired during a call becomes valid again."""
        # The ticket may have expired during a long call, and another call of the owner may have drawn a new one.
        newer, _ = self._tickets.pop(owner, (ticket, 0.0))
        self._tickets[owner] = min(ticket, newer), self._monotonic()
