"""The simulation's loop: what asyncio does in the order of a set, it does in the same order in every loop."""

import asyncio
from random import Random

from podkeeper.testing.sim.loop import SimLoop
from podkeeper.testing.virtual_time import simulate


def order_of_cancelling(tasks: int) -> list[int]:
    """In which order a task group cancels its tasks when one fails."""
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def scenario() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                for number in range(tasks):
                    group.create_task(wait(number))
        except* ValueError:
            pass

    simulate(scenario(), SimLoop(Random(0)))
    return cancelled


def test_a_task_group_cancels_in_the_order_in_which_tasks_were_made() -> None:
    """By address, as plain tasks are hashed, it would be any order."""
    assert order_of_cancelling(200) == list(range(200))
