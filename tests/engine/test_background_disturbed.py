"""Background work, with an event at every await."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

from podkeeper.engine.background import Background
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls


@dataclass
class Harness:
    background: Background
    running: asyncio.Task[None]
    started: int = 0
    ended: int = 0
    cancelled_at: float = inf
    completed_late: int = 0
    futures: list[asyncio.Future[str]] = field(default_factory=list)

    async def work(self) -> str:
        self.started += 1
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(10)
            self.completed_late += asyncio.get_running_loop().time() > self.cancelled_at
            return "done"
        finally:
            self.ended += 1

    async def spawn_and_wait(self) -> None:
        """Do what a sync does. If it is cancelled, the work continues."""
        future = self.background.spawn(self.work())
        self.futures.append(future)
        await asyncio.wait({future})

    def cancel_the_work(self) -> None:
        self.cancelled_at = asyncio.get_running_loop().time()
        for future in self.futures:
            future.cancel()

    def check(self) -> None:
        assert self.started == self.ended
        assert self.completed_late <= sum(not future.cancelled() for future in self.futures)
        assert all(future.done() for future in self.futures), "a future that never ends"


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    background = Background()
    running = asyncio.ensure_future(background.run())
    yield Harness(background, running)
    running.cancel()
    await asyncio.wait({running})


async def stop(harness: Harness) -> None:
    """Do what the agent does when it stops."""
    harness.running.cancel()
    await asyncio.wait({harness.running})
    harness.background.give_up()


EVENTS: dict[str, Event[Harness]] = {
    "the agent stops": stop,
    "the work is cancelled": Harness.cancel_the_work,
}


def test_every_future_ends_and_no_work_is_left() -> None:
    operation = OperationTest(
        setup=set_up, run=Harness.spawn_and_wait, state=lambda _: None, check=Harness.check, settle_seconds=20
    )
    interleave(operation, EVENTS, depth=2)


def test_work_continues_when_its_caller_is_cancelled() -> None:
    def all_work_was_done(harness: Harness) -> None:
        harness.check()
        assert all(future.result() == "done" for future in harness.futures)

    operation = OperationTest(
        setup=set_up, run=Harness.spawn_and_wait, state=lambda _: None, check=all_work_was_done, settle_seconds=20
    )
    interleave(operation, {"other work": Harness.spawn_and_wait})
