"""Event loop in virtual time: its clock jumps to the next timer.

    result, seconds = simulate(scenario())

Hours of virtual time pass in milliseconds, and elapsed seconds are exact. If no task can run and no timer is set, the
loop raises `Stuck` with the waiting tasks instead of hanging. Sockets and pipes work: without a timer, the loop waits
for them. Real subprocesses do not work, because the clock jumps to the next timer before they answer. Use fakes.
"""

import asyncio
import random
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(AssertionError):
    """No task can run and no timer is set."""


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that does not wait while a timer is set. It moves the clock instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # More than one file means more than the loop's wake-up pipe, to which only other threads write. Skip the system
        # call otherwise, because it costs more than everything else here.
        has_files = len(self.get_map()) > 1
        ready = super().select(0) if has_files or timeout is None else []
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None:
            self.loop.jump_to_next_timer()
            return ready
        if has_files:
            return super().select(None)
        waiting = "\n".join(f"  {task}" for task in asyncio.all_tasks(self.loop)) or "  (no task)"
        raise Stuck(f"no task can run and no timer is set after {self.loop.time():g} s:\n{waiting}")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._virtual_now = 0.0
        selector = _VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual_now

    def jump_to_next_timer(self) -> None:
        """Set the clock to the time of the next timer. Adding differences would accumulate rounding errors."""
        self._virtual_now = max(self._virtual_now, self._scheduled[0].when())


def simulate(scenario: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> tuple[T, float]:
    """Run a coroutine in virtual time. Return its result and the elapsed virtual seconds."""
    loop = loop or VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(scenario)
        return result, loop.time()
    finally:
        _end_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _end_tasks(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class VirtualClock:
    """The clock port for a virtual loop. Wall time can jump, and randomness is seeded."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, seed: int = 0) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._wall = BEGINNING
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """Return the wall time: the start of 2026 plus the loop's time plus all jumps so far."""
        return self._wall + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()

    def fraction(self) -> float:
        return self._random.random()

    def jump(self, seconds: float) -> None:
        """Move the wall clock. Timers are not affected."""
        self._wall += timedelta(seconds=seconds)


class FixedJitterClock(VirtualClock):
    """A virtual clock with a constant fraction, so that jitter is known."""

    def __init__(self, fraction: float = 0.0) -> None:
        super().__init__()
        self._fraction = fraction

    def fraction(self) -> float:
        return self._fraction
