"""An event loop whose clock jumps to the next timer: hours pass in milliseconds, and exactly.

    result, seconds = simulate(scenario())

Nothing sleeps. When nobody is runnable and no timer is set, `Stuck` is raised instead of hanging for ever,
with the tasks that wait. Sockets and pipes still work: the loop waits for them when there is no timer.
Real subprocesses do not (a timer always wins): give the code under test a fake.
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
    """Everybody waits for somebody else."""


class _VirtualSelector(selectors.DefaultSelector):
    """Never waits while a timer is set: the clock moves instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Only other threads write to the loop's own wake-up pipe, and asking the kernel costs more than all else here.
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
        raise Stuck(f"nobody is runnable and no timer is set after {self.loop.time():g} s:\n{waiting}")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, beginning at 0."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._virtual_now = 0.0
        selector = _VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def jump_to_next_timer(self) -> None:
        """Move the clock to the next timer's very instant: adding differences would drift."""
        self._virtual_now = max(self._virtual_now, self._scheduled[0].when())


def simulate(scenario: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> tuple[T, float]:
    """Run a coroutine in virtual time. Returns its result and the virtual seconds it took."""
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
    """The clock port over a virtual loop; wall time can be made to jump, chance is seeded."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, seed: int = 0) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._wall = BEGINNING
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """Wall time: the beginning of 2026, the loop's seconds, and all jumps so far."""
        return self._wall + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def fraction(self) -> float:
        """The next of the seeded numbers."""
        return self._random.random()

    def jump(self, seconds: float) -> None:
        """Move the wall clock; no timer notices."""
        self._wall += timedelta(seconds=seconds)


class FixedJitterClock(VirtualClock):
    """A virtual clock without chance: every fraction is the same, so jitter is known."""

    def __init__(self, fraction: float = 0.0) -> None:
        super().__init__()
        self._fraction = fraction

    def fraction(self) -> float:
        """The fixed number."""
        return self._fraction
