"""Cached reads, with an event at every await and each error of the API: one refresh has one result per object.

`VolumeManager.refresh` reads one object after the other, so no two first reads of an object overlap.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from podkeeper.model.errors import AgentError, ApiUnavailable, NotFound
from podkeeper.model.k8s.core import ConfigMap
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.testing.interleave import interleave
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import InjectedFault, PortCall, PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from podkeeper.volumes.read_cache import ReadCache


def coloured(name: str, colour: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="ns"), data={"colour": colour})


@dataclass
class Stage:
    api: MemoryApi
    calls: PortCalls
    reads: ReadCache
    answers: list[str] = field(default_factory=list)

    async def read(self, name: str = "a") -> None:
        try:
            found = await self.reads.get(ConfigMap, name, "ns")
        except AgentError as error:
            self.answers.append(f"{name}: {type(error).__name__}")
        else:
            self.answers.append(f"{name}: {found.data}")

    async def read_twice(self) -> None:
        await self.read()
        await self.read()

    def change(self) -> None:
        self.api.put(coloured("a", "green"))

    def check(self) -> None:
        names = [answer.partition(":")[0] for answer in self.answers]
        assert len(set(self.answers)) == len(set(names))
        assert len(self.calls.log) == len(set(names))


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    api = MemoryApi(VirtualClock())
    for name in ("a", "b"):
        api.put(coloured(name, "blue"))
    yield Stage(api, calls, ReadCache(calls.watch("api", api)))


OPERATION = OperationTest(setup=stage, run=Stage.read_twice, state=lambda stage: set(stage.answers), check=Stage.check)
EVENTS: dict[str, Event[Stage]] = {
    "the object changes": Stage.change,
    "the object is deleted": lambda stage: stage.api.remove(ConfigMap, "a", "ns"),
    "the API fails": lambda stage: stage.api.go_down(),
    "another object is read": lambda stage: stage.read("b"),
}


def test_every_event_at_every_await() -> None:
    # A cancelled read has no result and is repeated, so the API is called twice.
    interleave(OPERATION, EVENTS, cancel=False)


@pytest.mark.parametrize("error", [ApiUnavailable, NotFound])
def test_an_error_is_cached(error: type[Exception]) -> None:
    async def scenario() -> list[str]:
        calls = PortCalls()
        calls.arm(InjectedFault(PortCall("api", "get", 0), error))
        async with stage(calls) as made:
            await made.read_twice()
            await made.read("b")
            made.check()
            return made.answers

    answers, _ = simulate(scenario())
    assert answers == [f"a: {error.__name__}"] * 2 + ["b: {'colour': 'blue'}"]


def test_a_cancelled_read_is_not_cached() -> None:
    async def scenario() -> list[str]:
        async with stage(PortCalls()) as made:
            reading = asyncio.create_task(made.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            await made.read()
            return made.answers

    assert simulate(scenario())[0] == ["a: {'colour': 'blue'}"]
