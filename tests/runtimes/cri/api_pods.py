"""An agent on a real container runtime with an API in memory, and the pods of this API.

async with open_agent_parts(options) as parts, agent_on_api(parts) as (agent, api):
    pods = ApiPods(api)
    pods.create_pod("web", {"command": ["sleep", "100"]})
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine
from podkeeper.app.sources import api_source
from podkeeper.app.standalone import AgentParts
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.testing.memory_api import MemoryApi
from tests.manifests import manifest
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE

NODE = "n1"


class ApiPods:
    """The pods of an API."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api

    def create_pod(self, name: str, container: Mapping[str, Any], **spec: Any) -> None:
        """Create a pod on this node. It has one container, with the image of busybox."""
        app = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent", **container}
        wire = manifest(name, app, metadata={"namespace": "default"}, nodeName=NODE, **spec)
        self.api.put(default_pod(msgspec.convert(wire, Pod)))

    def delete(self, *names: str) -> None:
        """Delete pods with their own grace periods."""
        for name in names:
            self.api.mark_deleted(Pod, name, "default")

    def find(self, name: str) -> Pod | None:
        return self.api.peek(Pod, name, "default")

    def phase(self, name: str) -> str:
        """Return the phase of a pod, or "" if there is no such pod."""
        pod = self.find(name)
        return "" if pod is None else pod.status.phase or ""

    def is_ready(self, name: str) -> bool:
        pod = self.find(name)
        conditions = () if pod is None else pod.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def is_gone(self, name: str) -> bool:
        return self.find(name) is None

    def has_ended(self, name: str) -> bool:
        return self.phase(name) in ("Succeeded", "Failed")


@asynccontextmanager
async def agent_on_api(parts: AgentParts, **settings: Any) -> AsyncIterator[tuple[Agent, MemoryApi]]:
    """Run an agent whose only source is an API in memory. `settings` replace those of the parts."""
    api = MemoryApi(parts.ports.clock)
    source = api_source(api=api, node_name=NODE, clock=parts.ports.clock, journal=parts.ports.journal)
    agent = Agent(Engine(replace(parts.ports, api=api, sources=(source,)), replace(parts.settings, **settings)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each()) for each in (agent.run, *parts.background_tasks)]
        try:
            yield agent, api
        finally:
            for task in tasks:
                task.cancel()
