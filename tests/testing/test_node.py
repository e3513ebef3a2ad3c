"""The node harness: the example of its docstring, replaced parts, a restarted agent."""

import asyncio
from dataclasses import replace
from functools import partial

from podkeeper.app.build import Ports
from podkeeper.testing import build
from podkeeper.testing.node import NODE, NodeHarness, on_node

pod = partial(build.pod, uid="", node=NODE)


class NodeWithoutApi(NodeHarness):
    def ports(self) -> Ports:
        return replace(super().ports(), api=None, sources=(self.files,))


def test_a_pod_becomes_ready_on_the_node() -> None:
    async def scenario(node: NodeHarness) -> float:
        await node.create(pod("web"))
        return await node.until(lambda: node.is_ready("web"), within=5)

    assert on_node(scenario) < 1


def test_a_subclass_replaces_ports() -> None:
    async def scenario(node: NodeHarness) -> int:
        node.files.write("/manifests/web.yaml", pod("web"))
        await asyncio.sleep(5)
        return len(node.runtime.live_containers())

    assert on_node(scenario, NodeWithoutApi) == 1


def test_a_restarted_agent_adopts_the_pods() -> None:
    async def scenario(node: NodeHarness) -> None:
        await node.create(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        before, first = node.runtime.live_containers(), node.agent
        await node.restart_agent()
        await asyncio.sleep(30)
        assert node.agent is not first
        assert node.runtime.live_containers() == before

    on_node(scenario)
