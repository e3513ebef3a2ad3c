"""The postman: carries news to the API, many at a time, and lets no slow or failing delivery hold up another.

In: `offer`, a key that has something to say and the target it is for. Out: calls of `send(key)`, each in a task of its
own. Whose turn it is, and how long a failed key waits, is decided in `rules.outbox`; this shell only owns the tasks and
timers. A delivery that takes longer than its lease goes on without its slot and is named in the log. Both the status
manager and the event recorder have a postman of their own.

The Go ancestors send one after the other (`syncBatch` in pkg/kubelet/status, `recordToSink` in client-go's record).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from podkeeper.model.errors import TryLater
from podkeeper.ports.clock import Clock
from podkeeper.rules.outbox import Outbox

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

CONCURRENCY = 16
LEASE_SECONDS = 5.0
WARNINGS_IN_A_ROW = 16
"""After so many failures and no success the trouble is the API's; naming every key would fill the log."""


class Postman(Generic[K]):
    """Sends what is offered; `what` is the noun in log lines: `status of pod`."""

    def __init__(
        self, *, clock: Clock, what: str, concurrency: int = CONCURRENCY, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._clock = clock
        self._what = what
        self._lease_seconds = lease_seconds
        self._outbox: Outbox[K] = Outbox(slots=concurrency)
        self._failures_in_a_row = 0
        self._moved = asyncio.Event()  # there may be something to start

    def offer(self, key: K, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        """Ask for a delivery; see `Outbox.offer`."""
        self._outbox.offer(key, target, urgent=urgent, at_once=at_once)
        self._moved.set()

    def forget(self, key: K) -> None:
        """Take back an offer; a delivery under way goes on."""
        self._outbox.forget(key)
        self._moved.set()

    async def run(self, send: Callable[[K], Awaitable[None]]) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._step(group, send)

    async def drain(self, keys: Iterable[K], send: Callable[[K], Awaitable[None]]) -> None:
        """Return once each of these keys has had its turn; works beside `run` and without it."""
        async with asyncio.TaskGroup() as group:
            for key in keys:
                while self._outbox.is_pending(key):
                    await self._step(group, send)

    async def _step(self, group: asyncio.TaskGroup, send: Callable[[K], Awaitable[None]]) -> None:
        while (key := self._outbox.start()) is not None:
            group.create_task(self._deliver(key, send))
        await self._moved.wait()
        self._moved.clear()

    async def _deliver(self, key: K, send: Callable[[K], Awaitable[None]]) -> None:
        """Try once. Whatever happens is this key's affair only."""
        loop = asyncio.get_running_loop()
        lease = loop.call_later(self._lease_seconds, self._end_lease, key)
        failed = True
        try:
            await send(key)
            failed = False
            self._failures_in_a_row = 0
        except TryLater as error:
            self._failures_in_a_row += 1
            known = self._outbox.has_failed(key) or self._failures_in_a_row > WARNINGS_IN_A_ROW
            level = logging.DEBUG if known else logging.WARNING
            log.log(level, "%s %s was not sent, will retry: %s", self._what, key, error)
        except Exception:
            log.exception("%s %s was not sent for an unforeseen reason, will retry", self._what, key)
        finally:
            lease.cancel()
            delay_seconds = self._outbox.ended(key, failed=failed, fraction=self._clock.fraction())
            if delay_seconds is not None:
                loop.call_later(delay_seconds, self._retry, key)
            self._moved.set()

    def _end_lease(self, key: K) -> None:
        log.warning("%s %s takes longer than %g s to send; others go on", self._what, key, self._lease_seconds)
        self._outbox.lease_over(key)
        self._moved.set()

    def _retry(self, key: K) -> None:
        self._outbox.retry(key)
        self._moved.set()
