"""The eviction manager, with an event at every await and a failure of every kill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from podkeeper.engine.eviction import EvictionManager
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_eviction import WEB, EvictionHarness, pod


@dataclass
class Setup:
    eviction_manager: EvictionManager
    harness: EvictionHarness

    async def evict(self) -> None:
        self.eviction_manager.evict(WEB, "too large")
        await asyncio.gather(*self.harness.work, return_exceptions=True)

    def effects(self) -> object:
        return len(self.harness.kills), [event.reason for event in self.harness.events], len(self.harness.signals)

    def terminate(self) -> None:
        """Terminate the pod for another reason."""
        self.harness.terminating.add(WEB)

    def remove(self) -> None:
        self.harness.pods.clear()


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    harness = EvictionHarness({WEB: pod()})
    yield Setup(harness.eviction_manager(calls), harness)


async def evict_again(setup: Setup) -> None:
    """Check that a new pod with the same UID can be evicted."""
    setup.harness.terminating.clear()
    setup.harness.pods[WEB] = pod()
    kills = len(setup.harness.kills)
    await setup.evict()
    assert len(setup.harness.kills) == kills + 1


EVICTING = OperationTest(setup=setup, run=Setup.evict, state=Setup.effects, afterwards=evict_again)
EVENTS: dict[str, Event[Setup]] = {
    "the pod is evicted again": Setup.evict,
    "the pod terminates": Setup.terminate,
    "the pod is removed": Setup.remove,
}


def test_a_pod_is_evicted_once() -> None:
    interleave(EVICTING, EVENTS, cancel=False)  # the kill runs in the background, which ends with the agent


def test_a_pod_whose_kill_failed_can_be_evicted_again() -> None:
    def nothing(_: Setup) -> None:
        """A kill that timed out may have been requested. If it was not, the next check finds the pod."""

    fail_each_call(OperationTest(setup=setup, run=Setup.evict, state=nothing, afterwards=evict_again))
