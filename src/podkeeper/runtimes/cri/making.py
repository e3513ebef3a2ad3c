"""Making sandboxes and containers, and what earlier tries left in the way.

    run_sandbox      -> RunPodSandbox --- the name is taken ---> adopt the one that is ready, remove others, once more
    create_container -> files -> CreateContainer --- the name is taken ---> remove it if it never started, once more

containerd refuses a name that is taken; CRI-O answers with what has it, in whatever state that is: an id that was seen
before is such an answer, and looked into. A try whose answer never came may have taken effect, or may still do so: the
next one for the same pod and attempt looks first. A container is created with the very configuration of its sandbox;
for one that this life of the agent did not make, the runtime is asked for it, and where it does not keep it, it is
worked out from the pod.
"""

import asyncio
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable, RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, Mount, SandboxConfig
from podkeeper.rules.naming import described
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.ending import Ending
from podkeeper.runtimes.cri.index import Index, Kind
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.records import containers_by_age, sandboxes_by_age
from podkeeper.runtimes.cri.refusals import holder_of_name, is_name_taken, without_code
from podkeeper.runtimes.cri.requests.container import container_message
from podkeeper.runtimes.cri.requests.node import IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import runtime_handler_of, sandbox_message
from podkeeper.runtimes.cri.requests.users import wants_own_users
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.user_ranges import UserRanges

log = logging.getLogger(__name__)

DOUBTS_KEPT: Final = 10_000
CONFIGS_KEPT: Final = 4096

_LOG_PATH: Final = "io.kubernetes.cri-o.LogPath"
_CGROUP_PARENT: Final = "io.kubernetes.cri-o.CgroupParent"

Rebuild = Callable[[Pod, int], SandboxConfig]
"""What a pod's sandbox of an attempt is made from: asked for a sandbox that nobody remembers."""

PrepareSubPath = Callable[[PodUID, Mount, str, int], Awaitable[str]]
"""Where the part of a volume lies that a mount shows: asked with the container's name and the mount's place."""


class Making:
    """Makes sandboxes and containers."""

    def __init__(
        self,
        calls: Calls,
        ending: Ending,
        index: Index,
        node: NodeFacts,
        files: PodFiles,
        rebuild: Rebuild,
        prepare_sub_path: PrepareSubPath | None = None,
    ) -> None:
        self._calls = calls
        self._ending = ending
        self._index = index
        self.node = node
        self._files = files
        self._users = UserRanges(node.pods_root)
        self._rebuild = rebuild
        self._prepare_sub_path = prepare_sub_path
        self._configs: OrderedDict[str, cri.PodSandboxConfig] = OrderedDict()  # of sandboxes, by their ids
        self._doubts: OrderedDict[tuple[str, int], None] = OrderedDict()  # pod and attempt of tries without an answer

    # Sandboxes.

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox, or adopt the one that an earlier try made."""
        uid, attempt = config.pod.metadata.uid or "", config.attempt
        message = sandbox_message(config, self.node, await self._users_of(config.pod))
        if config.log_directory:
            await asyncio.to_thread(_make_log_directory, config)
        sandbox_id = None
        if (uid, attempt) in self._doubts:
            sandbox_id = await self._adopt(uid, attempt, "")
        if sandbox_id is None:
            sandbox_id = await self._made_or_adopted(config, message)
        self._doubts.pop((uid, attempt), None)
        self._index.made(sandbox_id, uid, Kind.SANDBOX)
        self._remember(sandbox_id, message)
        return sandbox_id

    async def _made_or_adopted(self, config: SandboxConfig, message: cri.PodSandboxConfig) -> str:
        uid, attempt = config.pod.metadata.uid or "", config.attempt
        handler = runtime_handler_of(config.pod, self.node)
        try:
            sandbox_id = await self._try(uid, attempt, message, handler)
            if self._index.get(sandbox_id) is None:
                return sandbox_id
            found = await self._adopt(uid, attempt, "")
        except RuntimeRefused as error:
            if not is_name_taken(error):
                raise
            log.warning("the sandbox of pod %s is there already: %s", described(config.pod), error)
            found = await self._adopt(uid, attempt, holder_of_name(error))
        return found or await self._try(uid, attempt, message, handler)

    async def _try(self, uid: str, attempt: int, message: cri.PodSandboxConfig, handler: str) -> str:
        """Ask once. Whatever happens but a clear yes or no leaves a doubt."""
        self._doubts[uid, attempt] = None
        if len(self._doubts) > DOUBTS_KEPT:
            self._doubts.popitem(last=False)
        try:
            sandbox_id = await self._calls.run_sandbox(message, handler)
        except RuntimeRefused:
            self._doubts.pop((uid, attempt), None)
            raise
        if not sandbox_id:
            raise RuntimeRefused(f"cannot use the sandbox that was made for pod {uid}: the runtime told no id")
        return sandbox_id

    async def _adopt(self, uid: str, attempt: int, holder: str) -> str | None:
        """The sandbox of a pod's attempt that is ready, if there is one; any others of that attempt are removed."""
        found = [box for box in sandboxes_by_age(await self._calls.sandboxes(uid)) if box.metadata.attempt == attempt]
        ready = next((box.id for box in found if box.state == cri.SANDBOX_READY), None)
        useless = {box.id for box in found} | ({holder} if holder else set())
        for sandbox_id in sorted(useless - {ready}):
            await self._ending.stop_sandbox(sandbox_id)
            await self._ending.remove_sandbox(sandbox_id)
        return ready

    def forget(self, sandbox_id: str) -> None:
        """A sandbox is gone."""
        self._configs.pop(sandbox_id, None)

    def _remember(self, sandbox_id: str, message: cri.PodSandboxConfig) -> None:
        self._configs[sandbox_id] = message
        if len(self._configs) > CONFIGS_KEPT:
            self._configs.popitem(last=False)

    # Containers.

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container; one of the same attempt that never started is removed first."""
        sandbox = await self._config_of(sandbox_id, config.pod)
        config = await self._with_sub_paths(config)
        files = await asyncio.to_thread(self._files.make_for, config, sandbox.log_directory)
        message = container_message(config, self.node, files, await self._users_of(config.pod))
        try:
            container_id = await self._create(sandbox_id, message, sandbox, config)
        except RuntimeRefused as error:
            raise without_code(error) from error
        if not container_id:
            raise RuntimeRefused(f"cannot use container {config.container.name} that was made: the runtime told no id")
        self._index.made(container_id, config.pod.metadata.uid or "", Kind.CONTAINER)
        return container_id

    async def _with_sub_paths(self, config: ContainerConfig) -> ContainerConfig:
        """The same, with a place of its own for each part of a volume: runtimes follow links, wherever they lead."""
        prepare = self._prepare_sub_path
        if prepare is None or not any(mount.sub_path for mount in config.mounts):
            return config
        uid, name = PodUID(config.pod.metadata.uid or ""), config.container.name
        mounts = [
            replace(mount, host_path=await prepare(uid, mount, name, index), sub_path="") if mount.sub_path else mount
            for index, mount in enumerate(config.mounts)
        ]
        return replace(config, mounts=tuple(mounts))

    async def _create(
        self,
        sandbox_id: str,
        message: cri.ContainerConfig,
        sandbox: cri.PodSandboxConfig,
        config: ContainerConfig,
    ) -> str:
        try:
            container_id = await self._calls.create_container(sandbox_id, message, sandbox)
            if not await self._is_of_before(container_id):
                return container_id
            await self._clear(config, container_id)
        except RuntimeRefused as error:
            if not is_name_taken(error):
                raise
            log.warning(
                "container %s of pod %s is there already: %s", message.metadata.name, described(config.pod), error
            )
            await self._clear(config, holder_of_name(error))
        return await self._calls.create_container(sandbox_id, message, sandbox)

    async def _is_of_before(self, container_id: str) -> bool:
        """Whether what was answered was made by an earlier try, from what may no longer hold, or is even used up."""
        owner = self._index.get(container_id)
        if owner is None:
            return False
        # One that only a list showed may be this very one: its creation takes a while.
        return owner.made_here or (await self._calls.container_status(container_id)).state != cri.CONTAINER_CREATED

    async def _clear(self, config: ContainerConfig, holder: str) -> None:
        """Remove what an earlier try of the same container created and did not start.

        Raises RuntimeRefused for one that has started: this call may be hours old by now, and the container the one
        that a later sync started.
        """
        name, attempt = config.container.name, config.attempt
        listed = containers_by_age(await self._calls.containers(config.pod.metadata.uid or ""))
        found = {
            each.id: each.state for each in listed if (each.metadata.name, each.metadata.attempt) == (name, attempt)
        }
        if any(state != cri.CONTAINER_CREATED for state in found.values()):
            raise RuntimeRefused(f"cannot create container {name}: attempt {attempt} has already started")
        # A runtime does not list what it is still creating: such a holder has not started.
        for container_id in sorted(found.keys() | ({holder} if holder else set())):
            await self._ending.remove_container(container_id)

    async def _config_of(self, sandbox_id: str, pod: Pod) -> cri.PodSandboxConfig:
        """What a sandbox was made from: remembered, as the runtime keeps it, or worked out anew."""
        known = self._configs.get(sandbox_id)
        if known is not None:
            return known
        answer = await self._calls.sandbox_status(sandbox_id, verbose=True)
        info = answer.info.get("info", "")
        message = kept_config(info)
        if message is None:
            config = with_kept_places(self._rebuild(pod, answer.status.metadata.attempt), info)
            message = sandbox_message(config, self.node, await self._users_of(pod))
        self._remember(sandbox_id, message)
        return message

    async def _users_of(self, pod: Pod) -> IdRange | None:
        """The range of users that a pod has to itself, if it wants one."""
        return await self._users.range_of(pod.metadata.uid or "") if wants_own_users(pod) else None


def kept_config(info: str) -> cri.PodSandboxConfig | None:
    """The configuration in what containerd tells of a sandbox to people; None: it is not there."""
    try:
        told: Any = json.loads(info)
        kept = told["config"]
        message = cri.PodSandboxConfig()
        ParseDict(kept, message, ignore_unknown_fields=True)
    except (ValueError, TypeError, KeyError, ParseError):
        return None
    return message if message.metadata.uid else None


def with_kept_places(config: SandboxConfig, info: str) -> SandboxConfig:
    """The same, with the places that CRI-O tells of a sandbox to people: where its own log would be, and its cgroup."""
    try:
        told: Any = json.loads(info)
        kept = {key: str(value) for key, value in told["runtimeSpec"]["annotations"].items() if value}
    except (ValueError, TypeError, KeyError, AttributeError):
        return config
    return replace(
        config,
        log_directory=os.path.dirname(kept.get(_LOG_PATH, "")) or config.log_directory,
        cgroup_parent=kept.get(_CGROUP_PARENT, config.cgroup_parent),
    )


def _make_log_directory(config: SandboxConfig) -> None:
    try:
        os.makedirs(config.log_directory, mode=0o755, exist_ok=True)
    except OSError as error:
        where = config.log_directory
        raise NotConfigurable(
            f"cannot make {where} for the logs of pod {described(config.pod)}: {error.strerror}"
        ) from error
