"""Delays double up to their limit."""

from math import inf

import pytest

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter

DELAY = GrowingDelay(first_seconds=0.5, longest_seconds=3)


@pytest.mark.parametrize(("failures", "seconds"), {1: 0.5, 2: 1, 3: 2, 4: 3, 5: 3, 10**6: 3}.items())
def test_the_delay_after_failures(failures: int, seconds: float) -> None:
    assert DELAY.after(failures) == seconds


def test_a_delay_without_a_limit_does_not_overflow() -> None:
    delay = GrowingDelay(3, inf)
    assert [delay.after(failures) for failures in (64, 65, 66, 5000)] == [3 * 2.0**63, *[3 * 2.0**64] * 3]


def test_a_success_resets_the_delay() -> None:
    retries = RetryCounter(DELAY)
    assert [retries.failed() for _ in range(3)] == [0.5, 1, 2]
    retries.succeeded()
    assert (retries.failures, retries.failed()) == (0, 0.5)
