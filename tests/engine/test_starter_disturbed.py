"""Starting one container, and its hooks, with an event at every await and a failure of every call."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from podkeeper.engine.hooks import HookRunner
from podkeeper.model.errors import AgentError, NotFound, TryLater
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapEnvSource,
    Container,
    EnvFromSource,
    HTTPGetAction,
    LifecycleHandler,
    Pod,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime import RecordState
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.rules.container.hooks import POST_START_ERROR
from podkeeper.rules.plan.sandbox_config import SandboxContext
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeProber
from podkeeper.testing.interleave import interleave
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.execution_harness import UID, ExecutionHarness, container, running_harness

SETTINGS = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
APP: Container = replace(container("web", post_start=exec_hook("hello")), env_from=(SETTINGS,))
WEB: Pod = pod("web", APP)


@contextmanager
def contract_of(text: str) -> Iterator[None]:
    try:
        yield
    except AgentError as error:
        raise AssertionError(f"{text}, and does not raise {error!r}") from error


@dataclass
class Setup:
    harness: ExecutionHarness
    sandbox_id: str = ""
    container_id: str = ""

    async def start(self) -> None:
        """Do what a sync does: nothing if the container runs, else start it."""
        if self.running():
            return
        sandbox = SandboxContext(sandbox_id=self.sandbox_id, pod_ips=("10.0.0.1",), volumes={}, pull_secrets=())
        record = await self.harness.inspect()
        with contract_of("a start returns why it failed"):
            result = await self.harness.starter.start(WEB, APP, record, sandbox)
        if result is not None:
            assert result.failure.reason != POST_START_ERROR or not self.running(), "it runs after its hook failed"
            raise result.error("web")

    def running(self) -> list[str]:
        return [record.name for _, record in self.harness.fake.live_containers()]

    def holds(self) -> None:
        """Check that each running container was claimed and that no call violated the runtime contract."""
        assert self.harness.fake.violations == []
        made = {container_id for _, _, container_id in self.harness.claimed}
        assert {record.id for _, record in self.harness.fake.live_containers()} <= made

    async def no_attempt_is_left_over(self) -> None:
        await self.start()
        states = [found.state for found in (await self.harness.inspect()).containers]
        assert RecordState.CREATED not in states


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    api = MemoryApi(VirtualClock())
    await api.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"A": "1"}))
    async with running_harness(calls.watch("api", api), calls=calls) as harness:
        sandbox_id = await harness.fake.run_sandbox(SandboxConfig(pod=WEB, attempt=0))
        yield Setup(harness, sandbox_id)


EVENTS: dict[str, Event[Setup]] = {
    "the container exits": lambda setup: setup.harness.fake.end_container(UID, "web", 1),
    "the wall clock jumps": lambda setup: setup.harness.clock.jump(-3600),
}


def test_every_event_at_every_await() -> None:
    async def runs_in_the_end(setup: Setup) -> None:
        for _ in range(4):  # a restart may be in backoff for 10 s
            with suppress(TryLater):
                await setup.start()
            await asyncio.sleep(11)
        assert setup.running() == ["web"]
        setup.holds()

    operation = OperationTest(
        setup=setup, run=Setup.start, state=lambda _: None, check=Setup.holds, afterwards=runs_in_the_end
    )
    interleave(operation, EVENTS)


def test_every_call_of_a_start_fails_once() -> None:
    operation = OperationTest(
        setup=setup,
        run=Setup.start,
        state=Setup.running,
        check=Setup.holds,
        afterwards=Setup.no_attempt_is_left_over,
        retry_seconds=11,  # the backoff of a failed pull or an exited container
    )
    fail_each_call(operation, leave_out=[("api", "get", NotFound)])


@pytest.mark.parametrize(
    "hook", [exec_hook("hello"), LifecycleHandler(http_get=HTTPGetAction(path="/", port=80, host="192.0.2.7"))]
)
def test_every_call_of_a_hook_fails_once(hook: LifecycleHandler) -> None:
    """A hook returns the errors that the contract allows as its failure, and raises everything else."""

    @asynccontextmanager
    async def running(calls: PortCalls) -> AsyncIterator[Setup]:
        async with running_harness(calls=calls) as harness:
            plain = pod("web", container("web"))
            await harness.sync(plain)
            harness.hooks = HookRunner(
                commands=harness.bounded,
                prober=calls.watch("prober", FakeProber()),
                record_event=lambda event, about: None,
                version="1.36",
            )
            yield Setup(harness, container_id=(await harness.inspect()).containers[0].id)

    async def execute(setup: Setup) -> None:
        with contract_of("a hook returns why it failed"):
            failure = await setup.harness.hooks.execute(hook, WEB, APP, setup.container_id, "10.0.0.1", 10)
        if failure is not None:
            raise TryLater(failure)

    fail_each_call(OperationTest(setup=running, run=execute, state=lambda _: None))
