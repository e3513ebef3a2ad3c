"""What every clock promises."""

import asyncio
from datetime import UTC, timedelta

from podkeeper.ports.clock import Clock
from podkeeper.testing.contracts.contract import Contract

CLOCK: Contract[Clock] = Contract()


@CLOCK.promises
async def wall_time_is_aware(clock: Clock) -> None:
    """`now` is an aware instant in UTC."""
    assert clock.now().tzinfo is UTC
    assert clock.now().utcoffset() == timedelta(0)


@CLOCK.promises
async def durations_are_the_loops(clock: Clock) -> None:
    """`monotonic` is the clock that `asyncio.sleep` sleeps by, and never goes back."""
    before = clock.monotonic()
    assert before <= asyncio.get_running_loop().time()
    await asyncio.sleep(0.02)
    assert clock.monotonic() - before >= 0.02 - 1e-9
    assert clock.monotonic() <= asyncio.get_running_loop().time()


@CLOCK.promises
async def chance_is_a_fraction(clock: Clock) -> None:
    """`fraction` lies in [0, 1), and is not always the same."""
    drawn = [clock.fraction() for _ in range(1000)]
    assert all(0 <= number < 1 for number in drawn)
    assert len(set(drawn)) > 900
