"""Log symlinks, with an event at every await and a failure of every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podkeeper.engine.log_symlinks import LogSymlinks
from podkeeper.model.errors import TryLater
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_log_symlinks import Links, Runtime


@asynccontextmanager
async def linking(calls: PortCalls) -> AsyncIterator[tuple[Links, Runtime]]:
    links, runtime = Links(old=False), Runtime("a")
    watched = calls.watch("links", links, dict.fromkeys(("list_links", "make", "remove"), (TryLater,)))
    gc = LogSymlinks(runtime=calls.watch("runtime", runtime), links=watched, log_root="/logs", period_seconds=10)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gc.run())
        yield links, runtime
        running.cancel()


def test_links_are_correct_after_every_event_and_failure() -> None:
    def start(harness: tuple[Links, Runtime]) -> None:
        """Start another container, whose link is created at once."""
        harness[1].ids = ("a", "b")
        harness[0].existing["p_ns_c-b.log"] = True

    operation = OperationTest(
        setup=linking, run=lambda _: asyncio.sleep(1), state=lambda harness: harness[0].existing, settle_seconds=25
    )
    events: dict[str, Event[tuple[Links, Runtime]]] = {
        "a container starts": start,
        "the links are removed": lambda harness: harness[0].existing.clear(),
    }
    interleave(operation, events, cancel=False)
    fail_each_call(operation)
