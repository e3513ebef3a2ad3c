"""Slots limit concurrent work, a lease frees the slot of a hung call, and tickets define the order."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.concurrency.slots import Slots, Tickets
from podkeeper.testing.virtual_time import VirtualClock, simulate


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


async def time_of_slot(slots: Slots[str], *holders: str) -> float:
    """Return when the last of these callers has a slot. They begin to wait now, in order."""
    waiting = [asyncio.create_task(slots.acquire(holder)) for holder in holders]
    await waiting[-1]
    return asyncio.get_running_loop().time()


def test_each_free_slot_is_granted_to_one_caller() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1)
        await slots.acquire("a")
        first, second = (asyncio.create_task(slots.acquire(name)) for name in "bc")
        await asyncio.sleep(1)
        slots.give_back("a")
        await asyncio.sleep(1)
        assert (first.done(), second.done()) == (True, False)

    run(scenario)


def test_the_lease_of_each_waiting_caller_ends_too() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1, lease_seconds=10)
        began = asyncio.get_running_loop().time()
        assert slots.take("hung")
        assert await time_of_slot(slots, "also hung", "next") - began == 20

    run(scenario)


def test_a_caller_that_gets_a_shorter_lease_frees_its_slot_earlier() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(1, lease_seconds=100)
        began = asyncio.get_running_loop().time()
        assert slots.take("a")
        waiting = [
            asyncio.create_task(slots.acquire("short", lease_seconds=10)),
            asyncio.create_task(slots.acquire("next")),
        ]
        await asyncio.sleep(1)
        slots.give_back("a")
        await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() - began == 11

    run(scenario)


def test_a_caller_is_served_at_the_end_of_the_next_lease_if_the_first_one_ended_early() -> None:
    async def scenario() -> None:
        slots: Slots[str] = Slots(2, lease_seconds=10)
        began = asyncio.get_running_loop().time()
        assert slots.take("a")
        await asyncio.sleep(5)
        assert slots.take("b")
        asyncio.get_running_loop().call_later(1, slots.give_back, "a")  # to c
        assert await time_of_slot(slots, "c", "d") - began == 15

    run(scenario)


# Tickets: owners get slots in the order of their tickets, and idle tickets expire.


def calls_of(scenario: Callable[[Callable[[str], Awaitable[None]]], Awaitable[None]], slots: int = 1) -> list[str]:
    """Run calls of one second each. Return their owners in the order in which they got a slot."""
    served: list[str] = []

    async def main() -> None:
        bounded: Slots[object] = Slots(slots)
        tickets: Tickets[str] = Tickets(10, VirtualClock().monotonic)

        async def call(owner: str) -> None:
            ticket, holder = tickets.draw(owner), object()
            await bounded.acquire(holder, ticket)
            served.append(owner)
            await asyncio.sleep(1)
            bounded.give_back(holder)
            tickets.renew(owner, ticket)

        await scenario(call)

    simulate(main())
    return served


def test_waiting_owners_are_served_in_order_of_arrival() -> None:
    async def scenario(call: Callable[[str], Awaitable[None]]) -> None:
        await asyncio.gather(*(call(owner) for owner in "abc"))

    assert calls_of(scenario) == ["a", "b", "c"]


def test_an_owner_with_an_older_ticket_is_served_before_others() -> None:
    async def scenario(call: Callable[[str], Awaitable[None]]) -> None:
        await call("first")
        await asyncio.gather(call("second"), call("third"), call("first"))

    assert calls_of(scenario) == ["first", "second", "first", "third"]


def test_an_expired_ticket_is_replaced_by_a_new_one() -> None:
    async def scenario(call: Callable[[str], Awaitable[None]]) -> None:
        await call("first")
        await asyncio.sleep(10)
        await asyncio.gather(call("second"), call("third"), call("first"))

    assert calls_of(scenario) == ["first", "second", "third", "first"]


def test_all_slots_are_used_and_released() -> None:
    async def scenario(call: Callable[[str], Awaitable[None]]) -> None:
        for seconds in (2.0, 4.0):
            await asyncio.gather(*(call(owner) for owner in "abcd"))
            assert asyncio.get_running_loop().time() == seconds

    assert calls_of(scenario, slots=2) == [*"abcd", *"abcd"]


def test_a_cancelled_owner_leaves_its_slot_to_the_next() -> None:
    async def scenario(call: Callable[[str], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_awaited(call("first")))
            cancelled = group.create_task(_awaited(call("cancelled")))
            group.create_task(_awaited(call("last")))
            await asyncio.sleep(0.5)
            cancelled.cancel()

    assert calls_of(scenario) == ["first", "last"]


def test_a_ticket_expires_although_another_owner_drew_in_the_meantime() -> None:
    now = 0.0
    tickets: Tickets[str] = Tickets(10, lambda: now)
    drawn = []
    for at, owner in ((0.0, "a"), (5.0, "b"), (6.0, "c"), (12.0, "a"), (12.0, "b")):
        now = at
        drawn.append(tickets.draw(owner))
    assert drawn == [0, 1, 2, 3, 1]


def test_an_owner_keeps_the_older_of_its_two_tickets_after_a_long_call() -> None:
    now = 0.0
    tickets: Tickets[str] = Tickets(10, lambda: now)
    first = tickets.draw("a")
    now = 11.0
    assert [tickets.draw("b"), tickets.draw("a")] == [1, 2]
    tickets.renew("a", first)
    assert tickets.draw("a") == first
    tickets.renew("a", 2)
    assert tickets.draw("a") == first


async def _awaited(call: Awaitable[None]) -> None:
    await call
