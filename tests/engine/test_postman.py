"""The postman by itself: failures are retried, slots come back, and whoever drains waits for what is under way."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from podkeeper.engine.postman import Postman
from podkeeper.model.errors import TryLater
from podkeeper.testing.virtual_time import FixedJitterClock, VirtualClock, simulate

T = TypeVar("T")


class Post:
    """A postman, and deliveries that take a while or fail."""

    def __init__(self, concurrency: int) -> None:
        self.postman: Postman[str] = Postman(
            clock=VirtualClock(), what="news of", concurrency=concurrency, lease_seconds=2
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
            self.postman.offer(key, key)


def _now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


def play(scenario: Callable[[Post], Awaitable[T]], concurrency: int = 4) -> T:
    async def life() -> T:
        post = Post(concurrency)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(post.postman.run(post.send))
            result = await scenario(post)
            running.cancel()
        return result

    return simulate(life())[0]


@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_a_delivery_that_failed_is_tried_again_without_another_offer(error: Exception) -> None:
    async def scenario(post: Post) -> None:
        post.failures["a"] = [error] * 3
        post.offer("a")
        await asyncio.sleep(60)
        assert [key for _, key in post.begun] == ["a"] * 4
        assert len(post.ended) == 1

    play(scenario)


@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_a_delivery_that_failed_gives_its_slot_back_at_once(error: Exception) -> None:
    async def scenario(post: Post) -> None:
        post.failures["a"] = [error] * 3
        post.offer("a", "b", "c")
        await asyncio.sleep(0.1)
        assert [key for _, key in post.ended] == ["b", "c"]

    play(scenario, concurrency=1)


def test_the_lease_of_a_delivery_ends_with_it_and_not_the_next_one() -> None:
    async def scenario(post: Post) -> None:
        post.offer("a")
        await asyncio.sleep(1.5)
        post.seconds["a"] = 10
        post.offer("a")
        await asyncio.sleep(0.25)
        post.offer("b")
        await asyncio.sleep(5)
        assert post.begun == [(0, "a"), (1.5, "a"), (3.5, "b")]

    play(scenario, concurrency=1)


def test_what_is_offered_while_it_is_delivered_is_delivered_again() -> None:
    async def scenario(post: Post) -> None:
        post.seconds["a"] = 1
        post.offer("a")
        await asyncio.sleep(0.5)
        post.offer("a")
        await asyncio.sleep(5)
        assert post.ended == [(1, "a"), (2, "a")]

    play(scenario)


def test_whoever_drains_waits_for_a_delivery_that_others_began() -> None:
    async def scenario(post: Post) -> None:
        post.seconds["a"] = 5
        post.offer("a")
        await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(post.postman.drain(["a"], post.send))
            for number in range(4):
                await asyncio.sleep(0.5)
                post.offer(f"other-{number}")
            assert not drained.done()
        assert _now() == 5
        assert [key for _, key in post.begun].count("a") == 1

    play(scenario)


def test_whoever_drains_does_not_wait_for_a_retry() -> None:
    async def scenario(post: Post) -> None:
        post.failures["a"] = [TryLater("no answer")] * 3
        post.offer("a", "b")
        await post.postman.drain(["a", "b"], post.send)
        assert _now() == 0
        assert [key for _, key in post.ended] == ["b"]

    play(scenario)


def test_an_offer_that_is_taken_back_after_a_failure_is_not_tried_again() -> None:
    async def scenario(post: Post) -> None:
        post.failures["a"] = [TryLater("no answer")] * 3
        post.offer("a")
        await asyncio.sleep(0.1)
        post.postman.forget("a")
        await asyncio.sleep(60)
        assert len(post.begun) == 1

    play(scenario)


@pytest.mark.parametrize(
    "fraction, expected",
    [(0.0, [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5]), (0.5, [0, 0.75, 2.25, 5.25, 11.25])],
    ids=["shortest", "middle"],
)
@pytest.mark.parametrize("error", [TryLater("no answer"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_failures_in_a_row_are_retried_after_doubling_delays(
    fraction: float, expected: list[float], error: Exception
) -> None:
    async def scenario() -> list[float]:
        tries: list[float] = []
        postman: Postman[str] = Postman(clock=FixedJitterClock(fraction), what="news of")

        async def send(key: str) -> None:
            tries.append(_now())
            if len(tries) < len(expected):
                raise error

        async with asyncio.TaskGroup() as group:
            running = group.create_task(postman.run(send))
            postman.offer("a", "a")
            await asyncio.sleep(100)
            running.cancel()
        return tries

    assert simulate(scenario())[0] == expected


def test_by_default_sixteen_are_sent_at_a_time_and_a_slow_one_keeps_its_slot_for_five_seconds() -> None:
    async def scenario() -> list[tuple[float, int]]:
        begun: list[tuple[float, int]] = []
        postman: Postman[int] = Postman(clock=VirtualClock(), what="news of")

        async def send(key: int) -> None:
            begun.append((_now(), key))
            await asyncio.sleep(60)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(postman.run(send))
            for key in range(17):
                postman.offer(key, key)
            await asyncio.sleep(20)
            running.cancel()
        return begun

    assert simulate(scenario())[0] == [*((0, key) for key in range(16)), (5, 16)]


@pytest.mark.parametrize(
    "concurrency, expected",
    [(1, [(0, "d"), (1, "a"), (2, "b"), (3, "c")]), (4, [(0, "d"), (0, "a"), (0, "c"), (1, "b")])],
)
def test_an_urgent_offer_goes_first_and_one_for_a_busy_target_waits_for_it(
    concurrency: int, expected: list[tuple[float, str]]
) -> None:
    async def scenario(post: Post) -> None:
        post.seconds = dict.fromkeys("abcd", 1)
        for key, target in (("a", "t"), ("b", "t"), ("c", "u")):
            post.postman.offer(key, target)
        post.postman.offer("d", "v", urgent=True)
        await asyncio.sleep(10)
        assert post.begun == expected

    play(scenario, concurrency)


@pytest.mark.parametrize("at_once, tries", [(False, 1), (True, 2)])
def test_an_offer_after_a_failure_waits_for_the_retry_unless_it_is_at_once(at_once: bool, tries: int) -> None:
    async def scenario(post: Post) -> None:
        post.failures["a"] = [TryLater("no answer")] * 3
        post.offer("a")
        await asyncio.sleep(0.1)
        if at_once:
            post.postman.offer("a", "a", at_once=True)
        else:
            post.offer("a")
        await asyncio.sleep(0.1)
        assert len(post.begun) == tries

    play(scenario)


def test_whoever_drains_does_not_wait_for_what_is_taken_back() -> None:
    async def scenario(post: Post) -> None:
        post.seconds["a"] = 1.5
        post.offer("a", "b")
        async with asyncio.TaskGroup() as group:
            drained = group.create_task(post.postman.drain(["b"], post.send))
            await asyncio.sleep(0.5)
            assert not drained.done()
            post.postman.forget("b")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert drained.done()
        await asyncio.sleep(5)
        assert post.begun == [(0, "a")]

    play(scenario, concurrency=1)


def test_draining_works_without_running() -> None:
    async def scenario() -> None:
        post = Post(concurrency=1)
        post.seconds = {"a": 1, "b": 1, "c": 1}
        post.offer("a", "b", "c")
        await post.postman.drain(["a", "b"], post.send)
        assert post.begun == [(0, "a"), (1, "b")]
        assert post.ended == [(1, "a"), (2, "b")]
        await post.postman.drain(["c", "unknown"], post.send)
        assert post.ended == [(1, "a"), (2, "b"), (3, "c")]

    simulate(scenario())


def test_an_outage_is_warned_about_for_sixteen_keys_and_each_key_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="podkeeper.engine.postman")

    def warnings() -> int:
        found = [record.levelno for record in caplog.records]
        caplog.clear()
        assert set(found) <= {logging.DEBUG, logging.WARNING}
        return found.count(logging.WARNING)

    async def scenario(post: Post) -> None:
        first, second = [f"first-{number}" for number in range(20)], [f"second-{number}" for number in range(20)]
        post.failures = {key: [TryLater("no answer")] * 100 for key in (*first, *second)}
        post.offer(*first)
        await asyncio.sleep(0.1)
        assert warnings() == 16
        await asyncio.sleep(60)
        assert warnings() == 0  # all have failed before
        post.offer("good")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        post.failures = {key: [TryLater("no answer")] * 100 for key in second}  # the first recover
        post.offer(*second)
        await asyncio.sleep(0.01)
        assert warnings() == 16  # counted anew after a success
        await asyncio.sleep(60)
        assert warnings() == 0

    play(scenario)


def test_a_key_that_recovered_is_warned_about_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="podkeeper.engine.postman")

    async def scenario(post: Post) -> None:
        for _ in range(3):
            post.failures["a"] = [TryLater("no answer")] * 2
            post.offer("a")
            await asyncio.sleep(60)
        levels = [record.levelno for record in caplog.records]
        assert levels == [logging.WARNING, logging.DEBUG] * 3

    play(scenario)
