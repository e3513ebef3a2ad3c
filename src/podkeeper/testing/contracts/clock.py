"""Contract of the clock port."""

import asyncio
from datetime import UTC, timedelta

from podkeeper.ports.clock import Clock
from podkeeper.testing.contracts.contract import Contract

CLOCK: Contract[Clock] = Contract()


@CLOCK.scenario
async def wall_time_is_in_utc(clock: Clock) -> None:
    """`now` returns a timezone-aware datetime in UTC."""
    assert clock.now().tzinfo is UTC
    assert clock.now().utcoffset() == timedelta(0)


@CLOCK.scenario
async def monotonic_time_is_the_time_of_the_event_loop(clock: Clock) -> None:
    """`monotonic` uses the same clock as `asyncio.sleep` and never decreases."""
    before = clock.monotonic()
    assert before <= asyncio.get_running_loop().time()
    await asyncio.sleep(0.02)
    assert clock.monotonic() - before >= 0.02 - 1e-9
    assert clock.monotonic() <= asyncio.get_running_loop().time()


@CLOCK.scenario
async def fraction_is_random(clock: Clock) -> None:
    """`fraction` returns different numbers in [0, 1)."""
    drawn = [clock.fraction() for _ in range(1000)]
    assert all(0 <= number < 1 for number in drawn)
    assert len(set(drawn)) > 900
