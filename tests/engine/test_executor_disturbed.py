"""The plan executor, with an event at every await of a sync and a failure of every runtime call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import Pod
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.execution_harness import STARTS, UID, ExecutionHarness, container, running_harness

MESH = container("mesh", sidecar=True)
WEB = pod("web", container("web", post_start=exec_hook("hello"), pre_stop=exec_hook("bye")), init=(MESH,))
WEB_V2 = pod("web", container("web", image="web:v2"), init=(MESH,))
DB = pod("db", container("db"))


@dataclass
class Harness:
    base: ExecutionHarness
    sync_task: asyncio.Task[None] | None = None
    killed: bool = False
    starts_before_the_kill: int = 0

    async def sync(self, of: Pod = WEB) -> None:
        """Run one sync. As in the workers, an event may cancel it, and the next sync waits for its end."""
        self.sync_task = asyncio.ensure_future(self.base.sync(of))
        try:
            await asyncio.wait({self.sync_task})
        except asyncio.CancelledError:
            self.sync_task.cancel()
            await asyncio.wait({self.sync_task})
            raise
        if not self.sync_task.cancelled():
            self.sync_task.result()

    async def kill(self) -> None:
        """Cancel the sync, then stop the containers."""
        self.killed = True
        if self.sync_task is not None and self.sync_task.cancel():
            await asyncio.wait({self.sync_task})
        self.starts_before_the_kill = len(self.base.changes(*STARTS))
        await self.base.kill(WEB)

    def running(self) -> frozenset[tuple[str, str]]:
        return frozenset((uid, record.name) for uid, record in self.base.fake.live_containers())

    def holds(self) -> None:
        """The runtime found no two containers with one name, and none created again while it ran."""
        assert self.base.fake.violations == []

    def killed_pod_does_not_run(self) -> None:
        self.holds()
        if self.killed:
            assert not self.running()
            assert len(self.base.changes(*STARTS)) == self.starts_before_the_kill

    async def comes_up(self) -> None:
        """More syncs bring the pod up, and then no failure of it is stored."""
        for _ in range(12):  # a restart may wait for 10 s, a second one for 20 s
            record = await self.base.inspect()
            self.base.executor.clear_failures(record)
            if self.base.plan_is_empty(WEB, record):
                break
            with suppress(AgentError, ExceptionGroup):
                await self.base.sync(WEB)
            await asyncio.sleep(5)
        assert {(UID, "web"), (UID, "mesh")} <= self.running()
        assert self.base.executor.failures_of(UID) == {}
        assert len([box for box in record.sandboxes if box.ready]) == 1
        self.holds()


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    async with running_harness(calls=calls) as harness:
        yield Harness(harness)


@asynccontextmanager
async def with_the_sidecar(calls: PortCalls) -> AsyncIterator[Harness]:
    async with set_up(calls) as empty:
        await empty.sync()
        yield empty


async def start(harness: Harness) -> None:
    """Two syncs: the app starts once the sidecar runs."""
    await harness.sync()
    await harness.sync()


ACCIDENTS: dict[str, Event[Harness]] = {
    "the sidecar exits": lambda harness: harness.base.fake.end_container(UID, "mesh", 1),
    "the app exits": lambda harness: harness.base.fake.end_container(UID, "web", 1),
    "the sandbox dies": lambda harness: harness.base.fake.kill_sandbox(UID),
}


def test_every_event_at_every_await_of_a_start() -> None:
    operation = OperationTest(
        setup=with_the_sidecar,
        run=Harness.sync,
        state=lambda _: None,
        check=Harness.holds,
        afterwards=Harness.comes_up,
        retry_seconds=11,
    )
    interleave(operation, ACCIDENTS)


def test_another_pod_starts_at_the_same_time() -> None:
    operation = OperationTest(setup=set_up, run=Harness.sync, state=Harness.running, check=Harness.holds)
    interleave(operation, {"another pod": lambda harness: harness.base.sync(DB)}, cancel=False)


def test_a_pod_killed_at_every_await_of_its_start_has_no_running_container() -> None:
    # The workers run no other sync after a cancelled one.
    for on in (set_up, with_the_sidecar):
        operation = OperationTest(
            setup=on, run=Harness.sync, state=lambda _: None, check=Harness.killed_pod_does_not_run
        )
        interleave(operation, {"the pod is killed": Harness.kill}, in_call_order=True, cancel=False)


def test_every_call_of_a_start_fails_once() -> None:
    operation = OperationTest(
        setup=set_up,
        run=start,
        state=Harness.running,
        check=Harness.holds,
        afterwards=Harness.comes_up,
        retry_seconds=11,
    )
    fail_each_call(operation)


def test_every_call_of_a_changed_pod_fails_once() -> None:
    """The old container must have ended before the new one starts."""

    @asynccontextmanager
    async def with_the_old_version(calls: PortCalls) -> AsyncIterator[Harness]:
        async with with_the_sidecar(calls) as harness:
            await harness.sync()
            yield harness

    async def change(harness: Harness) -> None:
        await harness.sync(WEB_V2)

    operation = OperationTest(
        setup=with_the_old_version, run=change, state=Harness.running, check=Harness.holds, retry_seconds=11
    )
    fail_each_call(operation)
