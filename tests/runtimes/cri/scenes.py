"""Pods for tests of the CRI runtime, made step by step, on whatever answers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime
from tests.runtimes.cri.fake_server import FakeCri, HastyTransport, served
from tests.runtimes.scene import PATIENCE_SECONDS, PodScene

IMAGE = "docker.io/library/busybox:latest"


class Scene(PodScene):
    """One pod. Its spec calls its image as people do; its containers are made from what the runtime calls it."""

    def __init__(self, runtime: CriRuntime, image: str = "image", **spec: Any) -> None:
        self.runtime = runtime
        self.image = image
        self.uid = PodUID(str(uuid4()))
        meta = ObjectMeta(name=f"p{self.uid[:8]}", namespace="default", uid=self.uid)
        self.pod = Pod(metadata=meta, spec=PodSpec(**spec))

    async def sandbox(self, attempt: int = 0, **config: Any) -> str:
        return await self.runtime.run_sandbox(SandboxConfig(pod=self.pod, attempt=attempt, **config))

    async def create(
        self, sandbox_id: str, *command: str, name: str = "c", attempt: int = 0, ips: tuple[str, ...] = (), **spec: Any
    ) -> str:
        container = Container(name=name, image=IMAGE, command=command, **spec)
        config = ContainerConfig(
            pod=self.pod,
            container=container,
            attempt=attempt,
            image=self.image,
            spec_hash="cafe",
            command=command,
            pod_ips=ips,
            log_path=f"{name}/{attempt}.log",
        )
        return await self.runtime.create_container(sandbox_id, config)


@asynccontextmanager
async def with_fake(fake: FakeCri) -> AsyncIterator[CriRuntime]:
    """A runtime on a fake server."""
    async with served(fake), with_fake_at(fake) as runtime:
        yield runtime


@asynccontextmanager
async def with_fake_at(fake: FakeCri) -> AsyncIterator[CriRuntime]:
    """One more runtime on a fake server that serves already: as another agent, or another life of it."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-pods-") as directory:
        transport = HastyTransport(fake, fake.path)
        async with CriRuntime(transport, facts(directory), clock=SystemClock(), where=fake.path) as runtime:
            yield runtime


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it never came about that {what}") from None


def facts(directory: str) -> NodeFacts:
    """A node with nothing special."""
    pods, seccomp = Path(directory, "pods"), Path(directory, "seccomp")
    return NodeFacts(memory_bytes=2**33, pods_root=str(pods), seccomp_root=str(seccomp), cgroup_v2=False)


async def until_it_answers(runtime: CriRuntime) -> None:
    """Wait for a runtime that is being started."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await runtime.health()
            except RuntimeUnavailable:
                await asyncio.sleep(0.05)
            else:
                return
