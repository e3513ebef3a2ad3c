"""CRI's calls: the whole request, the deadline and the result of each."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.owners import KEPT, Kind, Owner, OwnerIndex
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.cri.scripted_transport import ScriptedTransport

RUNTIME, IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
BOX = cri.PodSandboxConfig(hostname="web")
CONTAINER = cri.ContainerConfig(log_path="web.log")
OF_POD = {"io.kubernetes.pod.uid": "u"}
SPEC = cri.ImageSpec(image="busybox")
STATUS = cri.ContainerStatus(id="c", exit_code=3)

Call = Callable[[CriCalls], Awaitable[Any]]

CALLS: dict[str, tuple[Call, str, Message, float, Message, Any]] = {
    "run a sandbox": (
        lambda calls: calls.run_sandbox(BOX, "kata"), RUNTIME + "RunPodSandbox",
        cri.RunPodSandboxRequest(config=BOX, runtime_handler="kata"), 240.0,
        cri.RunPodSandboxResponse(pod_sandbox_id="b"), "b"),
    "stop a sandbox": (
        lambda calls: calls.stop_sandbox("b"), RUNTIME + "StopPodSandbox",
        cri.StopPodSandboxRequest(pod_sandbox_id="b"), 120.0, cri.StopPodSandboxResponse(), None),
    "stop a sandbox in less time": (
        lambda calls: calls.stop_sandbox("b", 7.0), RUNTIME + "StopPodSandbox",
        cri.StopPodSandboxRequest(pod_sandbox_id="b"), 7.0, cri.StopPodSandboxResponse(), None),
    "remove a sandbox": (
        lambda calls: calls.remove_sandbox("b"), RUNTIME + "RemovePodSandbox",
        cri.RemovePodSandboxRequest(pod_sandbox_id="b"), 120.0, cri.RemovePodSandboxResponse(), None),
    "status of a sandbox": (
        lambda calls: calls.sandbox_status("b"), RUNTIME + "PodSandboxStatus",
        cri.PodSandboxStatusRequest(pod_sandbox_id="b"), 120.0,
        cri.PodSandboxStatusResponse(info={"a": "1"}), cri.PodSandboxStatusResponse(info={"a": "1"})),
    "verbose status of a sandbox": (
        lambda calls: calls.sandbox_status("b", verbose=True), RUNTIME + "PodSandboxStatus",
        cri.PodSandboxStatusRequest(pod_sandbox_id="b", verbose=True), 120.0,
        cri.PodSandboxStatusResponse(), cri.PodSandboxStatusResponse()),
    "all sandboxes": (
        lambda calls: calls.sandboxes(), RUNTIME + "ListPodSandbox",
        cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter()), 120.0,
        cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="b")]), [cri.PodSandbox(id="b")]),
    "sandboxes of a pod": (
        lambda calls: calls.sandboxes("u"), RUNTIME + "ListPodSandbox",
        cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=OF_POD)), 120.0,
        cri.ListPodSandboxResponse(), []),
    "one sandbox": (
        lambda calls: calls.sandboxes(sandbox_id="b"), RUNTIME + "ListPodSandbox",
        cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(id="b")), 120.0, cri.ListPodSandboxResponse(), []),
    "create a container": (
        lambda calls: calls.create_container("b", CONTAINER, BOX), RUNTIME + "CreateContainer",
        cri.CreateContainerRequest(pod_sandbox_id="b", config=CONTAINER, sandbox_config=BOX), 120.0,
        cri.CreateContainerResponse(container_id="c"), "c"),
    "start a container": (
        lambda calls: calls.start_container("c"), RUNTIME + "StartContainer",
        cri.StartContainerRequest(container_id="c"), 120.0, cri.StartContainerResponse(), None),
    "stop a container": (
        lambda calls: calls.stop_container("c", 30), RUNTIME + "StopContainer",
        cri.StopContainerRequest(container_id="c", timeout=30), 150.0, cri.StopContainerResponse(), None),
    "stop a container within parts of a second": (
        lambda calls: calls.stop_container("c", 1.1), RUNTIME + "StopContainer",
        cri.StopContainerRequest(container_id="c", timeout=2), 122.0, cri.StopContainerResponse(), None),
    "stop a container at once": (
        lambda calls: calls.stop_container("c", -1), RUNTIME + "StopContainer",
        cri.StopContainerRequest(container_id="c", timeout=0), 120.0, cri.StopContainerResponse(), None),
    "remove a container": (
        lambda calls: calls.remove_container("c"), RUNTIME + "RemoveContainer",
        cri.RemoveContainerRequest(container_id="c"), 120.0, cri.RemoveContainerResponse(), None),
    "status of a container": (
        lambda calls: calls.container_status("c"), RUNTIME + "ContainerStatus",
        cri.ContainerStatusRequest(container_id="c"), 120.0, cri.ContainerStatusResponse(status=STATUS), STATUS),
    "info of a container": (
        lambda calls: calls.container_info("c"), RUNTIME + "ContainerStatus",
        cri.ContainerStatusRequest(container_id="c", verbose=True), 120.0,
        cri.ContainerStatusResponse(info={"info": "text", "other": "x"}), "text"),
    "info of a container that has none": (
        lambda calls: calls.container_info("c"), RUNTIME + "ContainerStatus",
        cri.ContainerStatusRequest(container_id="c", verbose=True), 120.0,
        cri.ContainerStatusResponse(info={"other": "x"}), ""),
    "all containers": (
        lambda calls: calls.containers(), RUNTIME + "ListContainers",
        cri.ListContainersRequest(filter=cri.ContainerFilter()), 120.0,
        cri.ListContainersResponse(containers=[cri.Container(id="c")]), [cri.Container(id="c")]),
    "containers of a pod": (
        lambda calls: calls.containers("u"), RUNTIME + "ListContainers",
        cri.ListContainersRequest(filter=cri.ContainerFilter(label_selector=OF_POD)), 120.0,
        cri.ListContainersResponse(), []),
    "one container": (
        lambda calls: calls.containers(container_id="c"), RUNTIME + "ListContainers",
        cri.ListContainersRequest(filter=cri.ContainerFilter(id="c")), 120.0, cri.ListContainersResponse(), []),
    "containers of a sandbox": (
        lambda calls: calls.containers(sandbox_id="b"), RUNTIME + "ListContainers",
        cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id="b")), 120.0,
        cri.ListContainersResponse(), []),
    "reopen a log": (
        lambda calls: calls.reopen_log("c"), RUNTIME + "ReopenContainerLog",
        cri.ReopenContainerLogRequest(container_id="c"), 120.0, cri.ReopenContainerLogResponse(), None),
    "run a command": (
        lambda calls: calls.exec_sync("c", ("ls", "-l"), 9.5), RUNTIME + "ExecSync",
        cri.ExecSyncRequest(container_id="c", cmd=["ls", "-l"], timeout=10), 130.0,
        cri.ExecSyncResponse(exit_code=2), cri.ExecSyncResponse(exit_code=2)),
    "run a command without a timeout": (
        lambda calls: calls.exec_sync("c", ("ls",), 0), RUNTIME + "ExecSync",
        cri.ExecSyncRequest(container_id="c", cmd=["ls"]), 86400.0, cri.ExecSyncResponse(), cri.ExecSyncResponse()),
    "run a command with a negative timeout": (
        lambda calls: calls.exec_sync("c", ("ls",), -5), RUNTIME + "ExecSync",
        cri.ExecSyncRequest(container_id="c", cmd=["ls"]), 86400.0, cri.ExecSyncResponse(), cri.ExecSyncResponse()),
    "an image": (
        lambda calls: calls.image("busybox"), IMAGES + "ImageStatus", cri.ImageStatusRequest(image=SPEC), 120.0,
        cri.ImageStatusResponse(image=cri.Image(id="i")), cri.Image(id="i")),
    "an image that is not there": (
        lambda calls: calls.image("busybox"), IMAGES + "ImageStatus", cri.ImageStatusRequest(image=SPEC), 120.0,
        cri.ImageStatusResponse(), None),
    "all images": (
        lambda calls: calls.images(), IMAGES + "ListImages", cri.ListImagesRequest(), 120.0,
        cri.ListImagesResponse(images=[cri.Image(id="i")]), [cri.Image(id="i")]),
    "pull an image": (
        lambda calls: calls.pull_image("busybox", cri.AuthConfig(username="me")), IMAGES + "PullImage",
        cri.PullImageRequest(image=SPEC, auth=cri.AuthConfig(username="me")), 3600.0,
        cri.PullImageResponse(image_ref="sha256:1"), "sha256:1"),
    "pull a public image": (
        lambda calls: calls.pull_image("busybox", None), IMAGES + "PullImage",
        cri.PullImageRequest(image=SPEC), 3600.0, cri.PullImageResponse(image_ref="sha256:1"), "sha256:1"),
    "remove an image": (
        lambda calls: calls.remove_image("busybox"), IMAGES + "RemoveImage",
        cri.RemoveImageRequest(image=SPEC), 120.0, cri.RemoveImageResponse(), None),
    "the version": (
        lambda calls: calls.version(3.0), RUNTIME + "Version", cri.VersionRequest(version="v1"), 3.0,
        cri.VersionResponse(runtime_name="x"), cri.VersionResponse(runtime_name="x")),
    "the status": (
        lambda calls: calls.status(), RUNTIME + "Status", cri.StatusRequest(), 120.0,
        cri.StatusResponse(info={"a": "b"}), cri.StatusResponse(info={"a": "b"})),
}  # fmt: skip


@pytest.mark.parametrize("call, method, request_, seconds, answer, expected", CALLS.values(), ids=CALLS.keys())
def test_a_call_sends_its_request_with_its_deadline_and_returns_its_result(
    call: Call, method: str, request_: Message, seconds: float, answer: Message, expected: Any
) -> None:
    transport = ScriptedTransport()
    transport.answers[method.rpartition("/")[2]] = lambda _: answer

    async def scenario() -> Any:
        found = await call(CriCalls(transport))
        return list(found) if isinstance(expected, list) else found

    assert simulate(scenario())[0] == expected
    assert transport.requests == [(method, request_, seconds)]


TOLERANT = {"stop a sandbox", "remove a sandbox", "stop a container", "remove a container", "remove an image"}


@pytest.mark.parametrize("name", ["status of a container", "start a container", *sorted(TOLERANT)])
def test_only_stops_and_removals_succeed_if_the_object_does_not_exist(name: str) -> None:
    transport = ScriptedTransport()
    call, method = CALLS[name][:2]

    async def scenario(error: Exception) -> Any:
        transport.answers[method.rpartition("/")[2]] = lambda _: error
        return await call(CriCalls(transport))

    if name in TOLERANT:
        assert simulate(scenario(ObjectNotFound("no")))[0] is None
    else:
        with pytest.raises(ObjectNotFound):
            simulate(scenario(ObjectNotFound("no")))
    with pytest.raises(RuntimeRefused, match="busy"):
        simulate(scenario(RuntimeRefused("busy")))


def test_events_come_from_the_stream_of_the_runtime() -> None:
    transport = ScriptedTransport()

    async def scenario() -> None:
        with pytest.raises(RuntimeRefused):
            await anext(aiter(CriCalls(transport).events()))

    simulate(scenario())
    assert transport.opened == [(RUNTIME + "GetContainerEvents", cri.GetEventsRequest())]


# Whose is it.


def test_the_index_keeps_the_first_owner_except_of_objects_created_here() -> None:
    index = OwnerIndex()
    index.saw("c", "u", Kind.CONTAINER)
    index.saw("c", "other", Kind.SANDBOX)
    assert (index.get("c"), index.get("x"), len(index)) == (Owner(PodUID("u"), Kind.CONTAINER), None, 1)
    index.made("c", "mine", Kind.SANDBOX)
    index.saw("c", "u", Kind.CONTAINER)
    assert index.get("c") == Owner(PodUID("mine"), Kind.SANDBOX, made_here=True)
    assert (index.drop("c"), index.drop("c"), index.get("c"), len(index)) == (
        Owner(PodUID("mine"), Kind.SANDBOX, made_here=True), None, None, 0,
    )  # fmt: skip


def test_the_owner_index_drops_the_oldest_id() -> None:
    index = OwnerIndex()
    for number in range(KEPT):
        index.saw(str(number), "u", Kind.CONTAINER)
    assert (len(index), index.get("0") is None) == (32_768, False)
    index.saw("one more", "u", Kind.CONTAINER)
    assert (len(index), index.get("0"), index.get("1") is None) == (KEPT, None, False)
