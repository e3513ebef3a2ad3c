"""CRI calls with their deadlines. This module decides nothing.

In: IDs and messages. Out: IDs, messages and the errors of the transport. Stopping or removing an object that does not
exist succeeds. Kubelet counterpart: cri-client/pkg/remote_runtime.go.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound, Transport

# The default of the kubelet's `runtimeRequestTimeout`.
CALL_SECONDS: Final = 120.0
# As in the kubelet: the network of a sandbox may be slow.
SANDBOX_SECONDS: Final = 2 * CALL_SECONDS
# The engine gives a pull up earlier (`bounded_runtime`, 1800 s). This bounds the call that it has abandoned.
PULL_SECONDS: Final = 3600.0
UNBOUNDED_SECONDS: Final = 86_400.0
"""For a command without a timeout. No call is unbounded."""

_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_IMAGES: Final = "/runtime.v1.ImageService/"


class CriCalls:
    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # Sandboxes.

    async def run_sandbox(self, config: cri.PodSandboxConfig, handler: str) -> str:
        """Create and start a sandbox. Return its ID."""
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        answer = await self.transport.unary(
            f"{_RUNTIME}RunPodSandbox", request, cri.RunPodSandboxResponse, SANDBOX_SECONDS
        )
        return answer.pod_sandbox_id

    async def stop_sandbox(self, sandbox_id: str, seconds: float = CALL_SECONDS) -> None:
        request = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        try:
            await self.transport.unary(f"{_RUNTIME}StopPodSandbox", request, cri.StopPodSandboxResponse, seconds)
        # The runtime's word for "already done". A repeated stop or removal must succeed.
        except ObjectNotFound:
            return

    async def remove_sandbox(self, sandbox_id: str) -> None:
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        method = f"{_RUNTIME}RemovePodSandbox"
        try:
            await self.transport.unary(method, request, cri.RemovePodSandboxResponse, CALL_SECONDS)
        except ObjectNotFound:
            return

    async def sandbox_status(self, sandbox_id: str, *, verbose: bool = False) -> cri.PodSandboxStatusResponse:
        """Return the status of a sandbox. `verbose` adds data in the runtime's own format."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        method = f"{_RUNTIME}PodSandboxStatus"
        return await self.transport.unary(method, request, cri.PodSandboxStatusResponse, CALL_SECONDS)

    async def sandboxes(self, uid: str = "", sandbox_id: str = "") -> Sequence[cri.PodSandbox]:
        """Return all sandboxes, those of one pod, or the one with an ID."""
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
        """Create a container. Return its ID."""
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
        method = f"{_RUNTIME}CreateContainer"
        answer = await self.transport.unary(method, request, cri.CreateContainerResponse, CALL_SECONDS)
        return answer.container_id

    async def start_container(self, container_id: str) -> None:
        request = cri.StartContainerRequest(container_id=container_id)
        await self.transport.unary(f"{_RUNTIME}StartContainer", request, cri.StartContainerResponse, CALL_SECONDS)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period, rounded up to the whole seconds of CRI."""
        grace = math.ceil(max(0.0, grace_seconds))
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace)
        # As in the kubelet: the grace period is not part of the deadline.
        seconds = grace + CALL_SECONDS
        try:
            await self.transport.unary(f"{_RUNTIME}StopContainer", request, cri.StopContainerResponse, seconds)
        except ObjectNotFound:
            return

    async def remove_container(self, container_id: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container_id)
        try:
            await self.transport.unary(f"{_RUNTIME}RemoveContainer", request, cri.RemoveContainerResponse, CALL_SECONDS)
        except ObjectNotFound:
            return

    async def container_status(self, container_id: str) -> cri.ContainerStatus:
        return (await self._container_status(container_id, verbose=False)).status

    async def container_info(self, container_id: str) -> str:
        """Return the verbose status in the runtime's own format. "" if there is none."""
        return (await self._container_status(container_id, verbose=True)).info.get("info", "")

    async def _container_status(self, container_id: str, *, verbose: bool) -> cri.ContainerStatusResponse:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        method = f"{_RUNTIME}ContainerStatus"
        return await self.transport.unary(method, request, cri.ContainerStatusResponse, CALL_SECONDS)

    async def containers(self, uid: str = "", container_id: str = "", sandbox_id: str = "") -> Sequence[cri.Container]:
        """Return all containers, those of one pod or sandbox, or the one with an ID."""
        selector = {POD_UID: uid} if uid else {}
        wanted = cri.ContainerFilter(id=container_id, pod_sandbox_id=sandbox_id, label_selector=selector)
        request = cri.ListContainersRequest(filter=wanted)
        answer = await self.transport.unary(
            f"{_RUNTIME}ListContainers", request, cri.ListContainersResponse, CALL_SECONDS
        )
        return answer.containers

    async def reopen_log(self, container_id: str) -> None:
        """Reopen a container's log: the runtime continues in a new file of the same name."""
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        method = f"{_RUNTIME}ReopenContainerLog"
        await self.transport.unary(method, request, cri.ReopenContainerLogResponse, CALL_SECONDS)

    async def exec_sync(
        self, container_id: str, command: Sequence[str], timeout_seconds: float
    ) -> cri.ExecSyncResponse:
        """Run a command in a container. A timeout of 0 means no timeout."""
        timeout = math.ceil(max(0.0, timeout_seconds))
        request = cri.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
        # As in the kubelet: the runtime enforces the command's timeout, the deadline only covers a runtime that hangs.
        seconds = timeout + CALL_SECONDS if timeout else UNBOUNDED_SECONDS
        return await self.transport.unary(f"{_RUNTIME}ExecSync", request, cri.ExecSyncResponse, seconds)

    # Images.

    async def image(self, reference: str) -> cri.Image | None:
        """Return the image of a name, ID or digest."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=reference))
        answer = await self.transport.unary(f"{_IMAGES}ImageStatus", request, cri.ImageStatusResponse, CALL_SECONDS)
        return answer.image if answer.HasField("image") else None

    async def images(self) -> Sequence[cri.Image]:
        request = cri.ListImagesRequest()
        return (
            await self.transport.unary(f"{_IMAGES}ListImages", request, cri.ListImagesResponse, CALL_SECONDS)
        ).images

    async def pull_image(self, reference: str, auth: cri.AuthConfig | None) -> str:
        """Pull an image. Return the runtime's reference to it."""
        request = cri.PullImageRequest(image=cri.ImageSpec(image=reference), auth=auth)
        return (
            await self.transport.unary(f"{_IMAGES}PullImage", request, cri.PullImageResponse, PULL_SECONDS)
        ).image_ref

    async def remove_image(self, reference: str) -> None:
        request = cri.RemoveImageRequest(image=cri.ImageSpec(image=reference))
        try:
            await self.transport.unary(f"{_IMAGES}RemoveImage", request, cri.RemoveImageResponse, CALL_SECONDS)
        except ObjectNotFound:
            return

    # The runtime itself.

    async def version(self, seconds: float) -> cri.VersionResponse:
        request = cri.VersionRequest(version="v1")
        return await self.transport.unary(f"{_RUNTIME}Version", request, cri.VersionResponse, seconds)

    async def status(self) -> cri.StatusResponse:
        return await self.transport.unary(f"{_RUNTIME}Status", cri.StatusRequest(), cri.StatusResponse, CALL_SECONDS)

    def events(self) -> AsyncIterator[cri.ContainerEventResponse]:
        """Return CRI's stream of container events. Not all runtimes have it."""
        request = cri.GetEventsRequest()
        return self.transport.stream(f"{_RUNTIME}GetContainerEvents", request, cri.ContainerEventResponse)
