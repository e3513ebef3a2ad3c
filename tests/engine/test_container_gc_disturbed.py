"""Garbage collection of dead containers, with a failure of every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podkeeper.engine.container_gc import ContainerGC
from podkeeper.model.runtime import PodRecord
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.operations import OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_container_gc import Listing, dead


class Remover:
    """Removes the garbage of pods."""

    def __init__(self) -> None:
        self.collected: set[str] = set()

    async def collect(self, record: PodRecord) -> None:
        self.collected.add(record.uid)


@asynccontextmanager
async def collecting(calls: PortCalls) -> AsyncIterator[Remover]:
    listing, remover = Listing(dead("within-limit", 1), dead("one", 2), dead("two", 3)), Remover()
    gc = ContainerGC(
        runtime=calls.watch("runtime", listing),
        collect=calls.watch("remover", remover, {"collect": ()}).collect,
        record_event=lambda event: None,
        period_seconds=10,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gc.run())
        yield remover
        running.cancel()


def test_garbage_is_collected_after_every_failure() -> None:
    collect = OperationTest(
        setup=collecting, run=lambda _: asyncio.sleep(25), state=lambda harness: sorted(harness.collected)
    )
    fail_each_call(collect)
