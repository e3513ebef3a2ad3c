"""The runtime port over CRI.

    engine --> CriRuntime --> Creation, Removal, PodInspector, CriImages --> CriCalls --> Transport --> the runtime
                   `-------- EventFeed <----------------------------------------'

`open()` checks the runtime and starts to receive events. `close()` disconnects, and pods keep running. The runtime can
report everything that this module stores about a pod, so a restart of the agent loses nothing. Kubelet counterpart:
pkg/kubelet/kuberuntime.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.model.stats import PodStats
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.connect import runtime_version
from podkeeper.runtimes.cri.creation import Creation, PrepareSubPath, Rebuild
from podkeeper.runtimes.cri.errors import is_command_timeout, is_timeout_response, without_code
from podkeeper.runtimes.cri.events import EventFeed
from podkeeper.runtimes.cri.host_facts import with_runtime_status
from podkeeper.runtimes.cri.image_fs import image_usage
from podkeeper.runtimes.cri.images import CriImages
from podkeeper.runtimes.cri.inspection import PodInspector
from podkeeper.runtimes.cri.owners import OwnerIndex
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.removal import Removal
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.stats import pod_stats
from podkeeper.runtimes.cri.transport import Transport

# Containers that are created and never started would otherwise stay here forever.
CREATED_KEPT: Final = 1024

Started = Callable[[str, ContainerConfig], Awaitable[None]]
"""Receives the ID and the configuration of each started container. Must not raise."""


def _bare_config(pod: Pod, attempt: int) -> SandboxConfig:
    return SandboxConfig(pod=pod, attempt=attempt)


class CriRuntime:
    def __init__(
        self,
        transport: Transport,
        node: NodeFacts,
        *,
        clock: Clock,
        where: str = "its socket",
        cluster_domain: str = "",
        rebuild: Rebuild = _bare_config,
        prepare_sub_path: PrepareSubPath | None = None,
        started: Started | None = None,
    ) -> None:
        """`where` names the socket in errors. `rebuild` computes the configuration of a sandbox of another agent.

        `prepare_sub_path` returns the host path of a sub-path. Without it, containers with sub-paths are refused.
        `started` is called for each started container, after its log exists.
        """
        self._calls = CriCalls(transport)
        self._where = where
        self._index = OwnerIndex()
        self._inspector = PodInspector(self._calls, self._index, clock)
        files = PodFiles(node.pods_root, cluster_domain)
        self._removal = Removal(self._calls)
        self._creation = Creation(self._calls, self._removal, self._index, node, files, rebuild, prepare_sub_path)
        self._images = CriImages(self._calls)
        self._feed = EventFeed(self._calls, self._index, self._inspector.forget, self._inspector.inspected_since)
        self._started = started
        self._created: OrderedDict[str, ContainerConfig] = OrderedDict()  # created and not started; for `started`
        self._receiving: asyncio.Task[None] | None = None
        self._name = "cri"

    @property
    def name(self) -> str:
        """Prefix of container IDs in the API: `containerd`, `cri-o`."""
        return self._name

    async def open(self) -> None:
        """Check the runtime and start to receive events. Raises RuntimeUnavailable (retry) and BadInput."""
        self._name = (await runtime_version(self._calls, self._where)).runtime_name
        # Before the first call that stops anything.
        self._removal.learn(self._name)
        self._creation.node = with_runtime_status(self._creation.node, await self._calls.status())
        self._receiving = asyncio.get_running_loop().create_task(self._feed.run())

    async def close(self) -> None:
        """Disconnect. Pods keep running."""
        if self._receiving is not None:
            self._receiving.cancel()
            with suppress(asyncio.CancelledError):
                await self._receiving
            self._receiving = None
        self._feed.close()
        await self._calls.transport.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Create and start a sandbox. Adopt an existing one of the same attempt if it is ready."""
        return await self._creation.run_sandbox(config)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox. Kill all processes that still run in it."""
        with self._feed.stopping(sandbox_id):
            await self._removal.stop_sandbox(sandbox_id)
        self._inspector.forget(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all containers in it."""
        with self._feed.stopping(sandbox_id):
            await self._removal.remove_sandbox(sandbox_id)
        self._creation.forget(sandbox_id)
        self._inspector.forget(sandbox_id)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container. A container of the same attempt that never started is removed first."""
        container_id = await self._creation.create_container(sandbox_id, config)
        if self._started is not None:
            self._created[container_id] = config
            if len(self._created) > CREATED_KEPT:
                self._created.popitem(last=False)
        return container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container. Succeeds if it has started before."""
        try:
            with self._feed.starting(container_id):
                await self._calls.start_container(container_id)
        except RuntimeRefused as error:
            # The port requires that a repeated start succeeds. Runtimes refuse it.
            if not await self._has_started(container_id):
                raise without_code(error) from error
        if self._started is not None and (config := self._created.pop(container_id, None)) is not None:
            await self._started(container_id, config)

    async def _has_started(self, container_id: str) -> bool:
        """Return whether a start was refused because the container has started before."""
        try:
            status = await self._calls.container_status(container_id)
        except TryLater:
            return False
        return status.state in (cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED) and status.started_at > 0

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, wait up to the grace period, then kill the container."""
        with self._feed.stopping(container_id):
            await self._removal.stop_container(container_id, grace_seconds)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. A running one is killed."""
        with self._feed.stopping(container_id):
            await self._removal.remove_container(container_id)
        self._inspector.forget(container_id)

    async def reopen_log(self, container_id: str) -> None:
        """Make the runtime write a container's log to a new file, after the old one was renamed."""
        await self._calls.reopen_log(container_id)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        return await self._images.image(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        return await self._images.pull_image(reference, secrets)

    async def list_images(self) -> Sequence[ImageRecord]:
        return await self._images.list_images()

    async def remove_image(self, reference: str) -> None:
        await self._images.remove_image(reference)

    async def image_usage(self) -> ImageFsUsage | None:
        return await image_usage(self._calls.transport)

    # ---- queries and events ----

    @property
    def facts(self) -> NodeFacts:
        """Facts about the machine and, after `open`, the features of the runtime."""
        return self._creation.node

    async def pod_stats(self, uid: PodUID | None = None) -> Sequence[PodStats]:
        return await pod_stats(self._calls.transport, uid)

    async def list_pods(self) -> Sequence[PodRecord]:
        return await self._inspector.list_pods()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        return await self._inspector.pod_record(uid)

    def events(self) -> AsyncIterator[RuntimeEvent]:
        return self._feed.listen()

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container and wait for its exit. A timeout of 0 means no timeout."""
        try:
            answer = await self._calls.exec_sync(container_id, command, timeout_seconds)
        except TryLater as error:
            # The message of a lost connection may contain the same words, although the command may not have timed out.
            if is_command_timeout(error) and not isinstance(error, RuntimeUnavailable):
                return _timed_out(command, timeout_seconds)
            return NotRun(str(error))
        if is_timeout_response(answer):
            return _timed_out(command, timeout_seconds)
        # stdout before stderr, as in the kubelet: CRI does not report how they were interleaved.
        return CommandExited(answer.exit_code, answer.stdout + answer.stderr)

    async def health(self) -> RuntimeHealth:
        status = (await self._calls.status()).status
        conditions = {each.type: each for each in status.conditions}
        problems = [
            f"container runtime {word}: {_spelled(kind, conditions.get(kind))}"
            for kind, word in (("RuntimeReady", "not ready"), ("NetworkReady", "network not ready"))
            if kind not in conditions or not conditions[kind].status
        ]
        ready = {kind for kind, each in conditions.items() if each.status}
        return RuntimeHealth("RuntimeReady" in ready, "NetworkReady" in ready, "; ".join(problems))


def _timed_out(command: Sequence[str], timeout_seconds: float) -> TimedOut:
    text = json.dumps(" ".join(command))
    return TimedOut(f"command timed out: {text} timed out after {timeout_seconds:g}s")


def _spelled(kind: str, condition: cri.RuntimeCondition | None) -> str:
    """Return a condition in the kubelet's spelling, because users search for it."""
    if condition is None:
        return f"{kind} is not reported"
    return f"{kind}=false reason:{condition.reason} message:{condition.message}"
