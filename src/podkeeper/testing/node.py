"""A whole node in virtual time: the agent with its production wiring, on a fake runtime and an API in memory.

    async def scenario(node: NodeHarness) -> float:
        await node.create(pod("web", uid="", node=NODE))
        return await node.until(lambda: node.is_ready("web"), within=5)

    seconds = on_node(scenario)

The runtime, the API, volumes, cgroups and the journal survive a restart of the agent. A subclass replaces single parts
in `ports` or `settings`:

    class NodeWithoutApi(NodeHarness):
        def ports(self) -> Ports:
            return replace(super().ports(), api=None, sources=(self.files,))

    on_node(scenario, NodeWithoutApi)
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.app.sources import api_source
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.fake_sources import fake_file_source
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, idle_seconds, simulate

T = TypeVar("T")
NODE = "n1"
HOST_IP = "192.0.2.1"


class NodeHarness:
    """A node and the agent that runs on it now. Must be created inside a virtual-time loop."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.api = MemoryApi(self.clock)
        self.runtime = FakeRuntime(self.clock)
        self.volumes = FakeVolumes(self.clock)
        self.cgroups = FakeCgroups(self.clock)
        self.prober = FakeProber()
        self.journal = FakeJournal()
        self.files = fake_file_source(NODE)
        self.agent: Agent
        self._group: asyncio.TaskGroup
        self._running: asyncio.Task[None] | None = None

    # The wiring. Subclasses replace parts of it.

    def ports(self) -> Ports:
        """Return the ports of a new agent. Pods come from the API and from `files`."""
        pods = api_source(api=self.api, node_name=NODE, clock=self.clock, journal=self.journal)
        return Ports(
            runtime=self.runtime,
            volumes=self.volumes,
            cgroups=self.cgroups,
            prober=self.prober,
            clock=self.clock,
            sources=(pods, self.files),
            api=self.api,
            journal=self.journal,
        )

    def settings(self) -> Settings:
        """Return the settings of a new agent."""
        return Settings(node=simple_node(NODE, pods=500, cpu="64"), host_ips=(HOST_IP,))

    def new_agent(self) -> Agent:
        return Agent(Engine(self.ports(), self.settings()))

    async def run_agent(self) -> None:
        """Run the agent until it is cancelled. A subclass may run other tasks beside it."""
        await self.agent.run()

    # Start and stop.

    async def start_agent(self, group: asyncio.TaskGroup | None = None) -> None:
        """Start a new agent. `group` is needed only for the first one."""
        self._group = group or self._group
        self.agent = self.new_agent()
        self._running = self._group.create_task(self.run_agent())
        # Let the agent start before the scenario continues.
        await asyncio.sleep(0)

    async def stop_agent(self) -> None:
        """Stop the agent as `kill -9` does. Only the state outside the agent survives."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])

    async def restart_agent(self) -> None:
        await self.stop_agent()
        await self.start_agent()

    # The API, as a user sees it. All pods are in the namespace `default`.

    async def create(self, *pods: Pod) -> list[Pod]:
        return [await self.api.create(each) for each in pods]

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self.api.delete(Pod, name, "default", grace_seconds=grace)

    def in_api(self, name: str) -> Pod | None:
        return self.api.peek(Pod, name, "default")

    def phase(self, name: str) -> str:
        """Return the phase of a pod, or `gone`."""
        found = self.in_api(name)
        return "gone" if found is None else found.status.phase or ""

    def is_ready(self, name: str) -> bool:
        found = self.in_api(name)
        conditions = () if found is None else found.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def uid(self, name: str) -> PodUID:
        found = self.in_api(name)
        assert found is not None, name
        return uid_of(found)

    async def until(self, condition: Callable[[], bool], *, within: float, step: float = 0.05) -> float:
        """Wait until a condition holds. Return how many seconds it took. Fail after `within` seconds."""
        begun = self.clock.monotonic()
        while not condition():
            now = poll_at = self.clock.monotonic()
            assert now - begun < within, f"the condition did not become true within {within} s"
            # Skip the polls before the next event, because they cannot see a change.
            quiet_until = now + idle_seconds()
            while poll_at <= min(quiet_until, begun + within):
                poll_at += step
            await asyncio.sleep(poll_at - now)
        return self.clock.monotonic() - begun


N = TypeVar("N", bound=NodeHarness)


@overload
def on_node(scenario: Callable[[NodeHarness], Awaitable[T]]) -> T: ...


@overload
def on_node(scenario: Callable[[N], Awaitable[T]], make: Callable[[], N]) -> T: ...


def on_node(scenario: Callable[..., Awaitable[T]], make: Callable[[], NodeHarness] = NodeHarness) -> T:
    """Run a scenario in virtual time beside a running agent. Fail if the agent violated a rule of the runtime."""

    async def run() -> T:
        node = make()
        async with asyncio.TaskGroup() as group:
            await node.start_agent(group)
            result = await scenario(node)
            await node.stop_agent()
        assert list(node.runtime.violations) == []
        return result

    return simulate(run())[0]
