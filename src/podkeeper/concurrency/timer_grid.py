"""Round distant due times up to a grid, so that several timers share one wake-up.

One wake-up for several timers costs less than one for each.
"""

from typing import Final

DISTANT_SECONDS: Final = 30.0
"""Only timers with at least this delay are rounded."""
GRID_SECONDS: Final = 0.5


def seconds_to_grid(due: float, delay_seconds: float) -> float:
    """Return the seconds to add to a due time, whose timer has this delay or period."""
    return -due % GRID_SECONDS if delay_seconds >= DISTANT_SECONDS else 0.0
