"""Timers with long delays are due at multiples of half a second."""

import pytest

from podkeeper.concurrency.timer_grid import seconds_to_grid

CASES = {
    "a short delay is not rounded": (7.3, 29.9, 0.0),
    "a distant timer waits for the next half second": (60.25, 60.0, 0.25),
    "the shortest delay that is rounded": (30.125, 30.0, 0.375),
    "a due time on the grid stays": (90.5, 60.0, 0.0),
}


@pytest.mark.parametrize("due, delay_seconds, expected", CASES.values(), ids=CASES.keys())
def test_seconds_to_grid(due: float, delay_seconds: float, expected: float) -> None:
    assert seconds_to_grid(due, delay_seconds) == expected
