"""Growing delays between retries.

Each delay is twice as long as the one before, up to a limit.
"""

from dataclasses import dataclass

_MOST_DOUBLINGS = 64  # every realistic limit is reached by then; more doublings would overflow a float


@dataclass(frozen=True, slots=True)
class GrowingDelay:
    """The delays after one, two, three... failures in a row."""

    first_seconds: float
    longest_seconds: float

    def after(self, failures: int) -> float:
        """Return the delay after this many failures in a row, at least one."""
        return min(self.first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest_seconds)


class RetryCounter:
    """Count failures in a row and return the delay before the next attempt."""

    __slots__ = ("_delay", "failures")

    def __init__(self, delay: GrowingDelay) -> None:
        self._delay = delay
        self.failures = 0

    def failed(self) -> float:
        """Count a failure. Return the seconds to wait before the next attempt."""
        self.failures += 1
        return self._delay.after(self.failures)

    def succeeded(self) -> None:
        self.failures = 0
