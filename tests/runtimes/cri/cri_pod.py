"""Pods that tests create step by step on the CRI runtime, with a fake or a real server."""

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
from tests.runtimes.cri.fake_server import FakeCri, ShortDeadlineTransport, served
from tests.runtimes.runtime_pod import TIMEOUT_SECONDS, RuntimePod

IMAGE = "docker.io/library/busybox:latest"


class CriPod(RuntimePod):
    """One pod. Its spec has an image name, and its containers are created from the runtime's image id."""

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
async def runtime_on_fake(fake: FakeCri) -> AsyncIterator[CriRuntime]:
    """Start a fake server and open a runtime on it."""
    async with served(fake), runtime_on_running_fake(fake) as runtime:
        yield runtime


@asynccontextmanager
async def runtime_on_running_fake(fake: FakeCri) -> AsyncIterator[CriRuntime]:
    """Open another runtime on a running fake server, as another or a restarted agent does."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-pods-") as directory:
        transport = ShortDeadlineTransport(fake, fake.path)
        async with CriRuntime(transport, facts(directory), clock=SystemClock(), where=fake.path) as runtime:
            yield runtime


async def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT_SECONDS:g} s: {what}") from None


def facts(directory: str) -> NodeFacts:
    """Return facts of a default node."""
    pods, seccomp = Path(directory, "pods"), Path(directory, "seccomp")
    return NodeFacts(memory_bytes=2**33, pods_root=str(pods), seccomp_root=str(seccomp), cgroup_v2=False)


async def wait_until_available(runtime: CriRuntime) -> None:
    """Wait until a starting runtime answers."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                await runtime.health()
            except RuntimeUnavailable:
                await asyncio.sleep(0.05)
            else:
                return
