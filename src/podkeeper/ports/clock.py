"""Time and random numbers.

Durations use monotonic time. Wall time is only printed or stored.
"""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of time and random numbers for the engine."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC. It may jump, and no timer depends on it."""

    def monotonic(self) -> float:
        """Return the seconds of the event loop's clock, which `asyncio.sleep` uses.

        The clock also counts while the agent is down. It restarts with a reboot. All processes of one boot read the
        same clock.
        """

    def fraction(self) -> float:
        """Return a random number in [0, 1), for jitter."""
