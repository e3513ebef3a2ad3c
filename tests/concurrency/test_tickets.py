"""Tickets: owners get slots in the order of their tickets, and idle tickets expire."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.concurrency.slots import Slots, Tickets
from podkeeper.testing.virtual_time import VirtualClock, simulate


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


async def _awaited(call: Awaitable[None]) -> None:
    await call
