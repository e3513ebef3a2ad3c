"""Inbox of the sync loop: messages in order, and pods with a scheduled sync.

    storage, PLEG, probes, workers --put, static_pod_ended--> messages --> loop
    workers ------------------------------------enqueue-----> queue -----> loop

Senders never block and may call from anywhere on the event loop. They are below the loop in the import order and need
no reference to it. `changes` counts the messages that may require housekeeping. Kubelet counterpart: the channels that
`syncLoop` in pkg/kubelet/kubelet.go selects from, and its work queue.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from podkeeper.concurrency.timer_grid import seconds_to_grid
from podkeeper.engine.queue import WorkQueue
from podkeeper.model.messages import LifecycleEvent, PodUID, PodUpdate, ProbeUpdate
from podkeeper.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class StaticPodEnded:
    """A static pod finished or was forgotten. The next static pod with its full name may start."""

    full_name: str


LoopMessage = PodUpdate | LifecycleEvent | ProbeUpdate | StaticPodEnded


class LoopInbox:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._messages: deque[LoopMessage] = deque()
        self._arrived = asyncio.Event()
        self._earlier = asyncio.Event()  # a sync is due before the time until which the loop sleeps
        self._sleeps_until: float | None = None
        self.queue = WorkQueue(clock.monotonic)
        self.changes = 0
        self.pending_updates = 0  # pod updates that the loop has not finished handling

    def __len__(self) -> int:
        return len(self._messages)

    # For senders.

    def put(self, message: PodUpdate | LifecycleEvent | ProbeUpdate) -> None:
        # Probe results never leave anything to clean up.
        if not isinstance(message, ProbeUpdate):
            self.changes += 1
        if isinstance(message, PodUpdate):
            self.pending_updates += 1
        self._messages.append(message)
        self._arrived.set()

    def static_pod_ended(self, full_name: str) -> None:
        """Put a `StaticPodEnded` before all other messages: the successor starts at once (k/k 104648)."""
        self._messages.appendleft(StaticPodEnded(full_name))
        self._arrived.set()

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """Schedule the next sync of a pod."""
        now = self._clock.monotonic()
        delay_seconds += seconds_to_grid(now + delay_seconds, delay_seconds)
        # The loop does not poll, so it must also be woken if this sync is due before the time until which it sleeps.
        self.queue.enqueue(uid, delay_seconds)
        self.wake_by(now + delay_seconds)

    # For the loop.

    async def wait(self) -> None:
        """Return when a message has arrived since the last call."""
        await self._arrived.wait()
        self._arrived.clear()

    def take(self) -> LoopMessage:
        return self._messages.popleft()

    async def sleep_until(self, when: float | None) -> bool:
        """Return True at `when` (None: never), or False earlier if a sync is due before."""
        self._earlier.clear()
        self._sleeps_until = when
        try:
            async with asyncio.timeout_at(when):
                await self._earlier.wait()
        except TimeoutError:
            return True
        return False

    def wake_by(self, when: float) -> None:
        """Wake `sleep_until` if it would sleep past `when`."""
        if self._sleeps_until is None or when < self._sleeps_until:
            self._earlier.set()
