"""The clock of the machine: wall time, monotonic time and random numbers."""

import asyncio
import random
from datetime import UTC, datetime


class SystemClock:
    """Real time, and random numbers from its own generator. A seed makes them repeatable."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, seed: int | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._random = random.Random(seed)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the time of the event loop."""
        return self._loop.time()

    def fraction(self) -> float:
        """Return a random number from 0 to 1."""
        return self._random.random()
