"""Cgroups and volumes of a pod, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.ground import Ground
from podkeeper.model.errors import GiveUp
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeCgroups, FakeVolumes
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.small_node import pod, uid

WEB, DB = pod("web", volumes=("data",)), pod("db", volumes=("data",))
LABELLED = replace(WEB, metadata=replace(WEB.metadata, labels={"version": "2"}))


@dataclass
class Stage:
    ground: Ground
    volumes: FakeVolumes
    cgroups: FakeCgroups

    def what_is_there(self) -> tuple[frozenset[str], frozenset[str]]:
        return self.volumes.mounted_pods(), self.cgroups.peek_pods()

    async def take_down(self) -> None:
        await self.ground.unmount(uid(WEB))
        await self.ground.remove_cgroup(uid(WEB))


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    clock = VirtualClock()
    volumes, cgroups = FakeVolumes(clock), FakeCgroups(clock)
    background = Background()
    ground = Ground(
        volumes=calls.watch("volumes", volumes),
        cgroups=calls.watch("cgroups", cgroups),
        record=lambda event, about: None,
        spawn=background.spawn,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(background.run())
        yield Stage(ground, volumes, cgroups)
        running.cancel()


async def prepare(stage: Stage) -> None:
    await stage.ground.prepare(WEB)


async def replace_pod(stage: Stage) -> None:
    """A pod ends, and its UID starts again."""
    await stage.take_down()
    await stage.ground.prepare(WEB)


async def the_pod_can_be_prepared(stage: Stage) -> None:
    """Nothing may be remembered as prepared that was taken away since."""
    await stage.ground.prepare(WEB)
    mounted, cgroups = stage.what_is_there()
    assert uid(WEB) in mounted
    assert uid(WEB) in cgroups


EVENTS: dict[str, Event[Stage]] = {
    "the pod is prepared": prepare,
    "another version of the pod is prepared": lambda stage: stage.ground.prepare(LABELLED),
    "another pod is prepared": lambda stage: stage.ground.prepare(DB),
    "the volumes are unmounted": lambda stage: stage.ground.unmount(uid(WEB)),
    "the cgroup is removed": lambda stage: stage.ground.remove_cgroup(uid(WEB)),
}


@pytest.mark.parametrize("run", [prepare, replace_pod])
def test_every_event_at_every_await(run: Callable[[Stage], Awaitable[None]]) -> None:
    interleave(Operation(stage=stage, run=run, state=Stage.what_is_there, afterwards=the_pod_can_be_prepared), EVENTS)


def test_a_pod_prepared_while_its_volumes_are_unmounted_is_mounted_in_the_end() -> None:
    @asynccontextmanager
    async def prepared(calls: PortCalls) -> AsyncIterator[Stage]:
        async with stage(calls) as empty:
            await empty.ground.prepare(WEB)
            yield empty

    unmount = Operation(stage=prepared, run=lambda it: it.ground.unmount(uid(WEB)), state=Stage.what_is_there)
    interleave(unmount, {"the pod is prepared": prepare}, in_call_order=True, cancel=False)


@pytest.mark.parametrize("run", [prepare, replace_pod, Stage.take_down])
def test_every_call_fails_once(run: Callable[[Stage], Awaitable[None]]) -> None:
    fail_each_call(Operation(stage=stage, run=run, state=Stage.what_is_there), leave_out=[("volumes", "mount", GiveUp)])
