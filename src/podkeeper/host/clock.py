"""The machine's clocks and its dice, behind the clock port."""

import asyncio
import random
from datetime import UTC, datetime


class SystemClock:
    """Real time, and chance from a generator of its own (seeded where a run is to be repeated)."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, seed: int | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """Wall time, as the machine has it."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def fraction(self) -> float:
        """The next random number."""
        return self._random.random()
