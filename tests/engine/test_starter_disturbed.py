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
from podkeeper.model.runtime import ContainerState
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.rules.hooks import POST_START_ERROR
from podkeeper.rules.plan.place import Place
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeProber
from podkeeper.testing.interleave import interleave
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.execution_house import UID, House, command, container, house, pod

SETTINGS = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
APP: Container = replace(container("web", post_start=command("hello")), env_from=(SETTINGS,))
WEB: Pod = pod(APP)


@contextmanager
def contract_of(words: str) -> Iterator[None]:
    try:
        yield
    except AgentError as error:
        raise AssertionError(f"{words}, and does not raise {error!r}") from error


@dataclass
class Stage:
    home: House
    sandbox_id: str = ""
    container_id: str = ""

    async def start(self) -> None:
        """What a sync does: nothing if the container runs, else another try."""
        if self.running():
            return
        place = Place(sandbox_id=self.sandbox_id, pod_ips=("10.0.0.1",), volumes={}, pull_secrets=())
        record = await self.home.look()
        with contract_of("a start returns why it failed"):
            trouble = await self.home.starter.start(WEB, APP, record, place)
        if trouble is not None:
            assert trouble.failure.reason != POST_START_ERROR or not self.running(), "its hook failed, and it runs on"
            raise trouble.error("web")

    def running(self) -> list[str]:
        return [record.name for _, record in self.home.fake.live_containers()]

    def holds(self) -> None:
        """The probes know every container that runs, and the runtime has nothing to complain of."""
        assert self.home.fake.violations == []
        made = {container_id for _, _, container_id in self.home.claimed}
        assert {record.id for _, record in self.home.fake.live_containers()} <= made

    async def no_attempt_is_left_over(self) -> None:
        await self.start()
        states = [found.state for found in (await self.home.look()).containers]
        assert ContainerState.CREATED not in states


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    api = MemoryApi(VirtualClock())
    await api.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"A": "1"}))
    async with house(calls.watch("api", api), calls=calls) as home:
        sandbox_id = await home.fake.run_sandbox(SandboxConfig(pod=WEB, attempt=0))
        yield Stage(home, sandbox_id)


EVENTS: dict[str, Event[Stage]] = {
    "the container exits": lambda stage: stage.home.fake.end_container(UID, "web", 1),
    "the wall clock jumps": lambda stage: stage.home.clock.jump(-3600),
}


def test_every_event_at_every_await() -> None:
    async def runs_in_the_end(stage: Stage) -> None:
        for _ in range(4):  # a restart may be held back for 10 s
            with suppress(TryLater):
                await stage.start()
            await asyncio.sleep(11)
        assert stage.running() == ["web"]
        stage.holds()

    operation = Operation(
        stage=stage, run=Stage.start, state=lambda _: None, check=Stage.holds, afterwards=runs_in_the_end
    )
    interleave(operation, EVENTS)


def test_every_call_of_a_start_fails_once() -> None:
    operation = Operation(
        stage=stage,
        run=Stage.start,
        state=Stage.running,
        check=Stage.holds,
        afterwards=Stage.no_attempt_is_left_over,
        retry_seconds=11,  # a failed pull, and a container that exited, are held back for 10 s
    )
    fail_each_call(operation, leave_out=[("api", "get", NotFound)])


@pytest.mark.parametrize(
    "hook", [command("hello"), LifecycleHandler(http_get=HTTPGetAction(path="/", port=80, host="192.0.2.7"))]
)
def test_every_call_of_a_hook_fails_once(hook: LifecycleHandler) -> None:
    """A hook returns the errors that the contract allows as its failure, and raises everything else."""

    @asynccontextmanager
    async def running(calls: PortCalls) -> AsyncIterator[Stage]:
        async with house(calls=calls) as home:
            plain = pod(container("web"))
            await home.sync(plain)
            home.hooks = HookRunner(
                commands=home.guard,
                prober=calls.watch("prober", FakeProber()),
                record=lambda event, about: None,
                version="1.36",
            )
            yield Stage(home, container_id=(await home.look()).containers[0].id)

    async def execute(stage: Stage) -> None:
        with contract_of("a hook returns why it failed"):
            failure = await stage.home.hooks.execute(hook, WEB, APP, stage.container_id, "10.0.0.1", 10)
        if failure is not None:
            raise TryLater(failure)

    fail_each_call(Operation(stage=running, run=execute, state=lambda _: None))
