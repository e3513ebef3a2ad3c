"""Time and chance. Durations come from monotonic time; wall time is only shown or written."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The engine's only source of time and of random numbers."""

    def now(self) -> datetime:
        """Wall time, aware, in UTC. It may jump; no timer depends on it."""

    def monotonic(self) -> float:
        """Seconds of the event loop's clock: what `asyncio.sleep` sleeps by.

        It counts on while the agent is down, and starts again with a reboot: all processes of one boot read the same.
        """

    def fraction(self) -> float:
        """A random number in [0, 1), for jitter."""
