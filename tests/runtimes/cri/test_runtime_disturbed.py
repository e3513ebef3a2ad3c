"""The CRI runtime on a fake server, with an event at every await and a failure at every call.

A listener does what PLEG does: it inspects the pod after each event, after each call of its own, and when the stream of
events breaks. Its last inspection must show what the server has.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls, UnexpectedError
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock
from tests.runtimes.cri.cri_pod import CriPod, facts
from tests.runtimes.cri.fake_server import DirectTransport, FakeCri, containerd_event

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

ERRORS = {"unary": (RuntimeUnavailable, CallTimedOut, RuntimeRefused)}
LATE_SECONDS = 0.03  # containerd sends the event of an exit before its CRI side shows it
STATES = {
    cri.CONTAINER_CREATED: RecordState.CREATED,
    cri.CONTAINER_RUNNING: RecordState.RUNNING,
    cri.CONTAINER_EXITED: RecordState.EXITED,
}


@dataclass
class Harness:
    fake: FakeCri
    runtime: CriRuntime
    cri_pod: CriPod
    seen: PodRecord | None = None
    seen_at: float = 0.0
    box: str = ""
    container: str = ""
    first: str = ""

    # Actions of the engine.

    async def listen(self) -> None:
        while True:
            with suppress(TryLater, UnexpectedError):
                async for _ in self.runtime.events():
                    await self.inspect()
            await asyncio.sleep(0.5)
            with suppress(TryLater, UnexpectedError):
                await self.inspect()  # after a gap in the events everything is listed again

    async def inspect(self) -> None:
        began = asyncio.get_running_loop().time()
        record = await self.runtime.pod_record(self.cri_pod.uid)
        if began >= self.seen_at:  # as the pod cache: an older inspection does not replace a newer one
            self.seen_at, self.seen = began, record

    async def run_pod(self) -> None:
        self.box = await self.cri_pod.sandbox()
        await self.run_container(attempt=0)

    async def run_container(self, attempt: int) -> None:
        await self.inspect()
        assert self.seen is not None
        for found in self.seen.containers:
            if found.restart_count == attempt and found.state is not RecordState.CREATED:
                return  # an earlier try took effect after all
        self.container = await self.cri_pod.create(self.box, attempt=attempt)
        await self.runtime.start_container(self.container)
        await self.inspect()

    async def stop_pod(self) -> None:
        await self.runtime.stop_container(self.container, 1)
        await self.runtime.stop_sandbox(self.box)
        await self.inspect()

    async def remove_pod(self) -> None:
        await self.runtime.remove_container(self.container)
        await self.runtime.stop_sandbox(self.box)
        await self.runtime.remove_sandbox(self.box)
        await self.inspect()

    async def restart_container(self) -> None:
        await self.runtime.stop_container(self.first, 1)
        await self.run_container(attempt=1)

    # Concurrent events.

    def running(self) -> list[str]:
        return [each.id for each in self.fake.containers.values() if each.state == cri.CONTAINER_RUNNING]

    def exit_by_itself(self) -> None:
        for container_id in self.running():
            message = containerd_events.TaskExit(container_id=container_id, id=container_id)
            self.fake.send_event_now(containerd_event("/tasks/exit", message))
            asyncio.get_running_loop().call_later(LATE_SECONDS, self._exit, container_id)

    def _exit(self, container_id: str) -> None:
        if container_id in self.running():
            self.fake.exit(container_id, 3)

    def end_command(self) -> None:
        for container_id in self.running():
            message = containerd_events.TaskExit(container_id=container_id, id="a-command")
            self.fake.send_event_now(containerd_event("/tasks/exit", message))

    # Results.

    def there(self) -> tuple[list[int], list[tuple[int, RecordState]]]:
        """Return what the server has. Exit codes are left out: a stop may come before or after an exit."""
        boxes = [int(box.state) for box in self.fake.sandboxes.values()]
        return boxes, sorted((each.metadata.attempt, STATES[each.state]) for each in self.fake.containers.values())

    def check_last_inspection(self) -> None:
        seen = self.seen
        assert seen is not None
        there = {each.id: (STATES[each.state], each.exit_code) for each in self.fake.containers.values()}
        assert {each.id: (each.state, each.exit_code or 0) for each in seen.containers} == there
        ready = {box.id: box.state == cri.SANDBOX_READY for box in self.fake.sandboxes.values()}
        assert {box.id: box.ready for box in seen.sandboxes} == ready
        assert len(self.running()) <= 1


@asynccontextmanager
async def empty(calls: PortCalls) -> AsyncIterator[Harness]:
    clock = VirtualClock()
    fake = FakeCri()
    fake.name = "containerd"
    fake.unknown_services.clear()
    fake.now_ns = lambda: int((BEGINNING + timedelta(seconds=clock.monotonic())).timestamp() * 1e9)
    with tempfile.TemporaryDirectory(prefix="podkeeper-pods-", dir=MEMORY) as directory:
        transport = calls.watch("transport", DirectTransport(fake), ERRORS)
        async with CriRuntime(transport, facts(directory), clock=clock) as runtime, asyncio.TaskGroup() as group:
            harness = Harness(fake, runtime, CriPod(runtime))
            listening = group.create_task(harness.listen())
            await asyncio.sleep(0.1)
            calls.log.clear()
            yield harness
            listening.cancel()


@asynccontextmanager
async def with_pod(calls: PortCalls) -> AsyncIterator[Harness]:
    async with empty(calls) as harness:
        await harness.run_pod()
        harness.first = harness.container
        await asyncio.sleep(10)
        calls.log.clear()
        yield harness


async def the_pod_can_be_replaced(harness: Harness) -> None:
    """Whatever is left of the pod can be removed, and it runs again."""
    for box in list(harness.fake.sandboxes):
        await harness.runtime.stop_sandbox(box)
        await harness.runtime.remove_sandbox(box)
    await harness.run_pod()
    harness.exit_by_itself()
    await asyncio.sleep(1)
    harness.check_last_inspection()
    assert [state for _, state in harness.there()[1]] == [RecordState.EXITED]


def operation(harness: Callable[[PortCalls], Any], run: Callable[[Harness], Awaitable[None]]) -> OperationTest[Harness]:
    return OperationTest(
        setup=harness,
        run=run,
        state=Harness.there,
        check=Harness.check_last_inspection,
        afterwards=the_pod_can_be_replaced,
        settle_seconds=20,
    )


OPERATIONS = {
    "a pod is started": operation(empty, Harness.run_pod),
    "a pod is stopped": operation(with_pod, Harness.stop_pod),
    "a pod is removed": operation(with_pod, Harness.remove_pod),
    "a container is restarted": operation(with_pod, Harness.restart_container),
}
EVENTS: dict[str, Event[Harness]] = {
    "the container exits": Harness.exit_by_itself,
    "a command ends": Harness.end_command,
    "the pod is inspected": lambda harness: harness.runtime.pod_record(harness.cri_pod.uid),
    "all pods are listed": lambda harness: harness.runtime.list_pods(),
    "the stream of events breaks": lambda harness: harness.fake.break_streams(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str) -> None:
    interleave(OPERATIONS[name], EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    fail_each_call(OPERATIONS[name])
