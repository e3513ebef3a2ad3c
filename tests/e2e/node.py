"""A whole node for one scenario: the agent in this process, a real runtime below it, an API in memory above it.

    async def scenario(node: Node) -> None:
        node.create(pod("web", command=["sleep", "100"]))
        await node.until(lambda: node.is_ready("web"))

    on_a_node(scenario, tmp_path)

Time is real: waiting polls, and gives up with the pod's explanation. Whatever a scenario leaves behind (pods, mounts,
cgroups, processes) is gone when the node is closed, and that is checked. The runtime is a parameter: what is written
here once is to hold for every runtime.
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

from podkeeper.app.build import Agent, Ports, Settings, simple_node
from podkeeper.app.sources import api_source, manifest_notes
from podkeeper.host.cgroups import open_cgroups
from podkeeper.host.clock import SystemClock
from podkeeper.host.prober import NetworkProber
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import NotFound, RuntimeRefused
from podkeeper.model.k8s.core import Container, ContainerStatus, Event, Pod, PodSpec
from podkeeper.model.messages import FILE_SOURCE, PodUID
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.runtime import Runtime
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.defaults import default_pod
from podkeeper.rules.naming import pod_log_directory
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.worker.pauses import USUAL_TIMING, Timing
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.sources.file import FileSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.volumes.manager import HostVolumes
from tests.e2e.homes import HOST_IP, IMAGE, POD_PIDS, BothReaders, Home, Opened, Place, Processes

NODE = "n1"
NAMESPACE = "default"
PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.01


class Node:
    """The agent and its world. `root` outlives an agent: `restarted` gives it a new one."""

    def __init__(
        self,
        root: Path,
        *,
        cgroup_root: str,
        home: Home | None = None,
        name: str = NODE,
        settings: Mapping[str, Any] | None = None,
        cpu: str = "8",
        retry_seconds: float = USUAL_TIMING.error_seconds,
        **pace: Any,
    ) -> None:
        """`settings`: more of the agent's.

        `pace`: `refresh_seconds` and `measure_seconds` of volumes; the usual ones are a minute and ten seconds.
        """
        self.root = root
        self.home = home or Processes()
        self.name = name
        self.cpu = cpu  # what the node has to give
        self.clock = SystemClock()
        self.local_objects = LocalObjects()  # config maps and secrets beside static pods
        self._pace = pace
        self._settings = settings or {}
        self._timing = Timing(error_seconds=retry_seconds)  # after what went wrong
        self.api = MemoryApi(self.clock)
        self.manifests = root / "manifests"
        self.manifests.mkdir(parents=True, exist_ok=True)
        self.agent: Agent
        self.runtime: Runtime
        self._files: FileSource
        self._volumes: Volumes
        self._opened: Opened
        self._cgroups: Cgroups
        self.cgroup_root = cgroup_root
        self._life: asyncio.Task[None] | None = None
        self._parts: AsyncExitStack | None = None

    # The agent's life.

    async def begin(self) -> None:
        """Start an agent on what is there."""
        self._parts = AsyncExitStack()
        journal = FileJournal.open(self.root / "journal")
        self._parts.push_async_callback(journal.close)
        cgroups = open_cgroups(cgroup, self.cgroup_root, pod_pids_limit=POD_PIDS, of_containers=self.home.of_containers)
        self._parts.push_async_callback(cgroups.close)
        prober = NetworkProber(version="1.36")
        self._parts.push_async_callback(prober.close)
        node = simple_node(self.name, cpu=self.cpu)
        allocatable = amounts_of(node.status.allocatable)
        objects = BothReaders(self.local_objects, self.api)
        self._files = FileSource(
            (self.manifests,),
            self.name,
            self.clock,
            objects=self.local_objects,
            notes=manifest_notes(journal, FILE_SOURCE, self.name, keep_secrets=True),
        )
        made_volumes = partial(
            HostVolumes,
            self.root,
            objects,
            allocatable=lambda: allocatable,
            fraction=self.clock.fraction,
            **self._pace,
        )
        place = Place(root=self.root, clock=self.clock, journal=journal, volumes=made_volumes, opened=self._parts)
        self._opened = opened = await self.home.open(place)
        self.runtime, volumes = opened.runtime, opened.volumes
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
            over_used=volumes.tell_over_use,
            **opened.ports,
        )
        more = {**opened.settings, **self._settings}
        settings = Settings(node=node, host_ips=(HOST_IP,), log_root=str(place.logs), timing=self._timing, **more)
        self.agent = Agent(ports, settings)
        self._volumes, self._cgroups = volumes, cgroups
        self._life = asyncio.create_task(self._live(volumes))

    async def _live(self, volumes: HostVolumes) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(volumes.run())
            group.create_task(self.agent.run())

    async def end(self) -> None:
        """End the agent; its pods go on."""
        if self._life is not None:
            self._life.cancel()
            with suppress(asyncio.CancelledError):
                await self._life
        if self._parts is not None:
            await self._parts.aclose()
        self._life = self._parts = None

    async def restarted(self) -> None:
        """Another agent takes the place of this one."""
        await self.end()
        await self.begin()

    async def clear(self) -> None:
        """Delete every pod and wait until nothing of them is left."""
        for path in self.manifests.iterdir():
            path.unlink()
        for found in self.api.objects(Pod):
            with suppress(NotFound):
                self.api.mark_deleted(Pod, found.metadata.name or "", found.metadata.namespace or "", grace_seconds=1)
        await self.until(lambda: not self.api.objects(Pod), "all pods are gone", within=60)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while records := await self.runtime.list_pods():  # housekeeping would, in its own time
                for sandbox in (each for record in records for each in record.sandboxes):
                    with suppress(RuntimeRefused):  # it is about to
                        await self.runtime.remove_sandbox(sandbox.id)
        # The API lets go at once of a pod that has ended: its worker may still be giving back what it held.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._volumes.mounted_pods() or await self._cgroups.list_pods():
                await asyncio.sleep(POLL_SECONDS)

    # What users do.

    def create(self, manifest: Pod | Mapping[str, Any] | str) -> Pod:
        """Create a pod; text is YAML. Defaults are filled in and it is bound to this node, as a cluster would."""
        if isinstance(manifest, str):
            manifest = yaml.safe_load(manifest)
        made = manifest if isinstance(manifest, Pod) else msgspec.convert(manifest, Pod)
        made = default_pod(replace(made, spec=self._with_images(made.spec)))
        meta = replace(made.metadata, namespace=made.metadata.namespace or NAMESPACE)
        return self.api.put(replace(made, metadata=meta, spec=replace(made.spec, node_name=self.name)))

    def delete(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod."""
        self.api.mark_deleted(Pod, name, NAMESPACE, grace_seconds=grace_seconds)

    def write(self, name: str, manifest: Mapping[str, Any] | str) -> None:
        """Write a static pod's manifest."""
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(dict(manifest))
        text = re.sub(rf'(\bimage"?: "?){IMAGE}\b', rf"\g<1>{self.image}", text)
        whole = self.manifests / f".{name}.new"
        whole.write_text(text)
        whole.rename(self.manifests / f"{name}.yaml")

    def unwrite(self, name: str) -> None:
        """Remove a static pod's manifest."""
        (self.manifests / f"{name}.yaml").unlink()

    @property
    def image(self) -> str:
        """What this node calls the image that it has."""
        return self.home.image

    def _with_images(self, spec: PodSpec) -> PodSpec:
        """A spec with this node's name for the image that every node has."""

        def named(each: Container) -> Container:
            return replace(each, image=self.image) if each.image == IMAGE else each

        return replace(
            spec,
            containers=tuple(map(named, spec.containers)),
            init_containers=spec.init_containers and tuple(map(named, spec.init_containers)),
        )

    # What users see.

    def problems(self) -> list[str]:
        """What is wrong with the manifests of static pods."""
        return [str(problem) for problem in self._files.problems()]

    def find(self, name: str) -> Pod | None:
        """A pod as the API shows it."""
        return self.api.peek(Pod, name, NAMESPACE)

    def see(self, name: str) -> Pod:
        """A pod that is there."""
        found = self.find(name)
        assert found is not None, f"there is no pod {name}"
        return found

    def uid(self, name: str) -> PodUID:
        """A pod's UID."""
        return PodUID(self.see(name).metadata.uid or "")

    def phase(self, name: str) -> str:
        """A pod's phase; empty: there is no such pod."""
        found = self.find(name)
        return "" if found is None else found.status.phase or ""

    def is_gone(self, name: str) -> bool:
        """Whether there is no such pod any more."""
        return self.find(name) is None

    def is_ready(self, name: str) -> bool:
        """Whether a pod is Ready."""
        found = self.find(name)
        conditions = () if found is None else found.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def status(self, name: str, container: str = "app") -> ContainerStatus:
        """The status of one container, of any kind."""
        shown = self.see(name).status
        every = (
            *(shown.init_container_statuses or ()),
            *(shown.container_statuses or ()),
            *(shown.ephemeral_container_statuses or ()),
        )
        return next(each for each in every if each.name == container)

    def exit_code(self, name: str, container: str = "app") -> int | None:
        """How a container ended, the last time if it runs again; None: it never did."""
        shown = self.status(name, container)
        end = shown.state.terminated or shown.last_state.terminated
        return None if end is None else end.exit_code

    def log(self, name: str, container: str = "app", attempt: int = 0) -> str:
        """What a container wrote, both streams, without the log's own words."""
        pod = self.see(name)
        path = Path(pod_log_directory(str(self.root / "logs"), pod)) / container / f"{attempt}.log"
        if not path.exists():
            return ""
        lines = (line.split(" ", 3) for line in path.read_text().splitlines())
        return "".join(content + ("\n" if tag == "F" else "") for _, _, tag, content in lines)

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """What was told of a pod: type, reason and message."""
        told = sorted(self.api.objects(Event), key=lambda event: int(event.metadata.resource_version or 0))
        return [
            (event.type or "", event.reason or "", event.message or "")
            for event in told
            if event.involved_object.name == name
        ]

    def mounted_pods(self) -> frozenset[PodUID]:
        """The pods that have volumes, anything mounted, or anything in memory."""
        return self._volumes.mounted_pods()

    async def exec(self, name: str, *command: str, container: str = "app") -> Any:
        """Run a command in a container."""
        container_id = (self.status(name, container).container_id or "").partition("://")[2]
        return await self.runtime.exec_sync(container_id, command, 10.0)

    async def type(self, name: str, text: str, container: str = "app") -> None:
        """Attach to a container and write into its standard input."""
        container_id = (self.status(name, container).container_id or "").partition("://")[2]
        await self._opened.type(container_id, text.encode())

    async def until(self, holds: Callable[[], bool], what: str = "", *, within: float = PATIENCE_SECONDS) -> None:
        """Wait until something is so. Fails with what every pod has to say."""
        deadline = asyncio.get_running_loop().time() + within
        while not holds():
            if self._life is not None and self._life.done():
                self._life.result()
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {within:g} s: {what or holds}\n{self._story()}")
            await asyncio.sleep(POLL_SECONDS)

    async def until_phase(self, name: str, phase: str, *, within: float = PATIENCE_SECONDS) -> None:
        """Wait for a pod's phase."""
        await self.until(lambda: self.phase(name) == phase, f"{name} is {phase}", within=within)

    async def until_ready(self, *names: str, within: float = PATIENCE_SECONDS) -> None:
        """Wait until pods are Ready."""
        await self.until(lambda: all(map(self.is_ready, names)), f"{', '.join(names)} ready", within=within)

    def _story(self) -> str:
        lines = []
        for pod in self.api.objects(Pod):
            explanation = self.agent.explain(PodUID(pod.metadata.uid or ""))
            lines.append(f"{pod.metadata.name}: {pod.status.phase}, {explanation.state} {explanation.waiting_for}")
            lines += [f"    {entry.what}: {entry.detail}" for entry in explanation.timeline[-8:]]
        return "\n".join(lines)


@asynccontextmanager
async def running_node(root: Path, **options: Any) -> AsyncIterator[Node]:
    """A node that lives; everything of it is gone afterwards."""
    node = Node(root, cgroup_root=f"podkeeper-e2e-{os.getpid()}-{uuid.uuid4().hex[:6]}", **options)
    await node.begin()
    try:
        yield node
    finally:
        try:
            await node.clear()
        finally:
            await node.end()
            await node.home.clear(node.cgroup_root)


Scenario = Callable[[Node], Awaitable[None]]


class OnANode:
    """Plays scenarios, each on a node of its own: `on_a_node(scenario, tmp_path)`."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def __call__(self, scenario: Scenario, root: Path, **options: Any) -> None:
        """Play one; `options` are those of `Node`."""

        async def play() -> None:
            async with running_node(root, home=self.home, **options) as node:
                await scenario(node)

        with self.home.inside():
            asyncio.run(play())


def pod(name: str = "app", *, command: Sequence[str] = ("sleep", "1000"), image: str = IMAGE, **spec: Any) -> Pod:
    """A pod of one container `app`; `spec` are fields of the pod's spec as the wire spells them.

    `container=...` are more fields of the container, `containers=...` replaces it.
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
