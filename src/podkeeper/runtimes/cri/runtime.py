"""Containers through CRI: the runtime port over a transport.

    engine --> CriRuntime --> Making, Ending, Looking, Images --> Calls --> Transport --> containerd, CRI-O
                   `-------- EventFeed <------------------------------------------'

`open()` learns who answers and begins to listen; `close()` hangs up, and pods live on. Nothing about a pod is kept but
what the runtime could tell again: an agent that starts anew knows as much as one that ran for weeks. The Go ancestor is
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
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.model.stats import PodStats
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.ending import Ending
from podkeeper.runtimes.cri.events import EventFeed
from podkeeper.runtimes.cri.image_fs import image_usage
from podkeeper.runtimes.cri.images import Images
from podkeeper.runtimes.cri.index import Index
from podkeeper.runtimes.cri.looking import Looking
from podkeeper.runtimes.cri.machine import with_runtime_status
from podkeeper.runtimes.cri.making import Making, PrepareSubPath, Rebuild
from podkeeper.runtimes.cri.opening import who_answers
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.refusals import is_command_timeout, says_timed_out, without_code
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.stats import pod_stats
from podkeeper.runtimes.cri.transport import Transport

CREATED_KEPT: Final = 1024

Started = Callable[[str, ContainerConfig], Awaitable[None]]
"""Hears the id of a container that was started, and what it was made from. Does not raise."""


def _bare_config(pod: Pod, attempt: int) -> SandboxConfig:
    return SandboxConfig(pod=pod, attempt=attempt)


class CriRuntime:
    """Pods in a container runtime that speaks CRI v1."""

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
        """`where` is what errors call the socket. `rebuild` says what a sandbox was made from that nobody remembers.

        `prepare_sub_path` says where a part of a volume lies; without it containers that want one are refused.
        `started` hears of each container that was started, once its log is there.
        """
        self._calls = Calls(transport)
        self._where = where
        self._index = Index()
        self._looking = Looking(self._calls, self._index, clock)
        files = PodFiles(node.pods_root, cluster_domain)
        self._ending = Ending(self._calls)
        self._making = Making(self._calls, self._ending, self._index, node, files, rebuild, prepare_sub_path)
        self._images = Images(self._calls)
        self._feed = EventFeed(self._calls, self._index, self._looking.forget, self._looking.looked_since)
        self._started = started
        self._created: OrderedDict[str, ContainerConfig] = OrderedDict()  # and not yet started; kept for `started`
        self._hearing: asyncio.Task[None] | None = None
        self._version = cri.VersionResponse(runtime_name="cri")

    @property
    def name(self) -> str:
        """What container ids are prefixed with in the API: `containerd`, `cri-o`."""
        return self._version.runtime_name

    @property
    def version(self) -> str:
        """The runtime's own version, for people."""
        return self._version.runtime_version

    async def open(self) -> None:
        """Learn who answers, and begin to listen. Raises RuntimeUnavailable (it may come) and BadInput."""
        self._version = await who_answers(self._calls, self._where)
        self._ending.learn(self._version.runtime_name)
        self._making.node = with_runtime_status(self._making.node, await self._calls.status())
        self._hearing = asyncio.get_running_loop().create_task(self._feed.run())

    async def close(self) -> None:
        """Hang up. Pods live on."""
        if self._hearing is not None:
            self._hearing.cancel()
            with suppress(asyncio.CancelledError):
                await self._hearing
            self._hearing = None
        self._feed.close()
        await self._calls.transport.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox and start it; one of the same attempt that is ready is adopted."""
        return await self._making.run_sandbox(config)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox, and by force whatever still runs in it."""
        with self._feed.ending(sandbox_id):
            await self._ending.stop_sandbox(sandbox_id)
        self._looking.forget(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all containers in it."""
        with self._feed.ending(sandbox_id):
            await self._ending.remove_sandbox(sandbox_id)
        self._making.forget(sandbox_id)
        self._looking.forget(sandbox_id)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container; what an earlier try left behind is removed first."""
        container_id = await self._making.create_container(sandbox_id, config)
        if self._started is not None:
            self._created[container_id] = config
            if len(self._created) > CREATED_KEPT:
                self._created.popitem(last=False)
        return container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container; one that runs, or has run, is started."""
        try:
            with self._feed.starting(container_id):
                await self._calls.start_container(container_id)
        except RuntimeRefused as error:
            if not await self._has_started(container_id):
                raise without_code(error) from error
        if self._started is not None and (config := self._created.pop(container_id, None)) is not None:
            await self._started(container_id, config)

    async def _has_started(self, container_id: str) -> bool:
        """Whether a start was refused because it is done."""
        try:
            status = await self._calls.container_status(container_id)
        except TryLater:
            return False
        return status.state in (cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED) and status.started_at > 0

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, wait up to the grace, then force it."""
        with self._feed.ending(container_id):
            await self._ending.stop_container(container_id, grace_seconds)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container, by force if it runs."""
        with self._feed.ending(container_id):
            await self._ending.remove_container(container_id)
        self._looking.forget(container_id)

    async def reopen_log(self, container_id: str) -> None:
        """Have a container's log written to a new file: the old one was moved away."""
        await self._calls.reopen_log(container_id)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        """The image under this name, id or digest, if the node has it."""
        return await self._images.image(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image with the first credentials that work. Raises ImagePullFailed."""
        return await self._images.pull_image(reference, secrets)

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images of the node."""
        return await self._images.list_images()

    async def remove_image(self, reference: str) -> None:
        """Remove an image, under all its names; unknown is removed."""
        await self._images.remove_image(reference)

    async def image_usage(self) -> ImageFsUsage | None:
        """How full the file system is that images lie on."""
        return await image_usage(self._calls.transport)

    # ---- looking and listening ----

    @property
    def facts(self) -> NodeFacts:
        """What it knows of the machine, and, once it is open, of what it can do itself."""
        return self._making.node

    async def pod_stats(self, uid: PodUID | None = None) -> Sequence[PodStats]:
        """What all pods use, or one of them."""
        return await pod_stats(self._calls.transport, uid)

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of, whoever started it."""
        return await self._looking.list_pods()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""
        return await self._looking.pod_record(uid)

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """What happens from now on."""
        return self._feed.listen()

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container and wait for its end; a timeout of 0 is none."""
        try:
            answer = await self._calls.exec_sync(container_id, command, timeout_seconds)
        except TryLater as error:
            if is_command_timeout(error) and not isinstance(error, RuntimeUnavailable):
                return _timed_out(command, timeout_seconds)
            return NotRun(str(error))
        if says_timed_out(answer):
            return _timed_out(command, timeout_seconds)
        # One after the other, as the reference: nobody can tell how they were mixed.
        return Exited(answer.exit_code, answer.stdout + answer.stderr)

    async def health(self) -> RuntimeHealth:
        """Ask how the runtime and its network are."""
        status = (await self._calls.status()).status
        conditions = {each.type: each for each in status.conditions}
        troubles = [
            f"container runtime {word}: {_spelled(kind, conditions.get(kind))}"
            for kind, word in (("RuntimeReady", "not ready"), ("NetworkReady", "network not ready"))
            if kind not in conditions or not conditions[kind].status
        ]
        ready = {kind for kind, each in conditions.items() if each.status}
        return RuntimeHealth("RuntimeReady" in ready, "NetworkReady" in ready, "; ".join(troubles))


def _timed_out(command: Sequence[str], timeout_seconds: float) -> TimedOut:
    words = json.dumps(" ".join(command))
    return TimedOut(f"command timed out: {words} timed out after {timeout_seconds:g}s")


def _spelled(kind: str, condition: cri.RuntimeCondition | None) -> str:
    """A condition as the reference spells it in the messages that people search for."""
    if condition is None:
        return f"{kind} was not told"
    return f"{kind}=false reason:{condition.reason} message:{condition.message}"
