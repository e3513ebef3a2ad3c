"""What a node of a scenario runs its pods on: processes of this machine, or containers of one of the tests' runtimes.

    home.open(place) -> Opened: a runtime, its volumes, and whatever else comes with them

Both are plugged together as `podkeeper run` does it (`app/standalone.py`, `app/containers.py`). A scenario says `host`
for the image that every node has; a home knows its own name for it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from podkeeper.app.containers import facts_with
from podkeeper.app.name_lookup import NameLookup
from podkeeper.engine.container_care import PERIOD_SECONDS as CONTAINER_GC_SECONDS
from podkeeper.host.log_files import HostLogFiles
from podkeeper.model.errors import NotFound
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.wire import Wire
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.admit import Enforcement
from podkeeper.rules.dns import ClusterNames
from podkeeper.runtimes.cri.machine import machine_facts
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.streaming.calls import StreamCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.volumes.manager import HostVolumes
from tests.runtimes.cri.cri_node import HOUSE_IMAGE, CriNode, remove_cgroups

K = TypeVar("K", bound=Wire)

IMAGE = "host"
HOST_IP = "127.0.0.1"
POD_PIDS = 512
CLUSTER = ClusterNames(servers=("10.96.0.10",), domain="cluster.local")  # nobody answers there

Type = Callable[[str, bytes], Awaitable[None]]
"""Writes into the standard input of a container, by its id."""


class BothReaders:
    """The node's own config maps and secrets, then the API's."""

    def __init__(self, first: LocalObjects, second: MemoryApi) -> None:
        self._first, self._second = first, second

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        try:
            return await self._first.get(kind, name, namespace)
        except NotFound:
            return await self._second.get(kind, name, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one agent lives, and what a home needs to know of it."""

    root: Path
    clock: Clock
    journal: Journal
    volumes: Callable[..., HostVolumes]
    opened: AsyncExitStack  # what is opened is closed with it

    @property
    def logs(self) -> Path:
        """Where the containers' logs lie."""
        return self.root / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a home gives to an agent."""

    runtime: Runtime
    volumes: HostVolumes
    type: Type
    ports: Mapping[str, Any] = field(default_factory=dict)  # more of the agent's ports
    settings: Mapping[str, Any] = field(default_factory=dict)  # more of its settings


class Home(Protocol):
    """Something to run pods on."""

    image: str  # what the node calls the image that scenarios call `host`
    of_containers: bool  # others make cgroups for its pods, too

    def inside(self) -> Any:
        """Be where pods can be reached, while a context lasts."""

    async def open(self, place: Place) -> Opened:
        """Make the runtime and its volumes for one agent."""

    async def clear(self, cgroup_root: str) -> None:
        """Remove what a scenario that failed may have left."""


class Processes:
    """Processes of this machine."""

    image = IMAGE
    of_containers = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Pods have the machine's own network."""
        yield

    async def open(self, place: Place) -> Opened:
        """The process runtime."""
        runtime = await place.opened.enter_async_context(
            ProcessRuntime(
                str(place.root / "runtime"),
                host_ips=lambda: (HOST_IP,),
                hidden=(str(place.root),),
                pod_pids_limit=POD_PIDS,
            )
        )

        async def type_into(container_id: str, data: bytes) -> None:
            async with await runtime.attach(container_id) as session:
                await session.write(data)

        return Opened(runtime=runtime, volumes=place.volumes(helper=runtime), type=type_into)

    async def clear(self, cgroup_root: str) -> None:
        """Who fails leaves what it had, to be looked at."""


class Containers:
    """Containers of a container runtime."""

    image = HOUSE_IMAGE
    of_containers = True

    def __init__(self, cri_node: CriNode, *, resolver_file: str = "/etc/resolv.conf") -> None:
        self.cri_node = cri_node
        self._resolver_file = resolver_file

    def inside(self) -> Any:
        """Pods are in the network of the runtime."""
        return self.cri_node.inside()

    async def open(self, place: Place) -> Opened:
        """The CRI runtime."""
        volumes = place.volumes()
        transport = GrpcTransport(self.cri_node.socket)
        facts = facts_with(machine_facts(str(place.root / "pods"), str(place.root / "seccomp")), KubeletConfiguration())
        runtime = await place.opened.enter_async_context(
            CriRuntime(
                transport,
                facts,
                clock=place.clock,
                where=self.cri_node.socket,
                cluster_domain=CLUSTER.domain,
                prepare_sub_path=volumes.prepare_sub_path,
            )
        )

        async def type_into(container_id: str, data: bytes) -> None:
            talk = await StreamCalls(transport).attach(container_id, tty=False, stdin=True)
            try:
                await talk.send(data)
                await talk.close_input()
                await talk.wait()
            finally:
                await talk.close()

        return Opened(
            runtime=runtime,
            volumes=volumes,
            type=type_into,
            ports={"pull_journal": place.journal, "log_files": HostLogFiles(place.logs)},
            settings={
                "lookup": NameLookup(CLUSTER, self._resolver_file, (HOST_IP,)),
                "container_gc_seconds": CONTAINER_GC_SECONDS,
                "enforcement": Enforcement(runtime.facts.allowed_unsafe_sysctls, runtime.facts.apparmor),
            },
        )

    async def clear(self, cgroup_root: str) -> None:
        """Remove all pods."""
        await self.cri_node.remove_all()
        remove_cgroups(cgroup_root)
