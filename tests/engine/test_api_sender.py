"""API sender: retries, slots, leases and draining."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from podkeeper.engine.api_sender import ApiSender
from podkeeper.model.errors import TryLater
from podkeeper.testing.virtual_time import FixedJitterClock, VirtualClock, simulate

T = TypeVar("T")


class Harness:
    """A sender whose calls take time or fail."""

    def __init__(self, concurrency: int) -> None:
        self.sender: ApiSender[str] = ApiSender(
            clock=VirtualClock(), what="status of", concurrency=concurrency, lease_seconds=2
        )
        self.begun: list[tuple[float, str]] = []
        self.ended: list[tuple[float, str]] = []
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, list[Exception]] = {}

    async def send(self, key: str) -> None:
        self.begun.append((_now(), key))
        await asyncio.sleep(self.seconds.get(key, 0))
        if self.failures.get(key):
            raise self.failures[key].pop()
        self.ended.append((_now(), key))

    def offer(self, *keys: str) -> None:
        for key in keys:
            self.sender.offer(key, key)


def _now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


def run_scenario(scenario: Callable[[Harness], Awaitable[T]], concurrency: int = 4) -> T:
    async def run() -> T:
        harness = Harness(concurrency)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.sender.run(harness.send))
            result = await scenario(harness)
            running.cancel()
        return result

    return simulate(run())[0]


@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["expected", "unexpected"])
def test_a_failed_call_is_retried_without_another_offer(error: Exception) -> None:
    async def scenario(harness: Harness) -> None:
        harness.failures["a"] = [error] * 3
        harness.offer("a")
        await asyncio.sleep(60)
        assert [key for _, key in harness.begun] == ["a"] * 4
        assert len(harness.ended) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["expected", "unexpected"])
def test_a_failed_call_releases_its_slot_at_once(error: Exception) -> None:
    async def scenario(harness: Harness) -> None:
        harness.failures["a"] = [error] * 3
        harness.offer("a", "b", "c")
        await asyncio.sleep(0.1)
        assert [key for _, key in harness.ended] == ["b", "c"]

    run_scenario(scenario, concurrency=1)


def test_the_lease_of_a_call_does_not_end_the_next_call() -> None:
    async def scenario(harness: Harness) -> None:
        harness.offer("a")
        await asyncio.sleep(1.5)
        harness.seconds["a"] = 10
        harness.offer("a")
        await asyncio.sleep(0.25)
        harness.offer("b")
        await asyncio.sleep(5)
        assert harness.begun == [(0, "a"), (1.5, "a"), (3.5, "b")]

    run_scenario(scenario, concurrency=1)


def test_a_key_offered_during_its_call_is_sent_again() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds["a"] = 1
        harness.offer("a")
        await asyncio.sleep(0.5)
        harness.offer("a")
        await asyncio.sleep(5)
        assert harness.ended == [(1, "a"), (2, "a")]

    run_scenario(scenario)


def test_drain_waits_for_a_call_that_run_started() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds["a"] = 5
        harness.offer("a")
        await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(harness.sender.drain(["a"], harness.send))
            for number in range(4):
                await asyncio.sleep(0.5)
                harness.offer(f"other-{number}")
            assert not drained.done()
        assert _now() == 5
        assert [key for _, key in harness.begun].count("a") == 1

    run_scenario(scenario)


def test_drain_does_not_wait_for_a_retry() -> None:
    async def scenario(harness: Harness) -> None:
        harness.failures["a"] = [TryLater("no answer")] * 3
        harness.offer("a", "b")
        await harness.sender.drain(["a", "b"], harness.send)
        assert _now() == 0
        assert [key for _, key in harness.ended] == ["b"]

    run_scenario(scenario)


def test_an_offer_withdrawn_after_a_failure_is_not_retried() -> None:
    async def scenario(harness: Harness) -> None:
        harness.failures["a"] = [TryLater("no answer")] * 3
        harness.offer("a")
        await asyncio.sleep(0.1)
        harness.sender.forget("a")
        await asyncio.sleep(60)
        assert len(harness.begun) == 1

    run_scenario(scenario)


@pytest.mark.parametrize(
    "fraction, expected",
    [(0.0, [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5]), (0.5, [0, 0.75, 2.25, 5.25, 11.25])],
    ids=["shortest", "middle"],
)
@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["expected", "unexpected"])
def test_failures_in_a_row_are_retried_after_doubling_delays(
    fraction: float, expected: list[float], error: Exception
) -> None:
    async def scenario() -> list[float]:
        tries: list[float] = []
        sender: ApiSender[str] = ApiSender(clock=FixedJitterClock(fraction), what="status of")

        async def send(key: str) -> None:
            tries.append(_now())
            if len(tries) < len(expected):
                raise error

        async with asyncio.TaskGroup() as group:
            running = group.create_task(sender.run(send))
            sender.offer("a", "a")
            await asyncio.sleep(100)
            running.cancel()
        return tries

    assert simulate(scenario())[0] == expected


def test_by_default_there_are_sixteen_slots_and_a_lease_of_five_seconds() -> None:
    async def scenario() -> list[tuple[float, int]]:
        begun: list[tuple[float, int]] = []
        sender: ApiSender[int] = ApiSender(clock=VirtualClock(), what="status of")

        async def send(key: int) -> None:
            begun.append((_now(), key))
            await asyncio.sleep(60)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(sender.run(send))
            for key in range(17):
                sender.offer(key, key)
            await asyncio.sleep(20)
            running.cancel()
        return begun

    assert simulate(scenario())[0] == [*((0, key) for key in range(16)), (5, 16)]


@pytest.mark.parametrize(
    "concurrency, expected",
    [(1, [(0, "d"), (1, "a"), (2, "b"), (3, "c")]), (4, [(0, "d"), (0, "a"), (0, "c"), (1, "b")])],
)
def test_an_urgent_offer_is_sent_first_unless_its_target_is_busy(
    concurrency: int, expected: list[tuple[float, str]]
) -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = dict.fromkeys("abcd", 1)
        for key, target in (("a", "t"), ("b", "t"), ("c", "u")):
            harness.sender.offer(key, target)
        harness.sender.offer("d", "v", urgent=True)
        await asyncio.sleep(10)
        assert harness.begun == expected

    run_scenario(scenario, concurrency)


@pytest.mark.parametrize("at_once, tries", [(False, 1), (True, 2)])
def test_an_offer_after_a_failure_waits_for_the_retry_unless_it_is_at_once(at_once: bool, tries: int) -> None:
    async def scenario(harness: Harness) -> None:
        harness.failures["a"] = [TryLater("no answer")] * 3
        harness.offer("a")
        await asyncio.sleep(0.1)
        if at_once:
            harness.sender.offer("a", "a", at_once=True)
        else:
            harness.offer("a")
        await asyncio.sleep(0.1)
        assert len(harness.begun) == tries

    run_scenario(scenario)


def test_drain_does_not_wait_for_a_withdrawn_offer() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds["a"] = 1.5
        harness.offer("a", "b")
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(harness.sender.drain(["b"], harness.send))
            await asyncio.sleep(0.5)
            assert not drained.done()
            harness.sender.forget("b")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert drained.done()
        await asyncio.sleep(5)
        assert harness.begun == [(0, "a")]

    run_scenario(scenario, concurrency=1)


def test_drain_works_without_run() -> None:
    async def scenario() -> None:
        harness = Harness(concurrency=1)
        harness.seconds = {"a": 1, "b": 1, "c": 1}
        harness.offer("a", "b", "c")
        await harness.sender.drain(["a", "b"], harness.send)
        assert harness.begun == [(0, "a"), (1, "b")]
        assert harness.ended == [(1, "a"), (2, "b")]
        await harness.sender.drain(["c", "unknown"], harness.send)
        assert harness.ended == [(1, "a"), (2, "b"), (3, "c")]

    simulate(scenario())


def test_an_outage_logs_at_most_sixteen_warnings_and_one_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="podkeeper.engine.api_sender")

    def warnings() -> int:
        found = [record.levelno for record in caplog.records]
        caplog.clear()
        assert set(found) <= {logging.DEBUG, logging.WARNING}
        return found.count(logging.WARNING)

    async def scenario(harness: Harness) -> None:
        first, second = [f"first-{number}" for number in range(20)], [f"second-{number}" for number in range(20)]
        harness.failures = {key: [TryLater("no answer")] * 100 for key in (*first, *second)}
        harness.offer(*first)
        await asyncio.sleep(0.1)
        assert warnings() == 16
        await asyncio.sleep(60)
        assert warnings() == 0  # all keys have failed before
        harness.offer("good")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        harness.failures = {key: [TryLater("no answer")] * 100 for key in second}  # the first keys recover
        harness.offer(*second)
        await asyncio.sleep(0.01)
        assert warnings() == 16  # counted from zero after a success
        await asyncio.sleep(60)
        assert warnings() == 0

    run_scenario(scenario)


def test_a_key_that_recovered_logs_a_warning_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="podkeeper.engine.api_sender")

    async def scenario(harness: Harness) -> None:
        for _ in range(3):
            harness.failures["a"] = [TryLater("no answer")] * 2
            harness.offer("a")
            await asyncio.sleep(60)
        levels = [record.levelno for record in caplog.records]
        assert levels == [logging.WARNING, logging.DEBUG] * 3

    run_scenario(scenario)
