"""Calls in threads, with an event at every await: one per key at a time, and every slot is released."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.volumes.threads import MAX_CALLS, SLOW_SECONDS, Threads


@dataclass
class Stage:
    threads: Threads
    takes: float = 0.0
    running: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    done: list[str] = field(default_factory=list)

    async def work(self, key: str, seconds: float = 0.0) -> str:
        self.takes = seconds
        return await self.threads.run(key, key, lambda: self.finish(key))

    def finish(self, key: str) -> str:
        self.done.append(key)
        return key

    def start(self, body: Callable[[], None], name: str) -> None:
        key = name.removeprefix("volumes: ")
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])

        def end() -> None:
            self.running[key] -= 1
            body()

        asyncio.get_running_loop().call_later(self.takes, end)


def working(*, busy: int = 0, seconds: float = 0.0) -> OperationTest[Stage]:
    """One call with a key during a number of other calls."""

    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
        calls.errors["threads", "start"] = (RuntimeError,)

        def start(body: Callable[[], None], name: str) -> None:
            if calls.begin("threads", "start") is not None:
                raise RuntimeError("can't start new thread")
            made.start(body, name)

        made = Stage(Threads(start=start))
        async with asyncio.TaskGroup() as group:
            for number in range(busy):
                group.create_task(made.work(f"busy-{number}", SLOW_SECONDS / 2))
            await asyncio.sleep(0)
            calls.log.clear()
            yield made

    return OperationTest(
        setup=stage,
        run=lambda stage: stage.work("web", seconds),
        state=lambda stage: set(stage.done),
        check=one_at_a_time,
        afterwards=every_slot_is_free_and_there_are_no_more,
        settle_seconds=3 * SLOW_SECONDS,
    )


def one_at_a_time(stage: Stage) -> None:
    assert max(stage.most.values(), default=0) <= 1
    assert sum(stage.running.values()) == 0


async def every_slot_is_free_and_there_are_no_more(stage: Stage) -> None:
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for key in ("web", *(f"key-{number}" for number in range(MAX_CALLS))):
            group.create_task(stage.work(key, SLOW_SECONDS / 2))
    assert asyncio.get_running_loop().time() - began == SLOW_SECONDS  # one call had to wait for a slot


EVENTS: dict[str, Event[Stage]] = {
    "another call with the key": lambda stage: stage.work("web"),
    "a slow call with the key": lambda stage: stage.work("web", 2 * SLOW_SECONDS),
    "a call with another key": lambda stage: stage.work("db"),
}


@pytest.mark.parametrize("busy", [0, MAX_CALLS])
@pytest.mark.parametrize("seconds", [0.0, 2 * SLOW_SECONDS])
def test_every_event_at_every_await(busy: int, seconds: float) -> None:
    interleave(working(busy=busy, seconds=seconds), EVENTS, depth=1 if busy else 2)


def test_every_thread_fails_to_start_once() -> None:
    fail_each_call(working(busy=1), unexpected=False, lost_answers=False)
