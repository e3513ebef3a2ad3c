"""The process runtime over keepers in the event loop, with an event at every await and failures of its fork server."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.runtimes.process.loop_keeper import LoopHatchery, LoopKeeper

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
UID = PodUID("uid-web")
POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid=UID), spec=PodSpec())


@dataclass
class Stage:
    root: str
    calls: PortCalls
    keepers: list[LoopKeeper] = field(default_factory=list)
    box: str = ""
    container: str = ""
    first: str = ""
    told: list[tuple[str, RuntimeEventType]] = field(default_factory=list)

    async def open(self) -> None:
        self.runtime = ProcessRuntime(self.root, hatchery=LoopHatchery(self.keepers, self.calls))
        self.runtime._news.filters.append(self.note)
        await self.runtime.open()

    def note(self, event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
        self.told.append((event.container_id, event.type))
        return [(0.0, event)]

    async def run_pod(self, attempt: int = 0) -> None:
        self.box = await self.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=0))
        for found in (await self.runtime.pod_record(UID)).containers:
            if found.restart_count == attempt and found.state is not ContainerState.CREATED:
                return  # an earlier try took effect after all
        self.container = await self.create(attempt)
        await self.runtime.start_container(self.container)

    async def create(self, attempt: int) -> str:
        spec = Container(name="app", image="host", command=("true",))
        config = ContainerConfig(
            pod=POD, container=spec, attempt=attempt, image="host", spec_hash="1", command=("true",), log_path=""
        )
        return await self.runtime.create_container(self.box, config)

    async def create_two(self) -> None:
        """Create two containers at the same time. Raise no error that is retried."""
        for outcome in await asyncio.gather(self.create(1), self.create(2), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, TryLater):
                raise outcome

    async def remove_sandbox(self) -> None:
        await self.runtime.remove_sandbox(self.box)

    async def restart_container(self) -> None:
        await self.runtime.stop_container(self.first, 1)
        await self.run_pod(attempt=1)

    async def stop_pod(self) -> None:
        await self.runtime.stop_container(self.container, 1)
        await self.runtime.stop_sandbox(self.box)

    async def remove_container(self) -> None:
        await self.runtime.remove_container(self.container)

    async def remove_pod(self) -> None:
        await self.remove_container()
        await self.remove_sandbox()

    async def restart_agent(self) -> None:
        await self.runtime.close()
        await self.open()

    def each_keeper(self, act: Callable[[LoopKeeper], None]) -> None:
        for keeper in self.keepers:
            if keeper.alive:
                act(keeper)

    def lose_containers(self) -> None:
        self.each_keeper(LoopKeeper.vanish)
        self.each_keeper(LoopKeeper.hang_up)

    def shown(self) -> object:
        """Return what the runtime reports: sandboxes that are ready, and the state of each container by attempt."""
        record = self.runtime._mirror.record(UID)
        return (
            sorted(box.ready for box in record.sandboxes),
            sorted((each.restart_count, each.state) for each in record.containers),
        )

    def true(self) -> None:
        """Check that the runtime reports what its keepers keep, and that nothing else is on disk."""
        record = self.runtime._mirror.record(UID)
        alive = [keeper for keeper in self.keepers if keeper.alive]
        kept = {key: each["state"] for keeper in alive for key, each in keeper.containers.items()}
        ready = {box.id for box in record.sandboxes if box.ready}
        assert {each.id: each.state for each in record.containers if each.sandbox_id in ready} == kept
        assert len(alive) == len(ready)
        assert set(os.listdir(f"{self.root}/sandboxes")) == {box.id for box in record.sandboxes}
        assert not [each for each in record.containers if each.sandbox_id not in ready and each.state == "running"]
        for thing in {thing for thing, _ in self.told}:
            events = [event for each, event in self.told if each == thing]
            assert RuntimeEventType.DELETED not in events[:-1], f"{thing} was reported after it was removed: {events}"


@asynccontextmanager
async def empty(calls: PortCalls) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-runtime-", dir=MEMORY) as root:
        stage = Stage(root, calls)
        await stage.open()
        yield stage
        await stage.runtime.close()
        stage.each_keeper(LoopKeeper.die)


@asynccontextmanager
async def with_pod(calls: PortCalls) -> AsyncIterator[Stage]:
    async with empty(calls) as stage:
        await stage.run_pod()
        stage.first = stage.container
        calls.log.clear()
        yield stage


async def the_pod_can_be_replaced(stage: Stage) -> None:
    for box in (await stage.runtime.pod_record(UID)).sandboxes:
        await stage.runtime.remove_sandbox(box.id)
    await stage.run_pod()
    assert stage.shown() == ([True], [(0, "running")])
    stage.true()


def operation(stage: Callable[[PortCalls], Any], run: Callable[[Stage], Awaitable[None]]) -> Operation[Stage]:
    return Operation(
        stage=stage,
        run=run,
        state=Stage.shown,
        check=Stage.true,
        afterwards=the_pod_can_be_replaced,
        settle_seconds=30,
    )


OPERATIONS = {
    "a pod is started": operation(empty, Stage.run_pod),
    "a container is restarted": operation(with_pod, Stage.restart_container),
    "a pod is stopped": operation(with_pod, Stage.stop_pod),
    "a container is removed": operation(with_pod, Stage.remove_container),
    "a pod is removed": operation(with_pod, Stage.remove_pod),
    "the agent restarts": operation(with_pod, Stage.restart_agent),
}
EVENTS: dict[str, Event[Stage]] = {
    "the container exits": lambda stage: stage.each_keeper(lambda keeper: keeper.exit(3)),
    "the connection breaks": lambda stage: stage.each_keeper(LoopKeeper.hang_up),
    "the keeper dies": lambda stage: stage.each_keeper(LoopKeeper.die),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str) -> None:
    interleave(OPERATIONS[name], EVENTS, cancel=name != "the agent restarts")


def test_a_container_that_was_removed_while_nobody_listened_is_not_reported() -> None:
    async def exit_and_wait(stage: Stage) -> None:
        stage.each_keeper(lambda keeper: keeper.exit(3))
        for _ in range(5):
            await asyncio.sleep(0)

    lost = {"the connection breaks and exited containers are removed": Stage.lose_containers}
    interleave(operation(with_pod, exit_and_wait), lost, cancel=False)
    interleave(OPERATIONS["the agent restarts"], lost, cancel=False)


def test_a_sandbox_is_removed_while_containers_are_created_in_it() -> None:
    creation = operation(with_pod, Stage.create_two)
    interleave(creation, {"the sandbox is removed": Stage.remove_sandbox}, cancel=False)


async def remove_sandboxes(stage: Stage) -> None:
    for box in stage.runtime._mirror.record(UID).sandboxes:
        await stage.runtime.remove_sandbox(box.id)


async def stop_sandboxes(stage: Stage) -> None:
    for box in stage.runtime._mirror.record(UID).sandboxes:
        await stage.runtime.stop_sandbox(box.id)


async def remove_containers(stage: Stage) -> None:
    for container in stage.runtime._mirror.record(UID).containers:
        await stage.runtime.remove_container(container.id)


async def run_sandbox(stage: Stage) -> None:
    await stage.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=0))


async def stop_container(stage: Stage) -> None:
    await stage.runtime.stop_container(stage.container, 1)


@pytest.mark.parametrize(
    ("call", "other"),
    [
        (Stage.remove_sandbox, remove_sandboxes),
        (Stage.remove_sandbox, stop_sandboxes),
        (Stage.remove_sandbox, run_sandbox),
        (stop_container, remove_containers),
        (stop_container, remove_sandboxes),
    ],
)
def test_two_calls_at_the_same_time(
    call: Callable[[Stage], Awaitable[None]], other: Callable[[Stage], Awaitable[None]]
) -> None:
    interleave(operation(with_pod, call), {other.__name__: other}, cancel=False)


def test_every_call_of_the_fork_server_fails_once() -> None:
    fail_each_call(OPERATIONS["a pod is started"], lost_answers=False)
