"""A whole agent in virtual time, wired as in production, on a fake runtime and an API in memory.

async def scenario(house: NodeHouse) -> None:
    await house.create(pod("web"))
    await asyncio.sleep(5)

in_node_house(scenario)
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from podkeeper.app.build import Agent, Ports, Settings, simple_node
from podkeeper.app.sources import api_source
from podkeeper.model.k8s.core import Container, ExecAction, Pod, PodSpec, Probe, Volume
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.fake_sources import fake_file_source
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate

T = TypeVar("T")
NODE = "n1"


def container(name: str = "app", *, probe_seconds: int | None = 10) -> Container:
    check = ExecAction(command=("check", name))
    probe = Probe(exec=check, period_seconds=probe_seconds, timeout_seconds=1, failure_threshold=3, success_threshold=1)
    return Container(name=name, image=f"{name}:v1", readiness_probe=probe if probe_seconds else None)


def pod(
    name: str,
    *containers: Container,
    policy: str = "Always",
    grace: int = 30,
    annotations: dict[str, str] | None = None,
    deadline: int | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", annotations=annotations),
        spec=PodSpec(
            node_name=NODE,
            containers=containers or (container(),),
            restart_policy=policy,
            termination_grace_period_seconds=grace,
            active_deadline_seconds=deadline,
            volumes=(Volume(name="data"),),
        ),
    )


class NodeHouse:
    """One node: what survives an agent, and the agent that lives now."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.api = MemoryApi(self.clock)
        self.runtime = FakeRuntime(self.clock)
        self.volumes = FakeVolumes(self.clock)
        self.cgroups = FakeCgroups(self.clock)
        self.prober = FakeProber()
        self.journal = FakeJournal()
        self.files = fake_file_source(NODE)
        self.agent = self._new_agent()
        self._living: asyncio.Task[None] | None = None

    def _new_agent(self) -> Agent:
        pods = api_source(api=self.api, node_name=NODE, clock=self.clock, journal=self.journal)
        ports = Ports(
            runtime=self.runtime,
            volumes=self.volumes,
            cgroups=self.cgroups,
            prober=self.prober,
            clock=self.clock,
            sources=(pods, self.files),
            api=self.api,
            journal=self.journal,
        )
        return Agent(ports, Settings(node=simple_node(NODE, pods=500, cpu="64"), host_ips=("192.0.2.1",)))

    async def start_agent(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._living = group.create_task(self.agent.run())
        await asyncio.sleep(0)

    async def stop_agent(self) -> None:
        """As `kill -9` does it: nobody is asked, and only what is outside survives."""
        assert self._living is not None
        self._living.cancel()
        await asyncio.wait([self._living])

    async def restart_agent(self) -> None:
        """Let the agent die, and another one take its place."""
        await self.stop_agent()
        self.agent = self._new_agent()
        await self.start_agent(self._group)

    async def create(self, *pods: Pod) -> list[Pod]:
        return [await self.api.create(each) for each in pods]

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self.api.delete(Pod, name, "default", grace_seconds=grace)

    def in_api(self, name: str) -> Pod | None:
        return self.api.peek(Pod, name, "default")

    def phase(self, name: str) -> str:
        found = self.in_api(name)
        return "gone" if found is None else found.status.phase or ""

    def is_ready(self, name: str) -> bool:
        found = self.in_api(name)
        return found is not None and any(
            each.type == "Ready" and each.status == "True" for each in found.status.conditions or ()
        )

    def uid(self, name: str) -> PodUID:
        found = self.in_api(name)
        assert found is not None, name
        return PodUID(found.metadata.uid or "")

    async def until(self, condition: Callable[[], bool], *, within: float, step: float = 0.05) -> float:
        """Wait for something, and say how many seconds it took."""
        begun = self.clock.monotonic()
        while not condition():
            assert self.clock.monotonic() - begun < within, f"not within {within} s"
            await asyncio.sleep(step)
        return self.clock.monotonic() - begun


def in_node_house(scenario: Callable[[NodeHouse], Awaitable[T]]) -> T:
    """Play a scenario beside a living agent; the runtime must find nothing to complain of."""

    async def play() -> T:
        house = NodeHouse()
        async with asyncio.TaskGroup() as group:
            await house.start_agent(group)
            result = await scenario(house)
            await house.stop_agent()
        assert list(house.runtime.violations) == []
        return result

    return simulate(play())[0]
