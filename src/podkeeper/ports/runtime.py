"""Whatever runs containers: CRI-shaped primitives, split by who needs them.

The engine computes the plan and executes it over these; no runtime decides anything. Ids are the runtime's
own. Calls that change something are idempotent towards "already so"; for stopping and removing, unknown is
gone. Each call has its own deadline; one that runs into it raises `CallTimedOut` and may have taken effect.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.model.stats import PodStats


class Sandboxes(Protocol):
    """What a pod's containers share."""

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox and start it. Returns its id, once it is ready.

        One that an earlier try with the same pod and attempt made is adopted, or cleaned up and made anew.
        """

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox, and by force whatever still runs in it. Returns once it is stopped; its network is gone."""

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all containers in it, stopping them by force if need be."""


class Containers(Protocol):
    """What runs in a sandbox."""

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container. Returns its id.

        A container with the same pod, name and attempt that never started is removed first: an earlier call created
        it, and its answer was lost. One that has started is kept, and `RuntimeRefused` raised. Then the caller's view
        of the pod is outdated, or this call takes effect long after its caller gave it up or died.
        """

    async def start_container(self, container_id: str) -> None:
        """Start a created container. Returns once it runs, or has run."""

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, wait up to the grace, then force it. Returns once it has exited."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container, by force if it runs. Its exit code is gone with it."""


class Images(Protocol):
    """What containers are made from."""

    async def image(self, reference: str) -> ImageRecord | None:
        """The image under this name, id or digest, if the node has it."""

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image. `secrets` are docker configurations to try in order. Raises ImagePullFailed."""

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images of the node."""

    async def remove_image(self, reference: str) -> None:
        """Remove an image, under all its names; unknown is removed."""

    async def image_usage(self) -> ImageFsUsage | None:
        """How full the file system is that images lie on; None: images take no space here."""


class PodListing(Protocol):
    """All pods at once."""

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of, whoever started it: ids and states; details may be missing."""


class Inspection(PodListing, Protocol):
    """All pods, and one pod in detail."""

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod, with exit codes and times. A pod it has nothing of is an empty record."""


class Events(Protocol):
    """News of containers."""

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """What happens from now on. News may be lost, repeated or late: the engine relists to be sure.

        Ends, or raises RuntimeUnavailable, when the stream breaks; ask again for a new one.
        """


class Commands(Protocol):
    """Running something inside a container."""

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container and wait for its end. Never raises for what the command does."""


class Logs(Protocol):
    """Where a container's output is written to."""

    async def reopen_log(self, container_id: str) -> None:
        """Let the log of a container that runs go on in a new file of the same name: the old one was moved away.

        Returns once nothing more is written to the old one. Raises TryLater, also for one that does not run.
        """


class Health(Protocol):
    """How the runtime is."""

    async def health(self) -> RuntimeHealth:
        """Ask. Raises RuntimeUnavailable when it does not answer."""


class Stats(Protocol):
    """How much pods use. Not part of `Runtime`: not every runtime can tell."""

    async def pod_stats(self, uid: PodUID | None = None) -> Sequence[PodStats]:
        """What all pods use, or one of them. Who does not run, or is unknown, does not appear. Raises TryLater."""


class Runtime(Sandboxes, Containers, Images, Inspection, Events, Commands, Logs, Health, Protocol):
    """All of it."""

    @property
    def name(self) -> str:
        """What container ids are prefixed with in the API: `containerd`, `cri-o`, `process`, `fake`."""
