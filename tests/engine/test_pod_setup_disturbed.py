"""Cgroups and volumes of a pod, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.pod_setup import PodSetup
from podkeeper.model.errors import GiveUp
from podkeeper.model.pods import uid_of
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeCgroups, FakeVolumes
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.small_node import pod

WEB, DB = pod("web", volumes=("data",)), pod("db", volumes=("data",))
LABELLED = replace(WEB, metadata=replace(WEB.metadata, labels={"version": "2"}))


@dataclass
class Setup:
    pod_setup: PodSetup
    volumes: FakeVolumes
    cgroups: FakeCgroups

    def mounts_and_cgroups(self) -> tuple[frozenset[str], frozenset[str]]:
        return self.volumes.mounted_pods(), self.cgroups.peek_pods()

    async def tear_down(self) -> None:
        await self.pod_setup.unmount(uid_of(WEB))
        await self.pod_setup.remove_cgroup(uid_of(WEB))


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    clock = VirtualClock()
    volumes, cgroups = FakeVolumes(clock), FakeCgroups(clock)
    background = Background()
    pod_setup = PodSetup(
        volumes=calls.watch("volumes", volumes),
        cgroups=calls.watch("cgroups", cgroups),
        record_event=lambda event, about: None,
        spawn=background.spawn,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(background.run())
        yield Setup(pod_setup, volumes, cgroups)
        running.cancel()


async def prepare(setup: Setup) -> None:
    await setup.pod_setup.prepare(WEB)


async def replace_pod(setup: Setup) -> None:
    """Remove a pod and start its UID again."""
    await setup.tear_down()
    await setup.pod_setup.prepare(WEB)


async def the_pod_can_be_prepared(setup: Setup) -> None:
    """Check that nothing counts as prepared after it was torn down."""
    await setup.pod_setup.prepare(WEB)
    mounted, cgroups = setup.mounts_and_cgroups()
    assert uid_of(WEB) in mounted
    assert uid_of(WEB) in cgroups


EVENTS: dict[str, Event[Setup]] = {
    "the pod is prepared": prepare,
    "another version of the pod is prepared": lambda setup: setup.pod_setup.prepare(LABELLED),
    "another pod is prepared": lambda setup: setup.pod_setup.prepare(DB),
    "the volumes are unmounted": lambda setup: setup.pod_setup.unmount(uid_of(WEB)),
    "the cgroup is removed": lambda setup: setup.pod_setup.remove_cgroup(uid_of(WEB)),
}


@pytest.mark.parametrize("run", [prepare, replace_pod])
def test_every_event_at_every_await(run: Callable[[Setup], Awaitable[None]]) -> None:
    interleave(
        OperationTest(setup=setup, run=run, state=Setup.mounts_and_cgroups, afterwards=the_pod_can_be_prepared), EVENTS
    )


def test_a_pod_prepared_while_its_volumes_are_unmounted_is_mounted_in_the_end() -> None:
    @asynccontextmanager
    async def prepared(calls: PortCalls) -> AsyncIterator[Setup]:
        async with setup(calls) as empty:
            await empty.pod_setup.prepare(WEB)
            yield empty

    unmount = OperationTest(
        setup=prepared, run=lambda setup: setup.pod_setup.unmount(uid_of(WEB)), state=Setup.mounts_and_cgroups
    )
    interleave(unmount, {"the pod is prepared": prepare}, in_call_order=True, cancel=False)


@pytest.mark.parametrize("run", [prepare, replace_pod, Setup.tear_down])
def test_every_call_fails_once(run: Callable[[Setup], Awaitable[None]]) -> None:
    fail_each_call(
        OperationTest(setup=setup, run=run, state=Setup.mounts_and_cgroups), leave_out=[("volumes", "mount", GiveUp)]
    )
