"""The floor for real containers: the bare CRI calls with the messages that podkeeper sends.

    Floor.made     RunPodSandbox, CreateContainer, StartContainer
    Floor.removed  StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox

Pods run one after the other, or many at a time with limited concurrency. Messages and files are prepared before the
measurement. There are no status calls, so no agent can create the same containers with fewer calls.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from msgspec.structs import replace

from bench.user import Shape
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime_calls import ContainerConfig, Dns, SandboxConfig
from podkeeper.rules.naming import container_log_path, pod_log_directory
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.requests.container import container_message
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import sandbox_message
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport

T = TypeVar("T")

GRACE_SECONDS = 30.0
_DNS = Dns(servers=("10.96.0.10",), searches=("default.svc.cluster.local",), options=("ndots:5",))


@dataclass(frozen=True, slots=True)
class Prepared:
    """The messages of a pod that is not created yet."""

    sandbox: cri.PodSandboxConfig
    container: cri.ContainerConfig


@dataclass(frozen=True, slots=True)
class Made:
    """A running pod and the time at which it started to run."""

    sandbox_id: str
    container_id: str
    at: float


class Floor:
    """Creates and removes pods with the fewest calls."""

    def __init__(self, socket: str, facts: NodeFacts, cgroup_root: str, log_root: str, shape: Shape) -> None:
        self._transport = GrpcTransport(socket)
        self._calls = CriCalls(self._transport)
        self._facts = facts
        self._files = PodFiles(facts.pods_root)
        self._cgroup_root = cgroup_root
        self._log_root = log_root
        self._shape = shape
        self._image_id = ""

    async def close(self) -> None:
        await self._transport.close()

    async def prepared(self, name: str) -> Prepared:
        """Prepare all messages and files."""
        if not self._image_id:
            image = await self._calls.image(self._shape.image)
            assert image is not None
            self._image_id = image.id
        pod = self._shape.pod(name)
        pod = replace(pod, metadata=replace(pod.metadata, uid=str(uuid4())))
        sandbox = self._sandbox(pod)
        container = pod.spec.containers[0]
        config = ContainerConfig(
            pod=pod,
            container=container,
            attempt=0,
            image=self._image_id,
            spec_hash="0123abcd",
            command=tuple(container.command or ()),
            log_path=container_log_path(container.name, 0),
            pod_ips=("10.88.0.2",),
        )
        files = self._files.create(config, sandbox.log_directory)
        return Prepared(sandbox, container_message(config, self._facts, files))

    def _sandbox(self, pod: Pod) -> cri.PodSandboxConfig:
        config = SandboxConfig(
            pod=pod,
            attempt=0,
            hostname=pod.metadata.name or "",
            log_directory=pod_log_directory(self._log_root, pod),
            cgroup_parent=f"{self._cgroup_root}/besteffort/pod{pod.metadata.uid}",
            dns=_DNS,
        )
        return sandbox_message(config, self._facts)

    async def made(self, pod: Prepared) -> Made:
        """Create and start a pod."""
        sandbox_id = await self._calls.run_sandbox(pod.sandbox, "")
        container_id = await self._calls.create_container(sandbox_id, pod.container, pod.sandbox)
        await self._calls.start_container(container_id)
        return Made(sandbox_id, container_id, time.monotonic())

    async def removed(self, pod: Made) -> float:
        """Stop and remove a pod. Return the time at which it was removed."""
        await self._calls.stop_container(pod.container_id, GRACE_SECONDS)
        await self._calls.remove_container(pod.container_id)
        await self._calls.stop_sandbox(pod.sandbox_id)
        await self._calls.remove_sandbox(pod.sandbox_id)
        return time.monotonic()

    async def one(self) -> tuple[float, float]:
        """Return the milliseconds to create one pod, and to remove it."""
        pod = await self.prepared("web")
        begun = time.monotonic()
        made = await self.made(pod)
        return (made.at - begun) * 1000, (-time.monotonic() + await self.removed(made)) * 1000

    async def many(self, count: int, at_a_time: int) -> tuple[list[float], list[float]]:
        """Return the seconds until each of many pods ran, and until each was removed, in ascending order."""
        pods = [await self.prepared(f"pod-{number}") for number in range(count)]
        begun = time.monotonic()
        made = await _limited(at_a_time, self.made, pods)
        ready = sorted(pod.at - begun for pod in made)
        begun = time.monotonic()
        return ready, sorted(at - begun for at in await _limited(at_a_time, self.removed, made))


V = TypeVar("V")


async def _limited(at_a_time: int, do: Callable[[T], Awaitable[V]], items: Sequence[T]) -> list[V]:
    slots = asyncio.Semaphore(at_a_time)

    async def one(item: T) -> V:
        async with slots:
            return await do(item)

    return await asyncio.gather(*map(one, items))
