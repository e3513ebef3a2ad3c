"""The embedded runtime: the runtime port over keepers.

    engine --> ProcessRuntime --> Household --> one keeper per pod --> its containers
                    `--- lists and records: from the Mirror, nobody is asked

`open()` finds the keepers of a former life of the agent first; `close()` lets go of them and they live on. Containers
are processes of this machine with its own files (`image: host`) and its network. The Go ancestor is everything below
the CRI.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from podkeeper.model.errors import AgentError, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, NotRun
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeHealth, SandboxConfig
from podkeeper.runtimes.events import EventHub, EventStream
from podkeeper.runtimes.process.commands import run_command
from podkeeper.runtimes.process.hatchery import Hatchery
from podkeeper.runtimes.process.household import Household, new_id
from podkeeper.runtimes.process.images import HostImages
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keepers import CALL_SECONDS, Patience
from podkeeper.runtimes.process.launches import Whereabouts, request_of, user_of
from podkeeper.runtimes.process.links import LaunchRefused, Link, UnknownToKeeper
from podkeeper.runtimes.process.records import ContainerFacts, Mirror, Sandbox, SandboxFacts, Standing
from podkeeper.runtimes.process.sessions import Session, open_attached, open_command

_REMOVE_SECONDS: Final = 1.0
_SPARE_SECONDS: Final = 2.0
USUAL_PATIENCE: Final = Patience()


class ProcessRuntime:
    """Pods as processes of this machine."""

    name = "process"

    def __init__(
        self,
        root: str,
        *,
        host_ips: Callable[[], Sequence[str]] = tuple,
        host_images: Sequence[str] = (),
        hidden: Sequence[str] = (),
        pod_pids_limit: int | None = None,
        jail: str = "auto",
        patience: Patience = USUAL_PATIENCE,
        hatchery: Hatchery | None = None,
    ) -> None:
        """`root` is the directory of its own; `host_images` are patterns of names that mean the host's files.

        `hidden` are more directories that containers are not to look into; `jail` is `auto` or `plain` (no walls).
        `pod_pids_limit` is kept by the kernel where a pod has a user namespace of its own; elsewhere cgroups must.
        """
        self._root = os.path.abspath(root)
        self._hidden = (self._root, *hidden)
        self._most_processes = max(0, pod_pids_limit or 0)
        self._images = HostImages(host_images)
        self._news = EventHub()
        self._mirror = Mirror(self._news.tell, host_ips)
        self._hatchery = hatchery or Hatchery(self._root, jail)
        self._household = Household(self._root, self._hatchery, self._mirror, patience)
        self._turns: WeakValueDictionary[PodUID, asyncio.Lock] = WeakValueDictionary()
        self._opened = False

    async def open(self) -> None:
        """Take the directory, start the nursery, and find every keeper again. Raises BadInput."""
        await self._household.open()
        self._opened = True

    async def close(self) -> None:
        """Let go. Pods live on; only stopping them stops them."""
        self._opened = False
        self._news.close(StopAsyncIteration())
        await self._household.close()

    async def __aenter__(self) -> "ProcessRuntime":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def isolation(self) -> Json | None:
        """What this machine allows, as the nursery found by trying; None: walls were not wanted."""
        await self._hatchery.told.wait()
        return self._hatchery.isolation

    async def clear(self, directory: str) -> None:
        """Delete a directory with all that containers left in it, as whatever user. Raises TryLater."""
        self._check_open()
        await self._hatchery.clear(directory)

    async def give(self, directory: str, group: int) -> None:
        """Give a directory and all in it to a group, as containers see it. Raises TryLater."""
        self._check_open()
        await self._hatchery.give(directory, group)

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a keeper; one of the same attempt that still keeps is adopted, one that does not is made anew."""
        self._check_open()
        uid, spec = PodUID(config.pod.metadata.uid or ""), config.pod.spec
        async with self._turn(uid):
            for old in self._mirror.of_pod(uid):
                if old.facts.attempt == config.attempt:
                    if old.standing is Standing.READY:
                        return old.facts.id
                    await self._household.remove(old)
            facts = SandboxFacts(
                id=new_id(),
                uid=uid,
                name=config.pod.metadata.name or "",
                namespace=config.pod.metadata.namespace or "",
                attempt=config.attempt,
                created_at=self._now(uid),
                hostname=config.hostname,
                log_directory=config.log_directory,
                cgroup_parent=config.cgroup_parent,
                host_network=bool(spec.host_network),
                host_pid=bool(spec.host_pid),
                host_ipc=bool(spec.host_ipc),
                share_process_namespace=bool(spec.share_process_namespace),
            )
            return (await self._household.make(facts)).facts.id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Send its keeper away, and by force whatever it keeps."""
        self._check_open()
        if (sandbox := self._mirror.sandboxes.get(sandbox_id)) is not None:
            await self._household.stop(sandbox)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove it with all containers in it."""
        self._check_open()
        if (sandbox := self._mirror.sandboxes.get(sandbox_id)) is not None:
            await self._household.remove(sandbox)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container in a sandbox that is ready; one of the same attempt that never started is removed."""
        self._check_open()
        name, uid = config.container.name, PodUID(config.pod.metadata.uid or "")
        image = self._images.find(config.image)
        if image is None:
            raise RuntimeRefused(f"cannot create container {name}: image {config.image} is not on the node")
        async with self._turn(uid):
            sandbox = self._mirror.sandboxes.get(sandbox_id)
            if sandbox is None or sandbox.standing is not Standing.READY:
                raise RuntimeRefused(f"cannot create container {name}: sandbox {sandbox_id} is not ready")
            for box in self._mirror.of_pod(uid):
                for old in tuple(box.containers.values()):
                    if (old.facts.name, old.facts.attempt) == (name, config.attempt):
                        if old.state != "created":
                            raise RuntimeRefused(
                                f"cannot create container {name}: attempt {config.attempt} has already started"
                            )
                        await self.remove_container(old.id)
            container_id = new_id()
            place = Whereabouts(
                self._household.directory_of(sandbox),
                sandbox.facts.hostname,
                sandbox.facts.cgroup_parent,
                self._hidden,
                self._most_processes,
            )
            keeper = self._household.keeper_of(sandbox)  # before the await: the sandbox may be removed meanwhile
            request = await asyncio.to_thread(request_of, config, container_id, place)
            facts = ContainerFacts(
                name=name,
                attempt=config.attempt,
                image=config.container.image or "",
                image_id=image.id,
                spec_hash=config.spec_hash,
                created_at=self._now(uid),
                user=user_of(config.pod, config.container),
            )
            target = _target_of(config.container, sandbox)
            await keeper.ask("create", {**request, "target": target, "facts": msgspec.to_builtins(facts)})
        return container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container; one that runs or has run is left alone."""
        self._check_open()
        sandbox = self._mirror.home_of(container_id)
        if sandbox is None:
            raise RuntimeRefused(f"cannot start container {container_id}: there is none")
        container = sandbox.containers[container_id]
        if container.state != "created":
            return
        if sandbox.standing is not Standing.READY:
            raise RuntimeRefused(f"cannot start container {container.facts.name}: its sandbox is not ready")
        try:
            await self._household.keeper_of(sandbox).ask("start", {"container": container_id})
        except LaunchRefused as error:
            raise RuntimeRefused(f"cannot start container {container.facts.name}: {error}") from error

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, wait up to the grace, then force it."""
        self._check_open()
        sandbox = self._mirror.home_of(container_id)
        if sandbox is not None and sandbox.containers[container_id].state == "running":
            grace = max(0.0, grace_seconds)
            with suppress(UnknownToKeeper):
                await self._household.insist(sandbox, "stop", {"container": container_id, "grace": grace}, grace)

    async def spare_all(self) -> None:
        """Call off every stop: who did not end when asked to goes on."""

        async def spare(sandbox: Sandbox) -> None:
            with suppress(AgentError):  # a keeper that does not answer, or leaves anyway, spares nobody
                await self._household.keeper_of(sandbox).ask("spare", {}, _SPARE_SECONDS)

        async with asyncio.TaskGroup() as group:
            for sandbox in self._mirror.sandboxes.values():
                if sandbox.standing is Standing.READY:
                    group.create_task(spare(sandbox))

    async def remove_container(self, container_id: str) -> None:
        """Remove it, by force if it runs."""
        self._check_open()
        sandbox = self._mirror.home_of(container_id)
        if sandbox is None:
            return
        if sandbox.standing is not Standing.STOPPED:
            await self._household.insist(sandbox, "remove", {"container": container_id}, _REMOVE_SECONDS)
        if sandbox.standing is Standing.STOPPED:
            await self._household.delete_container(sandbox, container_id)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        """The host's files, if that is what the name means."""
        return self._images.find(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """The same; anything else cannot be pulled."""
        return self._images.pull(reference)

    async def list_images(self) -> Sequence[ImageRecord]:
        """The host's files."""
        return self._images.all()

    async def remove_image(self, reference: str) -> None:
        """The host's files stay."""

    async def image_usage(self) -> ImageFsUsage | None:
        """The host's files are no images."""
        return None

    # ---- what there is ----

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod that has a keeper, or had one."""
        self._check_open()
        return self._mirror.records()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """One pod."""
        self._check_open()
        return self._mirror.record(uid)

    def events(self) -> EventStream:
        """The news from now on."""
        return self._news.subscribe()

    async def health(self) -> RuntimeHealth:
        """Whether there is a nursery (if not, there is soon), and which keepers are silent."""
        self._check_open()
        self._hatchery.start()
        silent = self._household.silent_pods()
        return RuntimeHealth(message=f"keepers that do not answer: {', '.join(silent)}" if silent else "")

    # ---- commands and streams ----

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container; a timeout of 0 is none."""
        try:
            link = self._link(container_id, "run a command in")
        except TryLater as error:
            return NotRun(str(error))
        return await run_command(link, container_id, command, timeout_seconds)

    async def exec_stream(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Session:
        """Run a command in a container and speak with it. Raises TryLater; a bad command is told by `wait()`."""
        link = self._link(container_id, "run a command in")
        return await open_command(link, container_id, command, tty=tty, stdin=stdin)

    async def attach(self, container_id: str, *, stdin: bool = True) -> Session:
        """Follow a container's output from now on, and write to its stdin if it has one. Raises TryLater."""
        link = self._link(container_id, "attach to")
        return await open_attached(link, container_id, stdin=stdin, timeout_seconds=CALL_SECONDS)

    async def reopen_log(self, container_id: str) -> None:
        """Let a container's log go on in a new file of the same name: the old one was moved away. Raises TryLater."""
        link = self._link(container_id, "reopen the log of")
        await link.ask("reopen_log", {"container": container_id}, CALL_SECONDS)

    # ---- small parts ----

    def _link(self, container_id: str, purpose: str) -> Link:
        """The line to the keeper of a container that runs. Raises RuntimeRefused, RuntimeUnavailable."""
        self._check_open()
        sandbox = self._mirror.home_of(container_id)
        if sandbox is None:
            raise RuntimeRefused(f"cannot {purpose} container {container_id}: there is none")
        container = sandbox.containers[container_id]
        if container.state != "running":
            raise RuntimeRefused(f"cannot {purpose} container {container.facts.name}: it does not run")
        if (link := self._household.keeper_of(sandbox).link) is None:
            raise RuntimeUnavailable(f"cannot {purpose} container {container.facts.name}: its keeper does not answer")
        return link

    def _check_open(self) -> None:
        if not self._opened:
            raise RuntimeUnavailable("cannot use the process runtime: it is not open")

    def _now(self, uid: PodUID) -> int:
        """The time, later than that of anything in the pod: order must not depend on the clock."""
        return max(time.time_ns(), self._mirror.newest_instant(uid) + 1000)

    @asynccontextmanager
    async def _turn(self, uid: PodUID) -> AsyncIterator[None]:
        """One at a time makes something in a pod: a call that its caller gave up may still be under way."""
        lock = self._turns.get(uid)
        if lock is None:
            lock = self._turns[uid] = asyncio.Lock()
        async with lock:
            yield


def _target_of(container: Container | EphemeralContainer, sandbox: Sandbox) -> str:
    """The id of the container whose processes an ephemeral one is to see; empty: it asks for none."""
    name = container.target_container_name if isinstance(container, EphemeralContainer) else None
    if not name:
        return ""
    found = [each for each in sandbox.containers.values() if each.facts.name == name and each.state == "running"]
    if not found:
        raise RuntimeRefused(f"cannot create container {container.name}: its target {name} does not run")
    return found[0].id
