"""Slots bound concurrent work; a lease frees the slot of a hung call."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.concurrency.slots import Slots
from podkeeper.testing.virtual_time import simulate


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def play() -> None:
        await scenario()

    simulate(play())


def test_no_more_holders_than_slots() -> None:
    async def scenario() -> None:
        freed: list[int] = []
        slots: Slots[str] = Slots(2, on_free=lambda: freed.append(1))
        assert [slots.take(each) for each in "abc"] == [True, True, False]
        slots.give_back("a")
        slots.give_back("a")
        assert freed == [1]
        assert [slots.take(each) for each in "cd"] == [True, False]

    run(scenario)


def test_waiting_callers_are_served_by_rank_and_then_in_order() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1)
        order: list[str] = []

        async def work(name: str, rank: int) -> None:
            await slots.acquire(name, rank)
            order.append(name)
            await asyncio.sleep(1)
            slots.give_back(name)

        async with asyncio.TaskGroup() as group:
            for name, rank in {"first": 5, "late": 2, "early": 1, "early too": 1}.items():
                group.create_task(work(name, rank))
        assert order == ["first", "early", "early too", "late"]

    run(scenario)


def test_a_cancelled_caller_leaves_its_place_and_its_slot() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1)
        await slots.acquire("a")
        waiting, granted = (asyncio.create_task(slots.acquire(name)) for name in "bc")
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait({waiting})
        slots.give_back("a")  # grants the slot to c, and c is cancelled before it runs
        granted.cancel()
        await asyncio.wait({granted})
        assert slots.take("d")

    run(scenario)


def test_a_lease_frees_the_slot_of_a_hung_call() -> None:
    async def scenario() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        expired: list[str] = []
        slots: Slots[str] = Slots(1, lease_seconds=10, on_expired=expired.append)
        await slots.acquire("hung")
        await asyncio.sleep(4)
        await slots.acquire("next")
        assert (loop.time() - began, expired) == (10, ["hung"])
        slots.give_back("hung")  # ended at last: it has no slot any more
        assert not slots.take("third")

    run(scenario)


def test_an_expired_lease_is_reported_to_callers_that_do_not_wait() -> None:
    async def scenario() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        freed: list[float] = []
        slots: Slots[str] = Slots(1, lease_seconds=10, on_free=lambda: freed.append(loop.time() - began))
        assert slots.take("hung")
        await asyncio.sleep(4)
        assert not slots.take("next")
        await asyncio.sleep(20)
        assert freed == [10]
        assert slots.take("next")

    run(scenario)


def test_no_timer_runs_while_no_caller_waits() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        slots: Slots[str] = Slots(1, lease_seconds=10)
        timers = len(loop._scheduled)  # type: ignore[attr-defined]  # the loop has no public list of timers
        assert slots.take("a")
        assert len(loop._scheduled) == timers  # type: ignore[attr-defined]  # as above

    run(scenario)


def test_a_cancelled_timer_is_set_again_when_a_slot_is_needed() -> None:
    async def scenario() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        freed: list[float] = []
        slots: Slots[str] = Slots(1, lease_seconds=10, on_free=lambda: freed.append(loop.time() - began))
        slots.cancel_timer()  # there is none
        assert slots.take("hung")
        assert not slots.take("next")
        slots.cancel_timer()
        await asyncio.sleep(20)
        assert freed == []
        slots.give_back("hung")
        assert slots.take("next")
        assert not slots.take("third")
        await asyncio.sleep(20)
        assert freed == [20, 30]

    run(scenario)


def test_an_idle_lease_expires_when_its_slot_is_needed() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1, lease_seconds=10)
        assert slots.take("hung")
        await asyncio.sleep(10)
        assert slots.take("next")

    run(scenario)
