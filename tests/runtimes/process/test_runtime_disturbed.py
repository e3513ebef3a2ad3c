"""The process runtime with events at every await and fork server failures."""

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
from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.testing.build import pod
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.runtimes.process.loop_keeper import LoopForkServer, LoopKeeper

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
UID = PodUID("uid-web")
POD = pod("web", uid=UID)


@dataclass
class Harness:
    root: str
    calls: PortCalls
    keepers: list[LoopKeeper] = field(default_factory=list)
    box: str = ""
    container: str = ""
    first: str = ""
    reported: list[tuple[str, RuntimeEventType]] = field(default_factory=list)

    async def open(self) -> None:
        self.runtime = ProcessRuntime(self.root, fork_server=LoopForkServer(self.keepers, self.calls))
        self.runtime._events.filters.append(self.note)
        await self.runtime.open()

    def note(self, event: RuntimeEvent) -> list[tuple[float, RuntimeEvent]]:
        self.reported.append((event.container_id, event.type))
        return [(0.0, event)]

    async def run_pod(self, attempt: int = 0) -> None:
        self.box = await self.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=0))
        for found in (await self.runtime.pod_record(UID)).containers:
            if found.restart_count == attempt and found.state is not RecordState.CREATED:
                return  # an earlier attempt took effect
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
        self.each_keeper(LoopKeeper.lose_containers)
        self.each_keeper(LoopKeeper.disconnect)

    def reported_state(self) -> object:
        """Return what the runtime reports: sandboxes that are ready, and the state of each container by attempt."""
        record = self.runtime._table.record(UID)
        return (
            sorted(box.ready for box in record.sandboxes),
            sorted((each.restart_count, each.state) for each in record.containers),
        )

    def check_consistency(self) -> None:
        """Check that the runtime reports what its keepers keep, and that nothing else is on disk."""
        record = self.runtime._table.record(UID)
        alive = [keeper for keeper in self.keepers if keeper.alive]
        expected = {key: each["state"] for keeper in alive for key, each in keeper.containers.items()}
        ready = {box.id for box in record.sandboxes if box.ready}
        assert {each.id: each.state for each in record.containers if each.sandbox_id in ready} == expected
        assert len(alive) == len(ready)
        assert set(os.listdir(f"{self.root}/sandboxes")) == {box.id for box in record.sandboxes}
        assert not [each for each in record.containers if each.sandbox_id not in ready and each.state == "running"]
        for object_id in {object_id for object_id, _ in self.reported}:
            events = [event for each, event in self.reported if each == object_id]
            assert RuntimeEventType.DELETED not in events[:-1], (
                f"{object_id} was reported after it was removed: {events}"
            )


@asynccontextmanager
async def empty(calls: PortCalls) -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-runtime-", dir=MEMORY) as root:
        harness = Harness(root, calls)
        await harness.open()
        yield harness
        await harness.runtime.close()
        harness.each_keeper(LoopKeeper.die)


@asynccontextmanager
async def with_pod(calls: PortCalls) -> AsyncIterator[Harness]:
    async with empty(calls) as harness:
        await harness.run_pod()
        harness.first = harness.container
        calls.log.clear()
        yield harness


async def the_pod_can_be_replaced(harness: Harness) -> None:
    for box in (await harness.runtime.pod_record(UID)).sandboxes:
        await harness.runtime.remove_sandbox(box.id)
    await harness.run_pod()
    assert harness.reported_state() == ([True], [(0, "running")])
    harness.check_consistency()


def operation(harness: Callable[[PortCalls], Any], run: Callable[[Harness], Awaitable[None]]) -> OperationTest[Harness]:
    return OperationTest(
        setup=harness,
        run=run,
        state=Harness.reported_state,
        check=Harness.check_consistency,
        afterwards=the_pod_can_be_replaced,
        settle_seconds=30,
    )


OPERATIONS = {
    "a pod is started": operation(empty, Harness.run_pod),
    "a container is restarted": operation(with_pod, Harness.restart_container),
    "a pod is stopped": operation(with_pod, Harness.stop_pod),
    "a container is removed": operation(with_pod, Harness.remove_container),
    "a pod is removed": operation(with_pod, Harness.remove_pod),
    "the agent restarts": operation(with_pod, Harness.restart_agent),
}
EVENTS: dict[str, Event[Harness]] = {
    "the container exits": lambda harness: harness.each_keeper(lambda keeper: keeper.exit(3)),
    "the connection breaks": lambda harness: harness.each_keeper(LoopKeeper.disconnect),
    "the keeper dies": lambda harness: harness.each_keeper(LoopKeeper.die),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str) -> None:
    interleave(OPERATIONS[name], EVENTS, cancel=name != "the agent restarts")


def test_a_container_removed_while_disconnected_is_not_reported() -> None:
    async def exit_and_wait(harness: Harness) -> None:
        harness.each_keeper(lambda keeper: keeper.exit(3))
        for _ in range(5):
            await asyncio.sleep(0)

    lost = {"the connection breaks and exited containers are removed": Harness.lose_containers}
    interleave(operation(with_pod, exit_and_wait), lost, cancel=False)
    interleave(OPERATIONS["the agent restarts"], lost, cancel=False)


def test_a_sandbox_is_removed_while_containers_are_created_in_it() -> None:
    creation = operation(with_pod, Harness.create_two)
    interleave(creation, {"the sandbox is removed": Harness.remove_sandbox}, cancel=False)


async def remove_sandboxes(harness: Harness) -> None:
    for box in harness.runtime._table.record(UID).sandboxes:
        await harness.runtime.remove_sandbox(box.id)


async def stop_sandboxes(harness: Harness) -> None:
    for box in harness.runtime._table.record(UID).sandboxes:
        await harness.runtime.stop_sandbox(box.id)


async def remove_containers(harness: Harness) -> None:
    for container in harness.runtime._table.record(UID).containers:
        await harness.runtime.remove_container(container.id)


async def run_sandbox(harness: Harness) -> None:
    await harness.runtime.run_sandbox(SandboxConfig(pod=POD, attempt=0))


async def stop_container(harness: Harness) -> None:
    await harness.runtime.stop_container(harness.container, 1)


@pytest.mark.parametrize(
    ("call", "other"),
    [
        (Harness.remove_sandbox, remove_sandboxes),
        (Harness.remove_sandbox, stop_sandboxes),
        (Harness.remove_sandbox, run_sandbox),
        (stop_container, remove_containers),
        (stop_container, remove_sandboxes),
    ],
)
def test_two_calls_at_the_same_time(
    call: Callable[[Harness], Awaitable[None]], other: Callable[[Harness], Awaitable[None]]
) -> None:
    interleave(operation(with_pod, call), {other.__name__: other}, cancel=False)


def test_every_call_of_the_fork_server_fails_once() -> None:
    fail_each_call(OPERATIONS["a pod is started"], lost_answers=False)
