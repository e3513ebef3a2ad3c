"""Runtime backends of a test node: the process runtime, or CRI with one of the tests' container runtimes.

    backend.open(context) -> BackendParts: a runtime, its volumes, and more ports and settings of the agent

The parts are wired as in `podkeeper run` (`app/standalone.py`, `app/containers.py`). Scenarios use the image name
`host`. Each backend has its own name for that image.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from podkeeper.app.containers import facts_with
from podkeeper.app.name_lookup import NameLookup
from podkeeper.engine.container_gc import PERIOD_SECONDS as CONTAINER_GC_SECONDS
from podkeeper.host.log_files import HostLogFiles
from podkeeper.model.errors import NotFound
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.wire import Wire
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.admission.admit import Enforcement
from podkeeper.rules.dns import ClusterDns
from podkeeper.runtimes.cri.host_facts import machine_facts
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.stream_calls import StreamCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.volumes.manager import HostVolumes
from tests.runtimes.cri.cri_node import LOCAL_IMAGE, CriNode, remove_cgroups

K = TypeVar("K", bound=Wire)

IMAGE = "host"
HOST_IP = "127.0.0.1"
POD_PIDS = 512
CLUSTER = ClusterDns(servers=("10.96.0.10",), domain="cluster.local")  # no server answers there

Type = Callable[[str, bytes], Awaitable[None]]
"""Writes to the standard input of a container, by its id."""


class ChainedReader:
    """Reads local config maps and secrets first, then those of the API."""

    def __init__(self, first: LocalObjects, second: MemoryApi) -> None:
        self._first, self._second = first, second

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        try:
            return await self._first.get(kind, name, namespace)
        except NotFound:
            return await self._second.get(kind, name, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """The parts of one agent that a backend needs."""

    root: Path
    clock: Clock
    journal: Journal
    volumes: Callable[..., HostVolumes]
    parts: AsyncExitStack  # closes what the backend opens

    @property
    def logs(self) -> Path:
        """The directory of the container logs."""
        return self.root / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendParts:
    """The parts that a backend provides to an agent."""

    runtime: Runtime
    volumes: HostVolumes
    type: Type
    ports: Mapping[str, Any] = field(default_factory=dict)  # additional ports of the agent
    settings: Mapping[str, Any] = field(default_factory=dict)  # additional settings of the agent


class Backend(Protocol):
    """A kind of runtime to run pods on."""

    image: str  # replaces the image name `host` of scenarios
    is_cri: bool  # a container runtime creates cgroups of containers, too

    def in_network(self) -> Any:
        """Enter the network in which pods can be reached."""

    async def open(self, context: AgentContext) -> BackendParts:
        """Create the runtime and the volumes of one agent."""

    async def clear(self, cgroup_root: str) -> None:
        """Remove what a failed scenario may have left."""


class ProcessBackend:
    """The process runtime."""

    image = IMAGE
    is_cri = False

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Do nothing: pods have the network of the host."""
        yield

    async def open(self, context: AgentContext) -> BackendParts:
        runtime = await context.parts.enter_async_context(
            ProcessRuntime(
                str(context.root / "runtime"),
                host_ips=lambda: (HOST_IP,),
                hidden=(str(context.root),),
                pod_pids_limit=POD_PIDS,
            )
        )

        async def type_into(container_id: str, data: bytes) -> None:
            async with await runtime.attach(container_id) as session:
                await session.write(data)

        return BackendParts(runtime=runtime, volumes=context.volumes(helper=runtime), type=type_into)

    async def clear(self, cgroup_root: str) -> None:
        """Do nothing: leftovers of a failed scenario stay for inspection."""


class CriBackend:
    """The CRI runtime with one of the tests' container runtimes."""

    image = LOCAL_IMAGE
    is_cri = True

    def __init__(self, cri_node: CriNode, *, resolver_file: str = "/etc/resolv.conf") -> None:
        self.cri_node = cri_node
        self._resolver_file = resolver_file

    def in_network(self) -> Any:
        return self.cri_node.in_network()

    async def open(self, context: AgentContext) -> BackendParts:
        volumes = context.volumes()
        transport = GrpcTransport(self.cri_node.socket)
        facts = facts_with(
            machine_facts(str(context.root / "pods"), str(context.root / "seccomp")), KubeletConfiguration()
        )
        runtime = await context.parts.enter_async_context(
            CriRuntime(
                transport,
                facts,
                clock=context.clock,
                where=self.cri_node.socket,
                cluster_domain=CLUSTER.domain,
                prepare_sub_path=volumes.prepare_sub_path,
            )
        )

        async def type_into(container_id: str, data: bytes) -> None:
            session = await StreamCalls(transport).attach(container_id, tty=False, stdin=True)
            try:
                await session.send(data)
                await session.close_input()
                await session.wait()
            finally:
                await session.close()

        return BackendParts(
            runtime=runtime,
            volumes=volumes,
            type=type_into,
            ports={"pull_journal": context.journal, "log_files": HostLogFiles(context.logs)},
            settings={
                "lookup": NameLookup(CLUSTER, self._resolver_file, (HOST_IP,)),
                "container_gc_seconds": CONTAINER_GC_SECONDS,
                "enforcement": Enforcement(runtime.facts.allowed_unsafe_sysctls, runtime.facts.apparmor),
            },
        )

    async def clear(self, cgroup_root: str) -> None:
        await self.cri_node.remove_all()
        remove_cgroups(cgroup_root)
