"""A whole agent that starts after a reboot without the API server: environments from stored objects."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.app.build import Ports
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapEnvSource,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    Pod,
    Secret,
    SecretKeySelector,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.runtimes.fake import Operation
from podkeeper.sources.object_files import ObjectFiles
from podkeeper.sources.stored_objects import StoredObjects
from podkeeper.testing.build import container, pod
from podkeeper.testing.node import NodeHarness, on_node

PASSWORD = EnvVarSource(secret_key_ref=SecretKeySelector(name="password", key="admin"))
WEB = pod(
    "web",
    container(
        image="app:v1",
        env_from=(EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings")),),
        env=(EnvVar(name="PASSWORD", value_from=PASSWORD),),
    ),
    uid="",
    node="n1",
)


class Node(NodeHarness):
    """A node whose agent stores config maps and secrets on the disk."""

    def __init__(self, root: Path, *, keep_secrets: bool) -> None:
        super().__init__()
        self.object_files = ObjectFiles(root / "objects")
        self.keep_secrets = keep_secrets
        self.api.put(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"COLOUR": "blue"}))
        meta = ObjectMeta(name="password", namespace="default")
        self.api.put(Secret(metadata=meta, data={"admin": "aHVudGVyMg=="}))

    def ports(self) -> Ports:
        async def inline(call: Callable[..., Any], *given: object) -> Any:
            return call(*given)

        self.stored = StoredObjects(
            self.api, self.object_files, self.clock, keep_secrets=self.keep_secrets, in_thread=inline
        )
        return replace(super().ports(), objects=self.stored, keep_objects=self.stored.keep_for)

    async def run_agent(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.agent.run())
            group.create_task(self.stored.run())

    async def reboot(self) -> None:
        await self.stop_agent()
        self.journal.crash()
        self.runtime.reboot()

    def environments(self) -> list[dict[str, str]]:
        """Return the environment of each created container, oldest first."""
        configs = [call.given for call in self.runtime.call_log if call.operation == Operation.CREATE_CONTAINER]
        return [dict(config.env) for config in configs if isinstance(config, ContainerConfig)]


@pytest.mark.parametrize("keep_secrets", [True, False])
def test_a_pod_with_an_environment_from_objects_starts_if_they_may_be_stored(
    tmp_path: Path, keep_secrets: bool
) -> None:
    expected = {"COLOUR": "blue", "PASSWORD": "hunter2"}

    async def scenario(node: Node) -> None:
        node.api.put(WEB)
        await asyncio.sleep(10)
        assert node.environments() == [expected]
        await node.reboot()
        node.api.go_down()
        await node.start_agent()
        await asyncio.sleep(120)
        assert node.environments() == [expected] * (2 if keep_secrets else 1)
        node.api.come_up()
        await asyncio.sleep(120)
        assert node.environments() == [expected] * 2

    on_node(scenario, partial(Node, tmp_path, keep_secrets=keep_secrets))


def test_the_objects_of_a_deleted_pod_are_removed_from_the_disk(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.api.put(WEB)
        await asyncio.sleep(10)
        assert len(node.object_files.open()) == 2
        node.api.mark_deleted(Pod, "web", "default", grace_seconds=0)
        await asyncio.sleep(60)
        assert node.object_files.open() == frozenset()

    on_node(scenario, partial(Node, tmp_path, keep_secrets=True))
