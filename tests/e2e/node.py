"""A whole node for one scenario: the agent in this process, a real runtime, an API in memory.

    async def scenario(node: Node) -> None:
        node.create(pod("web", command=["sleep", "100"]))
        await node.until(lambda: node.is_ready("web"))

    run_on_node(scenario, tmp_path)

Time is real. Waits poll, and a timeout fails with the explanation of every pod. When the node is closed, it removes all
pods and checks that no mounts, cgroups or processes are left. The runtime is a parameter, so that each scenario runs on
every runtime.
"""

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.app.sources import api_source, stored_manifests
from podkeeper.host.cgroups import open_cgroups
from podkeeper.host.clock import SystemClock
from podkeeper.host.prober import NetworkProber
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import NotFound, RuntimeRefused
from podkeeper.model.history import SyncEnded, SyncResult
from podkeeper.model.k8s.core import Container, ContainerStatus, Event, Pod, PodSpec
from podkeeper.model.messages import FILE_SOURCE, PodUID
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.runtime import Runtime
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.naming import pod_log_directory
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.worker.timing import DEFAULT_TIMING, SyncTiming
from podkeeper.sources.file import FileSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.volumes.manager import HostVolumes
from tests.e2e.backends import (
    HOST_IP,
    IMAGE,
    POD_PIDS,
    AgentContext,
    Backend,
    BackendParts,
    ChainedReader,
    ProcessBackend,
)

NODE = "n1"
NAMESPACE = "default"
TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.01


class Node:
    """The agent and its environment. `root` outlives an agent; `restart_agent` starts another one on it."""

    def __init__(
        self,
        root: Path,
        *,
        cgroup_root: str,
        backend: Backend | None = None,
        name: str = NODE,
        settings: Mapping[str, Any] | None = None,
        cpu: str = "8",
        retry_seconds: float = DEFAULT_TIMING.error_seconds,
        **volume_intervals: Any,
    ) -> None:
        """`settings` has additional settings of the agent.

        `volume_intervals` are `refresh_seconds` and `measure_seconds` of volumes. Defaults: one minute, ten seconds.
        """
        self.root = root
        self.backend = backend or ProcessBackend()
        self.name = name
        self.cpu = cpu  # allocatable
        self.clock = SystemClock()
        self.local_objects = LocalObjects()  # config maps and secrets in the manifests of static pods
        self._volume_intervals = volume_intervals
        self._settings = settings or {}
        self._timing = SyncTiming(error_seconds=retry_seconds)  # delay after a failed sync
        self.api = MemoryApi(self.clock)
        self.manifests = root / "manifests"
        self.manifests.mkdir(parents=True, exist_ok=True)
        self.agent: Agent
        self.runtime: Runtime
        self._files: FileSource
        self._volumes: Volumes
        self._backend_parts: BackendParts
        self._cgroups: Cgroups
        self.cgroup_root = cgroup_root
        self._task: asyncio.Task[None] | None = None
        self._parts: AsyncExitStack | None = None

    # Lifecycle of the agent.

    async def start_agent(self) -> None:
        """Start an agent on the existing state."""
        self._parts = AsyncExitStack()
        journal = FileJournal.open(self.root / "journal")
        self._parts.push_async_callback(journal.close)
        cgroups = open_cgroups(self.cgroup_root, pod_pids_limit=POD_PIDS, of_containers=self.backend.is_cri)
        self._parts.push_async_callback(cgroups.close)
        prober = NetworkProber(version="1.36")
        self._parts.push_async_callback(prober.close)
        node = simple_node(self.name, cpu=self.cpu)
        allocatable = amounts_of(node.status.allocatable)
        objects = ChainedReader(self.local_objects, self.api)
        self._files = FileSource(
            (self.manifests,),
            self.name,
            self.clock,
            objects=self.local_objects,
            stored_manifests=stored_manifests(journal, FILE_SOURCE, self.name, keep_secrets=True),
        )
        make_volumes = partial(
            HostVolumes,
            self.root,
            objects,
            allocatable=lambda: allocatable,
            fraction=self.clock.fraction,
            **self._volume_intervals,
        )
        context = AgentContext(
            root=self.root, clock=self.clock, journal=journal, volumes=make_volumes, parts=self._parts
        )
        self._backend_parts = parts = await self.backend.open(context)
        self.runtime, volumes = parts.runtime, parts.volumes
        self._parts.callback(self.local_objects.subscribe(lambda _: volumes.objects_changed()))
        ports = Ports(
            runtime=self.runtime,
            volumes=volumes,
            cgroups=cgroups,
            prober=prober,
            clock=self.clock,
            sources=(
                api_source(api=self.api, node_name=self.name, clock=self.clock, journal=journal),
                self._files,
            ),
            api=self.api,
            objects=objects,
            journal=journal,
            subscribe_overuse=volumes.on_overuse,
            **parts.ports,
        )
        more = {**parts.settings, **self._settings}
        settings = Settings(node=node, host_ips=(HOST_IP,), log_root=str(context.logs), timing=self._timing, **more)
        self.agent = Agent(Engine(ports, settings))
        self._volumes, self._cgroups = volumes, cgroups
        self._task = asyncio.create_task(self._run_agent(volumes))

    async def _run_agent(self, volumes: HostVolumes) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(volumes.run())
            group.create_task(self.agent.run())

    async def end(self) -> None:
        """Stop the agent. Its pods keep running."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._parts is not None:
            await self._parts.aclose()
        self._task = self._parts = None

    async def restart_agent(self) -> None:
        """Stop the agent and start another one."""
        await self.end()
        await self.start_agent()

    async def clear(self) -> None:
        """Delete all pods and wait until nothing is left of them."""
        for path in self.manifests.iterdir():
            path.unlink()
        for found in self.api.objects(Pod):
            with suppress(NotFound):
                self.api.mark_deleted(Pod, found.metadata.name or "", found.metadata.namespace or "", grace_seconds=1)
        await self.until(lambda: not self.api.objects(Pod), "all pods are gone", within=60)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while records := await self.runtime.list_pods():  # housekeeping does this, too, but later
                for sandbox in (each for record in records for each in record.sandboxes):
                    with suppress(RuntimeRefused):  # it is being removed
                        await self.runtime.remove_sandbox(sandbox.id)
        # The API removes a terminal pod at once. Its worker may still release volumes and cgroups.
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self._volumes.mounted_pods() or await self._cgroups.list_pods():
                await asyncio.sleep(POLL_SECONDS)

    # Actions of users.

    def create(self, manifest: Pod | Mapping[str, Any] | str) -> Pod:
        """Create a pod from an object or YAML, with API defaults, bound to this node."""
        if isinstance(manifest, str):
            manifest = yaml.safe_load(manifest)
        made = manifest if isinstance(manifest, Pod) else msgspec.convert(manifest, Pod)
        made = default_pod(replace(made, spec=self._with_images(made.spec)))
        meta = replace(made.metadata, namespace=made.metadata.namespace or NAMESPACE)
        return self.api.put(replace(made, metadata=meta, spec=replace(made.spec, node_name=self.name)))

    def delete(self, name: str, grace_seconds: int | None = None) -> None:
        self.api.mark_deleted(Pod, name, NAMESPACE, grace_seconds=grace_seconds)

    def write(self, name: str, manifest: Mapping[str, Any] | str) -> None:
        """Write a static pod's manifest."""
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(dict(manifest))
        text = re.sub(rf'(\bimage"?: "?){IMAGE}\b', rf"\g<1>{self.image}", text)
        whole = self.manifests / f".{name}.new"
        whole.write_text(text)
        whole.rename(self.manifests / f"{name}.yaml")

    def remove_manifest(self, name: str) -> None:
        """Remove a static pod's manifest."""
        (self.manifests / f"{name}.yaml").unlink()

    @property
    def image(self) -> str:
        """The image of this node that scenarios call `host`."""
        return self.backend.image

    def _with_images(self, spec: PodSpec) -> PodSpec:
        """Return a spec in which the image `host` is replaced by the image of this node."""

        def named(each: Container) -> Container:
            return replace(each, image=self.image) if each.image == IMAGE else each

        return replace(
            spec,
            containers=tuple(map(named, spec.containers)),
            init_containers=spec.init_containers and tuple(map(named, spec.init_containers)),
        )

    # Observations of users.

    def problems(self) -> list[str]:
        """Return the errors in the manifests of static pods."""
        return [str(problem) for problem in self._files.problems()]

    def find(self, name: str) -> Pod | None:
        """Return a pod from the API."""
        return self.api.peek(Pod, name, NAMESPACE)

    def see(self, name: str) -> Pod:
        """Return an existing pod from the API."""
        found = self.find(name)
        assert found is not None, f"there is no pod {name}"
        return found

    def uid(self, name: str) -> PodUID:
        return PodUID(self.see(name).metadata.uid or "")

    def phase(self, name: str) -> str:
        """Return the phase of a pod, or "" if there is no such pod."""
        found = self.find(name)
        return "" if found is None else found.status.phase or ""

    def is_gone(self, name: str) -> bool:
        return self.find(name) is None

    def is_ready(self, name: str) -> bool:
        found = self.find(name)
        conditions = () if found is None else found.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def status(self, name: str, container: str = "app") -> ContainerStatus:
        """Return the status of a container, init container or ephemeral container."""
        shown = self.see(name).status
        every = (
            *(shown.init_container_statuses or ()),
            *(shown.container_statuses or ()),
            *(shown.ephemeral_container_statuses or ()),
        )
        return next(each for each in every if each.name == container)

    def exit_code(self, name: str, container: str = "app") -> int | None:
        """Return the exit code of the last run, or None if the container never exited."""
        shown = self.status(name, container)
        end = shown.state.terminated or shown.last_state.terminated
        return None if end is None else end.exit_code

    def log(self, name: str, container: str = "app", attempt: int = 0) -> str:
        """Return the log of a container, both streams, without times and tags."""
        pod = self.see(name)
        path = Path(pod_log_directory(str(self.root / "logs"), pod)) / container / f"{attempt}.log"
        if not path.exists():
            return ""
        lines = (line.split(" ", 3) for line in path.read_text().splitlines())
        return "".join(content + ("\n" if tag == "F" else "") for _, _, tag, content in lines)

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Return type, reason and message of the events of a pod."""
        found = sorted(self.api.objects(Event), key=lambda event: int(event.metadata.resource_version or 0))
        return [
            (event.type or "", event.reason or "", event.message or "")
            for event in found
            if event.involved_object.name == name
        ]

    def mounted_pods(self) -> frozenset[PodUID]:
        """Return the pods that have volumes, mounts or files in memory."""
        return self._volumes.mounted_pods()

    async def exec(self, name: str, *command: str, container: str = "app") -> Any:
        """Run a command in a container."""
        container_id = (self.status(name, container).container_id or "").partition("://")[2]
        return await self.runtime.exec_sync(container_id, command, 10.0)

    async def type(self, name: str, text: str, container: str = "app") -> None:
        """Attach to a container and write to its standard input."""
        container_id = (self.status(name, container).container_id or "").partition("://")[2]
        await self._backend_parts.type(container_id, text.encode())

    async def until(self, holds: Callable[[], bool], what: str = "", *, within: float = TIMEOUT_SECONDS) -> None:
        """Wait for a condition. Fail with the explanation of every pod."""
        deadline = asyncio.get_running_loop().time() + within
        while not holds():
            if self._task is not None and self._task.done():
                self._task.result()
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {within:g} s: {what or holds}\n{self._describe_pods()}")
            await asyncio.sleep(POLL_SECONDS)

    async def until_synced(self, uid: PodUID) -> ContainerStatus:
        """Wait until the current agent has synced a pod, and return its own status of the container `app`.

        After a restart, the API still has the status that the previous agent sent.
        """
        synced = SyncEnded(SyncResult.DONE)
        await self.until(
            lambda: synced in [entry.event for entry in self.agent.explain(uid).timeline], f"{uid} is synced"
        )
        status = self.agent.engine.statuses.get_pod_status(uid)
        assert status is not None
        return next(each for each in status.container_statuses or () if each.name == "app")

    async def until_phase(self, name: str, phase: str, *, within: float = TIMEOUT_SECONDS) -> None:
        await self.until(lambda: self.phase(name) == phase, f"{name} is {phase}", within=within)

    async def until_ready(self, *names: str, within: float = TIMEOUT_SECONDS) -> None:
        await self.until(lambda: all(map(self.is_ready, names)), f"{', '.join(names)} ready", within=within)

    def _describe_pods(self) -> str:
        lines = []
        for pod in self.api.objects(Pod):
            explanation = self.agent.explain(PodUID(pod.metadata.uid or ""))
            lines.append(f"{pod.metadata.name}: {pod.status.phase}, {explanation.state} {explanation.waiting_for}")
            lines += [f"    {entry.event}" for entry in explanation.timeline[-8:]]
        return "\n".join(lines)


@asynccontextmanager
async def running_node(root: Path, **options: Any) -> AsyncIterator[Node]:
    """Run a node. Afterwards, nothing is left of it."""
    node = Node(root, cgroup_root=f"podkeeper-e2e-{os.getpid()}-{uuid.uuid4().hex[:6]}", **options)
    await node.start_agent()
    try:
        yield node
    finally:
        try:
            await node.clear()
        finally:
            await node.end()
            await node.backend.clear(node.cgroup_root)


Scenario = Callable[[Node], Awaitable[None]]


class ScenarioRunner:
    """Runs each scenario on a new node: `run_on_node(scenario, tmp_path)`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(self, scenario: Scenario, root: Path, **options: Any) -> None:
        """Run one scenario. `options` are those of `Node`."""

        async def run() -> None:
            async with running_node(root, backend=self.backend, **options) as node:
                await scenario(node)

        with self.backend.in_network():
            asyncio.run(run())


def pod(name: str = "app", *, command: Sequence[str] = ("sleep", "1000"), image: str = IMAGE, **spec: Any) -> Pod:
    """Return a pod with one container `app`. `spec` has fields of the pod's spec in their wire spelling.

    `container=...` has more fields of the container. `containers=...` replaces it.
    """
    more = spec.pop("container", {})
    annotations = spec.pop("annotations", None)
    labels = spec.pop("labels", None)
    containers = spec.pop("containers", [{"name": "app", "image": image, "command": list(command), **more}])
    spec.setdefault("terminationGracePeriodSeconds", 2)
    wire = {
        "metadata": {"name": name, "annotations": annotations, "labels": labels},
        "spec": {"containers": containers, **spec},
    }
    return msgspec.convert(wire, Pod)
