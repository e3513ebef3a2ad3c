"""A whole agent that starts after a reboot while the API server is away: environments from stored objects."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podkeeper.app.build import Agent, Ports, Settings, simple_node
from podkeeper.app.sources import api_source
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapEnvSource,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    Pod,
    PodSpec,
    Secret,
    SecretKeySelector,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.sources.kept_objects import KeptObjects
from podkeeper.sources.object_files import ObjectFiles
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate

PASSWORD = EnvVarSource(secret_key_ref=SecretKeySelector(name="password", key="admin"))
WEB = Pod(
    metadata=ObjectMeta(name="web", namespace="default"),
    spec=PodSpec(
        node_name="n1",
        restart_policy="Always",
        containers=(
            Container(
                name="app",
                image="app:v1",
                env_from=(EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings")),),
                env=(EnvVar(name="PASSWORD", value_from=PASSWORD),),
            ),
        ),
    ),
)


class Node:
    """What outlives the agent."""

    def __init__(self, root: Path, *, keep_secrets: bool) -> None:
        self.clock = VirtualClock()
        self.api = MemoryApi(self.clock)
        self.runtime = FakeRuntime(self.clock)
        self.journal = FakeJournal()
        self.files = ObjectFiles(root / "objects")
        self.keep_secrets = keep_secrets
        self._tasks: list[asyncio.Task[None]] = []
        self.api.put(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"COLOUR": "blue"}))
        meta = ObjectMeta(name="password", namespace="default")
        self.api.put(Secret(metadata=meta, data={"admin": "aHVudGVyMg=="}))

    def start(self) -> None:
        async def at_once(call: Callable[..., Any], *given: object) -> Any:
            return call(*given)

        kept = KeptObjects(self.api, self.files, self.clock, keep_secrets=self.keep_secrets, in_thread=at_once)
        ports = Ports(
            runtime=self.runtime,
            volumes=FakeVolumes(self.clock),
            cgroups=FakeCgroups(self.clock),
            prober=FakeProber(),
            clock=self.clock,
            sources=(api_source(api=self.api, node_name="n1", clock=self.clock, journal=self.journal),),
            api=self.api,
            objects=kept,
            keep_objects=kept.keep_for,
            journal=self.journal,
        )
        agent = Agent(ports, Settings(node=simple_node("n1")))
        self._tasks = [asyncio.create_task(agent.run()), asyncio.create_task(kept.run())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def reboot(self) -> None:
        await self.stop()
        self.journal.crash()
        self.runtime.reboot()

    def environments(self) -> list[dict[str, str]]:
        """The environment of each container that was created, oldest first."""
        configs = [call.given for call in self.runtime.ledger if call.operation == Operation.CREATE_CONTAINER]
        return [dict(config.env) for config in configs if isinstance(config, ContainerConfig)]


@pytest.mark.parametrize("keep_secrets", [True, False])
def test_a_pod_with_an_environment_from_objects_starts_if_they_may_be_stored(
    tmp_path: Path, keep_secrets: bool
) -> None:
    expected = {"COLOUR": "blue", "PASSWORD": "hunter2"}

    async def scenario() -> None:
        node = Node(tmp_path, keep_secrets=keep_secrets)
        node.start()
        node.api.put(WEB)
        await asyncio.sleep(10)
        assert node.environments() == [expected]
        await node.reboot()
        node.api.go_down()
        node.start()
        await asyncio.sleep(120)
        assert node.environments() == [expected] * (2 if keep_secrets else 1)
        node.api.come_up()
        await asyncio.sleep(120)
        assert node.environments() == [expected] * 2
        await node.stop()

    simulate(scenario())


def test_when_the_pod_is_deleted_its_objects_leave_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path, keep_secrets=True)
        node.start()
        node.api.put(WEB)
        await asyncio.sleep(10)
        assert len(node.files.open()) == 2
        node.api.mark_deleted(Pod, "web", "default", grace_seconds=0)
        await asyncio.sleep(60)
        assert node.files.open() == frozenset()
        await node.stop()

    simulate(scenario())
