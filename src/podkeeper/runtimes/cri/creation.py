"""Create sandboxes and containers, and resolve conflicts with earlier attempts.

    run_sandbox      -> RunPodSandbox --- name taken ---> adopt the ready one, remove the others, retry once
    create_container -> files -> CreateContainer --- name taken ---> remove it if it never started, retry once

containerd refuses a name that is taken. CRI-O returns the existing object in any state. If another agent process
created a sandbox, its configuration comes from the runtime. If the runtime does not store it, it is computed from the
pod.
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
from podkeeper.rules.naming import format_pod
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.errors import holder_of_name, is_name_taken, without_code
from podkeeper.runtimes.cri.owners import Kind, OwnerIndex
from podkeeper.runtimes.cri.pod_files import PodFiles
from podkeeper.runtimes.cri.records import containers_by_age, sandboxes_by_age
from podkeeper.runtimes.cri.removal import Removal
from podkeeper.runtimes.cri.requests.container import container_message
from podkeeper.runtimes.cri.requests.node import IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import runtime_handler_of, sandbox_message
from podkeeper.runtimes.cri.requests.users import has_own_users
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.user_ranges import UserRanges

log = logging.getLogger(__name__)

UNCONFIRMED_KEPT: Final = 10_000
# Only a cache: `_config_of` reads a dropped configuration from the runtime or computes it.
CONFIGS_KEPT: Final = 4096

_LOG_PATH: Final = "io.kubernetes.cri-o.LogPath"
_CGROUP_PARENT: Final = "io.kubernetes.cri-o.CgroupParent"

Rebuild = Callable[[Pod, int], SandboxConfig]
"""Returns the configuration of a pod's sandbox, if neither the agent nor the runtime has it."""

PrepareSubPath = Callable[[PodUID, Mount, str, int], Awaitable[str]]
"""Returns the host path of a mount's sub-path. Arguments: pod, mount, container name, index of the mount."""


class Creation:
    def __init__(
        self,
        calls: CriCalls,
        removal: Removal,
        index: OwnerIndex,
        node: NodeFacts,
        files: PodFiles,
        rebuild: Rebuild,
        prepare_sub_path: PrepareSubPath | None = None,
    ) -> None:
        self._calls = calls
        self._removal = removal
        self._index = index
        self.node = node
        self._files = files
        self._users = UserRanges(node.pods_root)
        self._rebuild = rebuild
        self._prepare_sub_path = prepare_sub_path
        self._configs: OrderedDict[str, cri.PodSandboxConfig] = OrderedDict()  # by sandbox ID
        self._unconfirmed: OrderedDict[tuple[str, int], None] = OrderedDict()  # pod and attempt

    # Sandboxes.

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Create a sandbox, or adopt the one of an earlier call."""
        uid, attempt = config.pod.metadata.uid or "", config.attempt
        message = sandbox_message(config, self.node, await self._users_of(config.pod))
        if config.log_directory:
            await asyncio.to_thread(_make_log_directory, config)
        sandbox_id = None
        # A call without a response may have taken effect (containerd issue 4604), so search for its result before the
        # next call.
        if (uid, attempt) in self._unconfirmed:
            sandbox_id = await self._adopt(uid, attempt, "")
        if sandbox_id is None:
            sandbox_id = await self._create_or_adopt(config, message)
        self._unconfirmed.pop((uid, attempt), None)
        self._index.made(sandbox_id, uid, Kind.SANDBOX)
        self._store_config(sandbox_id, message)
        return sandbox_id

    async def _create_or_adopt(self, config: SandboxConfig, message: cri.PodSandboxConfig) -> str:
        uid, attempt = config.pod.metadata.uid or "", config.attempt
        handler = runtime_handler_of(config.pod, self.node)
        try:
            sandbox_id = await self._try(uid, attempt, message, handler)
            # CRI-O returns the existing sandbox for a name that is taken, in any state. A known ID is therefore not a
            # new sandbox.
            if self._index.get(sandbox_id) is None:
                return sandbox_id
            found = await self._adopt(uid, attempt, "")
        except RuntimeRefused as error:
            if not is_name_taken(error):
                raise
            log.warning("the sandbox of pod %s exists already: %s", format_pod(config.pod), error)
            found = await self._adopt(uid, attempt, holder_of_name(error))
        return found or await self._try(uid, attempt, message, handler)

    async def _try(self, uid: str, attempt: int, message: cri.PodSandboxConfig, handler: str) -> str:
        """Call once. Record the attempt until the runtime has confirmed or refused it."""
        # Before the call: if this task is cancelled, the call may still take effect.
        self._unconfirmed[uid, attempt] = None
        if len(self._unconfirmed) > UNCONFIRMED_KEPT:
            self._unconfirmed.popitem(last=False)
        try:
            sandbox_id = await self._calls.run_sandbox(message, handler)
        except RuntimeRefused:
            self._unconfirmed.pop((uid, attempt), None)
            raise
        if not sandbox_id:
            raise RuntimeRefused(f"cannot use the new sandbox of pod {uid}: the runtime returned an empty ID")
        return sandbox_id

    async def _adopt(self, uid: str, attempt: int, holder: str) -> str | None:
        """Return the ready sandbox of a pod's attempt, if any, and remove the others of that attempt."""
        found = [box for box in sandboxes_by_age(await self._calls.sandboxes(uid)) if box.metadata.attempt == attempt]
        ready = next((box.id for box in found if box.state == cri.SANDBOX_READY), None)
        # The holder of the name may be missing in the list, because runtimes do not list what they are still creating.
        useless = {box.id for box in found} | ({holder} if holder else set())
        for sandbox_id in sorted(useless - {ready}):
            await self._removal.stop_sandbox(sandbox_id)
            await self._removal.remove_sandbox(sandbox_id)
        return ready

    def forget(self, sandbox_id: str) -> None:
        """Drop the configuration of a removed sandbox."""
        self._configs.pop(sandbox_id, None)

    def _store_config(self, sandbox_id: str, message: cri.PodSandboxConfig) -> None:
        self._configs[sandbox_id] = message
        if len(self._configs) > CONFIGS_KEPT:
            self._configs.popitem(last=False)

    # Containers.

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container. A container of the same attempt that never started is removed first."""
        # A container must be created with the configuration of its sandbox, whichever agent created that.
        sandbox = await self._config_of(sandbox_id, config.pod)
        config = await self._with_sub_paths(config)
        files = await asyncio.to_thread(self._files.create, config, sandbox.log_directory)
        message = container_message(config, self.node, files, await self._users_of(config.pod))
        try:
            container_id = await self._create(sandbox_id, message, sandbox, config)
        except RuntimeRefused as error:
            # The message appears in the container's status, where the kubelet shows it without the gRPC code.
            raise without_code(error) from error
        if not container_id:
            raise RuntimeRefused(
                f"cannot use the new container {config.container.name}: the runtime returned an empty ID"
            )
        self._index.made(container_id, config.pod.metadata.uid or "", Kind.CONTAINER)
        return container_id

    async def _with_sub_paths(self, config: ContainerConfig) -> ContainerConfig:
        """Replace sub-paths by prepared host paths, because runtimes follow symbolic links out of a volume."""
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
            # As for sandboxes, CRI-O returns the existing container.
            if not await self._is_from_earlier_call(container_id):
                return container_id
            await self._remove_unstarted(config, container_id)
        except RuntimeRefused as error:
            if not is_name_taken(error):
                raise
            log.warning(
                "container %s of pod %s exists already: %s", message.metadata.name, format_pod(config.pod), error
            )
            await self._remove_unstarted(config, holder_of_name(error))
        return await self._calls.create_container(sandbox_id, message, sandbox)

    async def _is_from_earlier_call(self, container_id: str) -> bool:
        """Return whether an earlier call created this container, so that its configuration may be outdated."""
        owner = self._index.get(container_id)
        if owner is None:
            return False
        # A container known only from a list may be the new one, because its creation takes time.
        return owner.made_here or (await self._calls.container_status(container_id)).state != cri.CONTAINER_CREATED

    async def _remove_unstarted(self, config: ContainerConfig, holder: str) -> None:
        """Remove the container of an earlier call that never started.

        Raises RuntimeRefused if it has started: this call may have hung for hours, and a later sync may have started
        the container.
        """
        name, attempt = config.container.name, config.attempt
        listed = containers_by_age(await self._calls.containers(config.pod.metadata.uid or ""))
        found = {
            each.id: each.state for each in listed if (each.metadata.name, each.metadata.attempt) == (name, attempt)
        }
        if any(state != cri.CONTAINER_CREATED for state in found.values()):
            raise RuntimeRefused(f"cannot create container {name}: attempt {attempt} has already started")
        # A runtime does not list containers that it is still creating. Such a container has not started.
        for container_id in sorted(found.keys() | ({holder} if holder else set())):
            await self._removal.remove_container(container_id)

    async def _config_of(self, sandbox_id: str, pod: Pod) -> cri.PodSandboxConfig:
        """Return the configuration of a sandbox: ours, the runtime's, or computed again."""
        known = self._configs.get(sandbox_id)
        if known is not None:
            return known
        answer = await self._calls.sandbox_status(sandbox_id, verbose=True)
        info = answer.info.get("info", "")
        message = kept_config(info)
        if message is None:
            config = with_kept_places(self._rebuild(pod, answer.status.metadata.attempt), info)
            message = sandbox_message(config, self.node, await self._users_of(pod))
        self._store_config(sandbox_id, message)
        return message

    async def _users_of(self, pod: Pod) -> IdRange | None:
        """Return the ID range of a pod with its own user namespace."""
        return await self._users.range_of(pod.metadata.uid or "") if has_own_users(pod) else None


def kept_config(info: str) -> cri.PodSandboxConfig | None:
    """Return the sandbox configuration in containerd's verbose status. None: there is none."""
    try:
        status: Any = json.loads(info)
        kept = status["config"]
        message = cri.PodSandboxConfig()
        # Unknown fields are those of newer or deprecated versions of the CRI, which our schema does not have.
        ParseDict(kept, message, ignore_unknown_fields=True)
    except (ValueError, TypeError, KeyError, ParseError):
        return None
    return message if message.metadata.uid else None


def with_kept_places(config: SandboxConfig, info: str) -> SandboxConfig:
    """Set the log directory and the cgroup from CRI-O's verbose status."""
    try:
        status: Any = json.loads(info)
        kept = {key: str(value) for key, value in status["runtimeSpec"]["annotations"].items() if value}
    except (ValueError, TypeError, KeyError, AttributeError):
        return config
    return replace(
        config,
        # CRI-O keeps the log of the sandbox itself in the pod's log directory.
        log_directory=os.path.dirname(kept.get(_LOG_PATH, "")) or config.log_directory,
        cgroup_parent=kept.get(_CGROUP_PARENT, config.cgroup_parent),
    )


def _make_log_directory(config: SandboxConfig) -> None:
    try:
        os.makedirs(config.log_directory, mode=0o755, exist_ok=True)
    except OSError as error:
        where = config.log_directory
        raise NotConfigurable(
            f"cannot create {where} for the logs of pod {format_pod(config.pod)}: {error.strerror}"
        ) from error
