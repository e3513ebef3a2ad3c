"""Container runtimes: CRI-shaped primitives, split into Protocols by consumer.

The engine computes the plan and executes it with these calls. A runtime decides nothing. The runtime assigns the IDs.
Mutating calls are idempotent. Stopping or removing an unknown ID succeeds. Each call has a deadline. A call that
exceeds it raises `CallTimedOut` and may have taken effect.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.model.stats import PodStats


class Sandboxes(Protocol):
    """Pod sandboxes: the namespaces and the network that the containers of a pod share."""

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Create and start a sandbox. Return its ID when it is ready.

        If an earlier call with the same pod and attempt created a sandbox, adopt it if it is ready. Otherwise remove it
        and create a new one.
        """

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and kill everything that still runs in it.

        Return when its processes have exited and its network is released.
        """

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all its containers. Kill running containers."""


class Containers(Protocol):
    """Containers of a sandbox."""

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container. Return its ID.

        Remove an unstarted container with the same pod, name and attempt first, because an earlier call may have
        created it and lost the answer. If such a container has started, keep it and raise `RuntimeRefused`. Then the
        caller's record of the pod is outdated, or this call was abandoned long ago.
        """

    async def start_container(self, container_id: str) -> None:
        """Start a created container. Return when it runs or has exited."""

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, wait up to the grace period, then send SIGKILL. Return when the container has exited."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. Kill it if it runs. Its exit code is lost."""


class Images(Protocol):
    """Container images."""

    async def image(self, reference: str) -> ImageRecord | None:
        """Return the image with this name, ID or digest, or None if the node does not have it."""

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Pull an image. `secrets` are docker configurations to try in order. Raise ImagePullFailed."""

    async def list_images(self) -> Sequence[ImageRecord]:
        """Return all images of the node."""

    async def remove_image(self, reference: str) -> None:
        """Remove an image with all its names. An unknown image counts as removed."""

    async def image_usage(self) -> ImageFsUsage | None:
        """Return the usage of the image filesystem, or None if images take no space."""


class PodListing(Protocol):
    """Lists all pods."""

    async def list_pods(self) -> Sequence[PodRecord]:
        """Return all pods of the runtime, including pods of other clients: IDs and states. Details may be missing."""


class Inspection(PodListing, Protocol):
    """Lists all pods and inspects one pod."""

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """Return one pod with all details, including exit codes and times. An unknown pod is an empty record."""


class Events(Protocol):
    """Events of containers."""

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """Yield events from now on. Events may be lost, repeated or late, so the engine also relists.

        End or raise RuntimeUnavailable when the stream breaks. The caller then opens a new one.
        """


class Commands(Protocol):
    """Commands in containers."""

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container and wait for its end. A failing command does not raise."""


class Logs(Protocol):
    """Logs of containers."""

    async def reopen_log(self, container_id: str) -> None:
        """Reopen the log of a running container after its file was renamed. New output goes to a new file.

        Return when nothing more is written to the old file. Raise TryLater, also if the container does not run.
        """


class Health(Protocol):
    """Health of the runtime."""

    async def health(self) -> RuntimeHealth:
        """Return the health. Raise RuntimeUnavailable if the runtime does not answer."""


class Stats(Protocol):
    """Resource usage of pods. Not part of `Runtime`, because not every runtime measures it."""

    async def pod_stats(self, uid: PodUID | None = None) -> Sequence[PodStats]:
        """Return the usage of all pods or of one. Omit unknown pods and pods that do not run. Raise TryLater."""


class Runtime(Sandboxes, Containers, Images, Inspection, Events, Commands, Logs, Health, Protocol):
    """The whole port."""

    @property
    def name(self) -> str:
        """Return the prefix of container IDs in the API: `containerd`, `cri-o`, `process`, `fake`."""
