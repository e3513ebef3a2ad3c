"""CRI's calls, each with its deadline: what is asked and what comes back, and nothing is decided.

In: ids and messages. Out: ids, messages and the transport's errors. Deadlines are the reference's: two minutes for
most calls, twice that for a sandbox (its network may be slow), and for a stop or a command their own time on top. For
stops and removals, what is not there is gone. The Go ancestor is cri-client/pkg/remote_runtime.go.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import NotThere, Transport

CALL_SECONDS: Final = 120.0
SANDBOX_SECONDS: Final = 2 * CALL_SECONDS
PULL_SECONDS: Final = 3600.0
UNBOUNDED_SECONDS: Final = 86_400.0
"""For a command without a timeout. Nothing is asked for ever."""

_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_IMAGES: Final = "/runtime.v1.ImageService/"


class Calls:
    """CRI over a transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # Sandboxes.

    async def run_sandbox(self, config: cri.PodSandboxConfig, handler: str) -> str:
        """Make a sandbox and start it. Returns its id."""
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        answer = await self.transport.unary(
            f"{_RUNTIME}RunPodSandbox", request, cri.RunPodSandboxResponse, SANDBOX_SECONDS
        )
        return answer.pod_sandbox_id

    async def stop_sandbox(self, sandbox_id: str, seconds: float = CALL_SECONDS) -> None:
        """Stop a sandbox and all in it."""
        request = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        try:
            await self.transport.unary(f"{_RUNTIME}StopPodSandbox", request, cri.StopPodSandboxResponse, seconds)
        except NotThere:
            return

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all in it."""
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        method = f"{_RUNTIME}RemovePodSandbox"
        try:
            await self.transport.unary(method, request, cri.RemovePodSandboxResponse, CALL_SECONDS)
        except NotThere:
            return

    async def sandbox_status(self, sandbox_id: str, *, verbose: bool = False) -> cri.PodSandboxStatusResponse:
        """All about one sandbox; `verbose` adds what only people and this runtime's own kind understand."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        method = f"{_RUNTIME}PodSandboxStatus"
        return await self.transport.unary(method, request, cri.PodSandboxStatusResponse, CALL_SECONDS)

    async def sandboxes(self, uid: str = "", sandbox_id: str = "") -> Sequence[cri.PodSandbox]:
        """All sandboxes, those of one pod, or the one of an id."""
        selector = {POD_UID: uid} if uid else {}
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(id=sandbox_id, label_selector=selector))
        answer = await self.transport.unary(
            f"{_RUNTIME}ListPodSandbox", request, cri.ListPodSandboxResponse, CALL_SECONDS
        )
        return answer.items

    # Containers.

    async def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox: cri.PodSandboxConfig
    ) -> str:
        """Create a container. Returns its id."""
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
        method = f"{_RUNTIME}CreateContainer"
        answer = await self.transport.unary(method, request, cri.CreateContainerResponse, CALL_SECONDS)
        return answer.container_id

    async def start_container(self, container_id: str) -> None:
        """Start a created container."""
        request = cri.StartContainerRequest(container_id=container_id)
        await self.transport.unary(f"{_RUNTIME}StartContainer", request, cri.StartContainerResponse, CALL_SECONDS)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, and force it after the grace. CRI counts whole seconds: nobody gets less than was said."""
        grace = math.ceil(max(0.0, grace_seconds))
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace)
        seconds = grace + CALL_SECONDS
        try:
            await self.transport.unary(f"{_RUNTIME}StopContainer", request, cri.StopContainerResponse, seconds)
        except NotThere:
            return

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        request = cri.RemoveContainerRequest(container_id=container_id)
        try:
            await self.transport.unary(f"{_RUNTIME}RemoveContainer", request, cri.RemoveContainerResponse, CALL_SECONDS)
        except NotThere:
            return

    async def container_status(self, container_id: str) -> cri.ContainerStatus:
        """All about one container."""
        return (await self._container_status(container_id, verbose=False)).status

    async def container_info(self, container_id: str) -> str:
        """What a runtime tells of a container to people and its own kind; "" where it does not."""
        return (await self._container_status(container_id, verbose=True)).info.get("info", "")

    async def _container_status(self, container_id: str, *, verbose: bool) -> cri.ContainerStatusResponse:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        method = f"{_RUNTIME}ContainerStatus"
        return await self.transport.unary(method, request, cri.ContainerStatusResponse, CALL_SECONDS)

    async def containers(self, uid: str = "", container_id: str = "", sandbox_id: str = "") -> Sequence[cri.Container]:
        """All containers, those of one pod or sandbox, or the one of an id."""
        selector = {POD_UID: uid} if uid else {}
        wanted = cri.ContainerFilter(id=container_id, pod_sandbox_id=sandbox_id, label_selector=selector)
        request = cri.ListContainersRequest(filter=wanted)
        answer = await self.transport.unary(
            f"{_RUNTIME}ListContainers", request, cri.ListContainersResponse, CALL_SECONDS
        )
        return answer.containers

    async def reopen_log(self, container_id: str) -> None:
        """Have a container's log written to a new file of the same name."""
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        method = f"{_RUNTIME}ReopenContainerLog"
        await self.transport.unary(method, request, cri.ReopenContainerLogResponse, CALL_SECONDS)

    async def exec_sync(
        self, container_id: str, command: Sequence[str], timeout_seconds: float
    ) -> cri.ExecSyncResponse:
        """Run a command in a container; a timeout of 0 is none."""
        timeout = math.ceil(max(0.0, timeout_seconds))
        request = cri.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
        seconds = timeout + CALL_SECONDS if timeout else UNBOUNDED_SECONDS
        return await self.transport.unary(f"{_RUNTIME}ExecSync", request, cri.ExecSyncResponse, seconds)

    # Images.

    async def image(self, reference: str) -> cri.Image | None:
        """The image under a name, id or digest."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=reference))
        answer = await self.transport.unary(f"{_IMAGES}ImageStatus", request, cri.ImageStatusResponse, CALL_SECONDS)
        return answer.image if answer.HasField("image") else None

    async def images(self) -> Sequence[cri.Image]:
        """All images."""
        request = cri.ListImagesRequest()
        return (
            await self.transport.unary(f"{_IMAGES}ListImages", request, cri.ListImagesResponse, CALL_SECONDS)
        ).images

    async def pull_image(self, reference: str, auth: cri.AuthConfig | None) -> str:
        """Fetch an image. Returns what the runtime calls it."""
        request = cri.PullImageRequest(image=cri.ImageSpec(image=reference), auth=auth)
        return (
            await self.transport.unary(f"{_IMAGES}PullImage", request, cri.PullImageResponse, PULL_SECONDS)
        ).image_ref

    async def remove_image(self, reference: str) -> None:
        """Remove an image."""
        request = cri.RemoveImageRequest(image=cri.ImageSpec(image=reference))
        try:
            await self.transport.unary(f"{_IMAGES}RemoveImage", request, cri.RemoveImageResponse, CALL_SECONDS)
        except NotThere:
            return

    # The runtime itself.

    async def version(self, seconds: float) -> cri.VersionResponse:
        """Who answers."""
        request = cri.VersionRequest(version="v1")
        return await self.transport.unary(f"{_RUNTIME}Version", request, cri.VersionResponse, seconds)

    async def status(self) -> cri.StatusResponse:
        """How it is, and what it can do."""
        return await self.transport.unary(f"{_RUNTIME}Status", cri.StatusRequest(), cri.StatusResponse, CALL_SECONDS)

    def news(self) -> AsyncIterator[cri.ContainerEventResponse]:
        """What happens to sandboxes and containers, where the runtime tells."""
        request = cri.GetEventsRequest()
        return self.transport.stream(f"{_RUNTIME}GetContainerEvents", request, cri.ContainerEventResponse)
