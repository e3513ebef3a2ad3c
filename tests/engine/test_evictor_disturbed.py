"""The evictor, with an event at every await and a failure of every kill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from podkeeper.engine.evictor import Evictor
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_evictor import WEB, House, pod


@dataclass
class Stage:
    evictor: Evictor
    house: House

    async def evict(self) -> None:
        self.evictor.evict(WEB, "too large")
        await asyncio.gather(*self.house.work, return_exceptions=True)

    def what_was_done(self) -> object:
        return len(self.house.kills), [event.reason for event in self.house.events], len(self.house.signals)

    def end(self) -> None:
        """The pod is to end for another reason."""
        self.house.ending.add(WEB)

    def remove(self) -> None:
        self.house.pods.clear()


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    house = House({WEB: pod()})
    yield Stage(house.evictor(calls), house)


async def evict_again(stage: Stage) -> None:
    """The pod returns under its UID and is too large again."""
    stage.house.ending.clear()
    stage.house.pods[WEB] = pod()
    kills = len(stage.house.kills)
    await stage.evict()
    assert len(stage.house.kills) == kills + 1


EVICTING = Operation(stage=stage, run=Stage.evict, state=Stage.what_was_done, afterwards=evict_again)
EVENTS: dict[str, Event[Stage]] = {
    "the pod is still too large": Stage.evict,
    "the pod is to end": Stage.end,
    "the pod is removed": Stage.remove,
}


def test_a_pod_is_evicted_once() -> None:
    interleave(EVICTING, EVENTS, cancel=False)  # the kill belongs to the background, which ends with the agent


def test_a_pod_whose_kill_failed_can_be_evicted_again() -> None:
    def nothing(_: Stage) -> None:
        """A kill that takes too long was requested all the same. If it was not, the next survey finds the pod."""

    fail_each_call(Operation(stage=stage, run=Stage.evict, state=nothing, afterwards=evict_again))
