"""API sender: concurrent calls to the API.

A call that is slow or fails does not delay the others. Input: `offer` with a key that has something to send, and its
target. Output: calls of `send(key)`, each in its own task. `concurrency.outbox` decides the order and the backoff of a
failed key. This module owns the tasks and timers. A call that takes longer than its lease continues without its slot
and is logged. The status manager and the event recorder each have a sender.

The kubelet counterparts send one after the other (`syncBatch` in pkg/kubelet/status, `recordToSink` in client-go's
tools/record).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from podkeeper.concurrency.outbox import Outbox
from podkeeper.model.errors import TryLater
from podkeeper.ports.clock import Clock

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

CONCURRENCY = 16
# A hung call must not block the others. The kubelet sends one after the other, so one slow call delays all.
LEASE_SECONDS = 5.0
WARNINGS_IN_A_ROW = 16
"""After this many failures in a row, log at debug level. The API is unavailable, and warnings would fill the log."""


class ApiSender(Generic[K]):
    """Calls `send` for each offered key. `what` is the noun in log messages, for example `status of pod`."""

    def __init__(
        self, *, clock: Clock, what: str, concurrency: int = CONCURRENCY, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._clock = clock
        self._what = what
        self._lease_seconds = lease_seconds
        self._outbox: Outbox[K] = Outbox(slots=concurrency)
        self._failures_in_a_row = 0
        self._wake = asyncio.Event()  # a call may be due

    def offer(self, key: K, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        """Request a call, see `Outbox.offer`."""
        self._outbox.offer(key, target, urgent=urgent, at_once=at_once)
        self._wake.set()

    def forget(self, key: K) -> None:
        """Withdraw an offer. A call in flight continues."""
        self._outbox.forget(key)
        self._wake.set()

    async def run(self, send: Callable[[K], Awaitable[None]]) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._step(group, send)

    async def drain(self, keys: Iterable[K], send: Callable[[K], Awaitable[None]]) -> None:
        """Return after one call for each of these keys. Works with or without a concurrent `run`."""
        async with asyncio.TaskGroup() as group:
            for key in keys:
                # `run` may send the same keys concurrently. Each of its results wakes this loop, too.
                while self._outbox.is_pending(key):
                    await self._step(group, send)

    async def _step(self, group: asyncio.TaskGroup, send: Callable[[K], Awaitable[None]]) -> None:
        while (key := self._outbox.start()) is not None:
            group.create_task(self._send_once(key, send))
        await self._wake.wait()
        # Clear after the wait and before the outbox is read again, so that an offer in between is not lost.
        self._wake.clear()

    async def _send_once(self, key: K, send: Callable[[K], Awaitable[None]]) -> None:
        """Send once. An error affects only this key."""
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
            log.log(level, "cannot send %s %s, will retry: %s", self._what, key, error)
        except Exception:
            log.exception("unexpected error while sending %s %s, will retry", self._what, key)
        finally:
            # First, so that a late timer does not release the slot of the next call.
            lease.cancel()
            delay_seconds = self._outbox.done(key, failed=failed, fraction=self._clock.fraction())
            if delay_seconds is not None:
                loop.call_later(delay_seconds, self._retry, key)
            self._wake.set()

    def _end_lease(self, key: K) -> None:
        log.warning(
            "sending %s %s takes longer than %g s, others are sent meanwhile", self._what, key, self._lease_seconds
        )
        self._outbox.release_slot(key)
        self._wake.set()

    def _retry(self, key: K) -> None:
        self._outbox.retry(key)
        self._wake.set()
