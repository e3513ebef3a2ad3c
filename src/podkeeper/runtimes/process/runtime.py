"""The process runtime: the runtime port on top of keepers.

    engine --> ProcessRuntime --> KeeperPool --> one keeper per sandbox --> its containers
                    `--- lists and records come from the PodTable, without a call to a keeper

`open()` connects to the keepers that an earlier agent left running. `close()` disconnects and leaves them running.
Containers are processes of this machine. They use the host's files (`image: host`) and its network. Kubelet
counterpart: none, because the kubelet uses a CRI runtime for this.
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
from podkeeper.runtimes.process.fork_client import ForkServerClient
from podkeeper.runtimes.process.images import HostImages
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper_client import CALL_SECONDS, KeeperTimeouts
from podkeeper.runtimes.process.keeper_link import ContainerNotFound, KeeperLink, LaunchFailed
from podkeeper.runtimes.process.keeper_pool import KeeperPool, new_id
from podkeeper.runtimes.process.launch_requests import KeeperSandbox, request_of, user_of
from podkeeper.runtimes.process.records import ContainerFacts, PodTable, Sandbox, SandboxFacts, SandboxState
from podkeeper.runtimes.process.sessions import Session, open_attached, open_command

_REMOVE_SECONDS: Final = 1.0
# Short, because the agent is about to exit (a second Ctrl-C).
_CANCEL_STOP_SECONDS: Final = 2.0
DEFAULT_TIMEOUTS: Final = KeeperTimeouts()


class ProcessRuntime:
    name = "process"

    def __init__(
        self,
        root: str,
        *,
        host_ips: Callable[[], Sequence[str]] = tuple,
        host_images: Sequence[str] = (),
        hidden: Sequence[str] = (),
        seccomp_directory: str = "",
        pod_pids_limit: int | None = None,
        jail: str = "auto",
        timeouts: KeeperTimeouts = DEFAULT_TIMEOUTS,
        fork_server: ForkServerClient | None = None,
    ) -> None:
        """Configure the runtime. `root` is its state directory, which no other agent may use.

        Image names that match a pattern in `host_images` refer to the host's files. Containers cannot see the
        directories in `hidden`. `seccomp_directory` has the Localhost profiles, by default `seccomp` in `root`. `jail`
        is `auto`, or `plain` for no isolation. The kernel enforces `pod_pids_limit` only if the pod has its own user
        namespace. In all other cases, the pod's cgroup must enforce it.
        """
        self._root = os.path.abspath(root)
        self._hidden = (self._root, *hidden)
        self._seccomp_directory = seccomp_directory or os.path.join(self._root, "seccomp")
        self._pod_pids_limit = max(0, pod_pids_limit or 0)
        self._images = HostImages(host_images)
        self._events = EventHub()
        self._table = PodTable(self._events.send, host_ips)
        self._fork_server = fork_server or ForkServerClient(self._root, jail)
        self._keepers = KeeperPool(self._root, self._fork_server, self._table, timeouts)
        self._locks: WeakValueDictionary[PodUID, asyncio.Lock] = WeakValueDictionary()
        self._opened = False

    async def open(self) -> None:
        """Lock the directory, start the fork server and adopt all keepers. Raises BadInput."""
        await self._keepers.open()
        self._opened = True

    async def close(self) -> None:
        """Disconnect from all keepers. Pods keep running."""
        self._opened = False
        self._events.close(StopAsyncIteration())
        await self._keepers.close()

    async def __aenter__(self) -> "ProcessRuntime":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def isolation(self) -> Json | None:
        """Return the isolation that the fork server probed on this machine. None: isolation is disabled."""
        await self._fork_server.ready.wait()
        return self._fork_server.isolation

    async def clear(self, directory: str) -> None:
        """Delete a directory, including files that belong to container users. Raises TryLater."""
        self._check_open()
        await self._fork_server.clear(directory)

    async def give(self, directory: str, group: int) -> None:
        """Set the group of a directory and its contents. `group` is an ID inside containers. Raises TryLater."""
        self._check_open()
        await self._fork_server.give(directory, group)

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Start a keeper. Return the existing sandbox of this attempt if it is ready, replace it if not."""
        self._check_open()
        uid, spec = PodUID(config.pod.metadata.uid or ""), config.pod.spec
        async with self._pod_lock(uid):
            for old in self._table.sandboxes_of(uid):
                # An earlier call for this attempt was abandoned or got no answer. Adopt its result, or remove it.
                if old.facts.attempt == config.attempt:
                    if old.state is SandboxState.READY:
                        return old.facts.id
                    await self._keepers.remove(old)
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
            return (await self._keepers.create(facts)).facts.id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop the keeper and kill all containers of the sandbox. An unknown sandbox counts as stopped."""
        self._check_open()
        if (sandbox := self._table.sandboxes.get(sandbox_id)) is not None:
            await self._keepers.stop(sandbox)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Stop the sandbox and delete it with its containers. An unknown sandbox counts as removed."""
        self._check_open()
        if (sandbox := self._table.sandboxes.get(sandbox_id)) is not None:
            await self._keepers.remove(sandbox)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container in a ready sandbox. Replace a container of the same attempt that never started."""
        self._check_open()
        name, uid = config.container.name, PodUID(config.pod.metadata.uid or "")
        image = self._images.find(config.image)
        if image is None:
            raise RuntimeRefused(f"cannot create container {name}: image {config.image} is not on the node")
        async with self._pod_lock(uid):
            sandbox = self._table.sandboxes.get(sandbox_id)
            if sandbox is None or sandbox.state is not SandboxState.READY:
                raise RuntimeRefused(f"cannot create container {name}: sandbox {sandbox_id} is not ready")
            for box in self._table.sandboxes_of(uid):
                for old in tuple(box.containers.values()):
                    if (old.facts.name, old.facts.attempt) == (name, config.attempt):
                        # A create call can take effect long after its caller gave it up. By then a later sync may have
                        # started this attempt, so never remove a container that has started.
                        if old.state != "created":
                            raise RuntimeRefused(
                                f"cannot create container {name}: attempt {config.attempt} has already started"
                            )
                        await self.remove_container(old.id)
            container_id = new_id()
            context = KeeperSandbox(
                self._keepers.directory_of(sandbox),
                sandbox.facts.hostname,
                sandbox.facts.cgroup_parent,
                self._hidden,
                self._pod_pids_limit,
                self._seccomp_directory,
            )
            keeper = self._keepers.keeper_of(sandbox)  # before the await, because the sandbox may be removed meanwhile
            # In a thread, because it reads users and groups, and NSS may request them from a server.
            request = await asyncio.to_thread(request_of, config, container_id, context)
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
            await keeper.call("create", {**request, "target": target, "facts": msgspec.to_builtins(facts)})
        return container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container. If it runs or has exited, this is a no-op."""
        self._check_open()
        sandbox = self._table.sandbox_of(container_id)
        if sandbox is None:
            raise RuntimeRefused(f"cannot start container {container_id}: container not found")
        container = sandbox.containers[container_id]
        if container.state != "created":
            return
        if sandbox.state is not SandboxState.READY:
            raise RuntimeRefused(f"cannot start container {container.facts.name}: its sandbox is not ready")
        try:
            await self._keepers.keeper_of(sandbox).call("start", {"container": container_id})
        except LaunchFailed as error:
            raise RuntimeRefused(f"cannot start container {container.facts.name}: {error}") from error

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send the stop signal, wait up to the grace period, then kill. Return when the container has exited."""
        self._check_open()
        sandbox = self._table.sandbox_of(container_id)
        if sandbox is not None and sandbox.containers[container_id].state == "running":
            grace = max(0.0, grace_seconds)
            with suppress(ContainerNotFound):
                await self._keepers.call_or_kill(sandbox, "stop", {"container": container_id, "grace": grace}, grace)

    async def cancel_stops(self) -> None:
        """Cancel all pending kills: containers that survived their stop signal keep running."""

        async def cancel(sandbox: Sandbox) -> None:
            with suppress(AgentError):  # best effort: an unresponsive keeper still kills at the end of the grace period
                await self._keepers.keeper_of(sandbox).call("spare", {}, _CANCEL_STOP_SECONDS)

        async with asyncio.TaskGroup() as group:
            for sandbox in self._table.sandboxes.values():
                if sandbox.state is SandboxState.READY:
                    group.create_task(cancel(sandbox))

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. Kill it first if it runs. An unknown container counts as removed."""
        self._check_open()
        sandbox = self._table.sandbox_of(container_id)
        if sandbox is None:
            return
        if sandbox.state is not SandboxState.STOPPED:
            await self._keepers.call_or_kill(sandbox, "remove", {"container": container_id}, _REMOVE_SECONDS)
        # Not `else`: the call above may have killed the keeper.
        if sandbox.state is SandboxState.STOPPED:
            await self._keepers.delete_container(sandbox, container_id)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        """Return the host image if the reference names it, else None."""
        return self._images.find(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Return the host image. Any other reference raises ImagePullFailed."""
        return self._images.pull(reference)

    async def list_images(self) -> Sequence[ImageRecord]:
        return self._images.all()

    async def remove_image(self, reference: str) -> None:
        """Do nothing: the host's files stay."""

    async def image_usage(self) -> ImageFsUsage | None:
        """Return None: there is no image file system."""
        return None

    # ---- records and events ----

    async def list_pods(self) -> Sequence[PodRecord]:
        """Return all pods, including pods whose keeper has ended."""
        self._check_open()
        return self._table.records()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        self._check_open()
        return self._table.record(uid)

    def events(self) -> EventStream:
        """Subscribe to events from now on."""
        return self._events.subscribe()

    async def health(self) -> RuntimeHealth:
        """Start the fork server if it has died, and report keepers that do not answer."""
        self._check_open()
        self._fork_server.start()
        unresponsive = self._keepers.unresponsive_pods()
        return RuntimeHealth(message=f"keepers that do not answer: {', '.join(unresponsive)}" if unresponsive else "")

    # ---- commands and streams ----

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container. A timeout of 0 means no timeout."""
        try:
            link = self._link(container_id, "run a command in")
        except TryLater as error:
            return NotRun(str(error))
        return await run_command(link, container_id, command, timeout_seconds)

    async def exec_stream(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Session:
        """Run a command in a container, with streams. Raises TryLater. `Session.wait()` reports a bad command."""
        link = self._link(container_id, "run a command in")
        return await open_command(link, container_id, command, tty=tty, stdin=stdin)

    async def attach(self, container_id: str, *, stdin: bool = True) -> Session:
        """Stream a container's output from now on, and write to its stdin if it has one. Raises TryLater."""
        link = self._link(container_id, "attach to")
        return await open_attached(link, container_id, stdin=stdin, timeout_seconds=CALL_SECONDS)

    async def reopen_log(self, container_id: str) -> None:
        """Continue a container's log in a new file of the same name, after log rotation. Raises TryLater."""
        link = self._link(container_id, "reopen the log of")
        await link.call("reopen_log", {"container": container_id}, CALL_SECONDS)

    # ---- private ----

    def _link(self, container_id: str, purpose: str) -> KeeperLink:
        """Return the link to the keeper of a running container. Raises RuntimeRefused, RuntimeUnavailable."""
        self._check_open()
        sandbox = self._table.sandbox_of(container_id)
        if sandbox is None:
            raise RuntimeRefused(f"cannot {purpose} container {container_id}: container not found")
        container = sandbox.containers[container_id]
        if container.state != "running":
            raise RuntimeRefused(f"cannot {purpose} container {container.facts.name}: it is not running")
        if (link := self._keepers.keeper_of(sandbox).link) is None:
            raise RuntimeUnavailable(f"cannot {purpose} container {container.facts.name}: its keeper does not answer")
        return link

    def _check_open(self) -> None:
        if not self._opened:
            raise RuntimeUnavailable("cannot use the process runtime: it is not open")

    def _now(self, uid: PodUID) -> int:
        """Return the time, but later than every creation in the pod, because order must survive clock changes."""
        # 1000 ns, because records have microseconds.
        return max(time.time_ns(), self._table.newest_creation(uid) + 1000)

    @asynccontextmanager
    async def _pod_lock(self, uid: PodUID) -> AsyncIterator[None]:
        """Serialize creation in a pod, because a call that its caller abandoned may still be in flight."""
        lock = self._locks.get(uid)
        if lock is None:
            lock = self._locks[uid] = asyncio.Lock()
        async with lock:
            yield


def _target_of(container: Container | EphemeralContainer, sandbox: Sandbox) -> str:
    """Return the ID of the container whose processes an ephemeral container shares, or ""."""
    name = container.target_container_name if isinstance(container, EphemeralContainer) else None
    if not name:
        return ""
    found = [each for each in sandbox.containers.values() if each.facts.name == name and each.state == "running"]
    if not found:
        raise RuntimeRefused(f"cannot create container {container.name}: its target container {name} is not running")
    return found[0].id
