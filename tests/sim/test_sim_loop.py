"""The simulation's event loop is deterministic."""

import asyncio
import selectors
from random import Random

import pytest

from podkeeper.testing.sim.loop import SimLoop
from podkeeper.testing.virtual_time import Stuck, VirtualLoop, simulate


def order_of_cancelling(tasks: int) -> list[int]:
    """Return the order in which a task group cancels its tasks when one fails."""
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


def test_a_task_group_cancels_tasks_in_creation_order() -> None:
    """Plain tasks are hashed by address, so their order would vary."""
    assert order_of_cancelling(200) == list(range(200))


class _JumpingSelector(selectors.DefaultSelector):
    loop: "PlainLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.now += timeout or 0.0
        return []


class PlainLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time that runs asyncio's own step with asyncio's own handles."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def history_on(loop: asyncio.SelectorEventLoop) -> list[tuple[float, int]]:
    """Run hundreds of timers, many of them due at the same time or cancelled, and return which of them ran when."""
    random = Random(7)
    ran: list[tuple[float, int]] = []
    timers: list[asyncio.TimerHandle] = []

    def run(number: int) -> None:
        ran.append((loop.time(), number))

    async def scenario() -> None:
        for number in range(600):
            delay = random.choice((0.5, 1.0, 1.0, 2.0, 50.0))
            timers.append(loop.call_later(delay, run, number))
            if random.random() < 0.7:
                random.choice(timers).cancel()
            if number % 20 == 0:
                await asyncio.sleep(random.choice((0.0, 0.1, 1.0)))
        await asyncio.sleep(100)

    loop.run_until_complete(scenario())
    loop.close()
    return ran


def test_timers_run_in_the_same_order_as_in_asyncio() -> None:
    expected = history_on(PlainLoop())
    assert len(expected) > 100
    assert history_on(VirtualLoop()) == expected
    assert history_on(SimLoop(Random(0))) == expected


def test_a_callback_that_raises_does_not_stop_the_loop() -> None:
    loop, errors = SimLoop(Random(0)), []
    loop.set_exception_handler(lambda _, context: errors.append(repr(context["exception"])))

    async def scenario() -> str:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)
        return "done"

    assert simulate(scenario(), loop) == ("done", 1.0)
    assert errors == ["ZeroDivisionError('integer division or modulo by zero')"]


def test_a_loop_without_work_raises_stuck() -> None:
    with pytest.raises(Stuck):
        simulate(asyncio.Event().wait(), SimLoop(Random(0)))
