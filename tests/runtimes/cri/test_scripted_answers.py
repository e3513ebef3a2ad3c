"""Results of scripted responses: stats, setup, errors, images and pods."""

import asyncio
import json
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ImageFsUsage, PodRecord, RecordState, SandboxRecord
from podkeeper.model.stats import (
    ContainerStats,
    CpuStats,
    FileSystemStats,
    InterfaceStats,
    MemoryStats,
    PodStats,
)
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.errors import (
    holder_of_name,
    is_command_timeout,
    is_name_taken,
    message_of,
    pull_failure,
    without_code,
)
from podkeeper.runtimes.cri.image_fs import image_usage
from podkeeper.runtimes.cri.images import CriImages
from podkeeper.runtimes.cri.inspection import PodInspector
from podkeeper.runtimes.cri.owners import Kind, Owner, OwnerIndex
from podkeeper.runtimes.cri.runtime_info import EventStreamKind, RuntimeInfo, event_stream_kind, has_image, runtime_info
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.stats import pod_stats
from podkeeper.runtimes.cri.transport import ObjectNotFound, Unimplemented
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.runtimes.cri.scripted_transport import ScriptedTransport

T = TypeVar("T")
RUNTIME, IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
LABELS = {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "ns"}
SECOND = 10**9


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def answered(work: Awaitable[T]) -> T:
    async def scenario() -> T:
        return await work

    return simulate(scenario())[0]


def number(value: int) -> cri.UInt64Value:
    return cri.UInt64Value(value=value)


# Stats.

CPU = cri.CpuUsage(timestamp=SECOND, usage_core_nano_seconds=number(7), usage_nano_cores=number(8))
MEMORY = cri.MemoryUsage(
    timestamp=2 * SECOND,
    working_set_bytes=number(1),
    usage_bytes=number(2),
    rss_bytes=number(3),
    available_bytes=number(4),
    page_faults=number(5),
    major_page_faults=number(6),
)
LAYER = cri.FilesystemUsage(
    fs_id=cri.FilesystemIdentifier(mountpoint="/m"), used_bytes=number(9), inodes_used=number(10)
)


def counted(name: str, **labels: str) -> cri.ContainerStats:
    about_it = cri.ContainerAttributes(id=f"id-{name}", metadata=cri.ContainerMetadata(name=name), labels=labels)
    return cri.ContainerStats(attributes=about_it, cpu=CPU, memory=MEMORY, writable_layer=LAYER)


CPU_STATS = CpuStats(at=at(1), total_nanoseconds=7, nanocores=8)
MEMORY_STATS = MemoryStats(
    at=at(2),
    working_set_bytes=1,
    usage_bytes=2,
    rss_bytes=3,
    available_bytes=4,
    page_faults=5,
    major_page_faults=6,
)


def container_stats(container_id: str, name: str) -> ContainerStats:
    layer = FileSystemStats(mountpoint="/m", used_bytes=9, inodes_used=10)
    return ContainerStats(id=container_id, name=name, cpu=CPU_STATS, memory=MEMORY_STATS, writable_layer=layer)


def interface(name: str, first: int) -> cri.NetworkInterfaceUsage:
    return cri.NetworkInterfaceUsage(
        name=name,
        rx_bytes=number(first),
        rx_errors=number(first + 1),
        tx_bytes=number(first + 2),
        tx_errors=number(first + 3),
    )


def seen(name: str, first: int) -> InterfaceStats:
    return InterfaceStats(
        name=name, received_bytes=first, received_errors=first + 1, sent_bytes=first + 2, sent_errors=first + 3
    )


def sandbox_stats(labels: dict[str, str], **linux: Any) -> cri.PodSandboxStats:
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(labels=labels), linux=cri.LinuxPodSandboxStats(**linux)
    )


of_all_or_one = pytest.mark.parametrize(
    "uid, selector", [(None, {}), (PodUID("u"), {"io.kubernetes.pod.uid": "u"})], ids=["all pods", "one pod"]
)


@of_all_or_one
def test_the_stats_of_pods_are_complete(uid: PodUID | None, selector: dict[str, str]) -> None:
    transport = ScriptedTransport()
    network = cri.NetworkUsage(default_interface=interface("eth0", 10), interfaces=[interface("eth1", 20)])
    reported = [
        sandbox_stats(
            LABELS,
            cpu=CPU,
            memory=MEMORY,
            process=cri.ProcessUsage(process_count=number(11)),
            network=network,
            containers=[counted("a", **{"io.kubernetes.container.name": "app"}), counted("b")],
        ),
        sandbox_stats({"other": "label"}, cpu=CPU),
        sandbox_stats({"io.kubernetes.pod.uid": "stopped"}),
        sandbox_stats({"io.kubernetes.pod.uid": "cpu"}, cpu=cri.CpuUsage(timestamp=SECOND)),
        sandbox_stats({"io.kubernetes.pod.uid": "memory"}, memory=cri.MemoryUsage(timestamp=SECOND)),
        sandbox_stats({"io.kubernetes.pod.uid": "containers"}, containers=[cri.ContainerStats()]),
    ]
    transport.answers["ListPodSandboxStats"] = lambda _: cri.ListPodSandboxStatsResponse(stats=reported)
    assert answered(pod_stats(transport, uid)) == (
        PodStats(
            uid="u",
            name="web",
            namespace="ns",
            cpu=CPU_STATS,
            memory=MEMORY_STATS,
            processes=11,
            interfaces=(seen("eth0", 10), seen("eth1", 20)),
            containers=(container_stats("id-a", "app"), container_stats("id-b", "b")),
        ),
        PodStats(uid="cpu", name="", namespace="", cpu=CpuStats(at=at(1))),
        PodStats(uid="memory", name="", namespace="", memory=MemoryStats(at=at(1))),
        PodStats(uid="containers", name="", namespace="", containers=(ContainerStats(id="", name=""),)),
    )
    expected = cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(label_selector=selector))
    assert transport.requests == [(RUNTIME + "ListPodSandboxStats", expected, 30.0)]


@of_all_or_one
def test_stats_of_containers_replace_those_of_pods(uid: PodUID | None, selector: dict[str, str]) -> None:
    transport = ScriptedTransport()
    transport.answers["ListPodSandboxStats"] = lambda _: RuntimeRefused("a sandbox is ending")
    bare = {"io.kubernetes.pod.uid": "v"}
    reported = [counted("a", **LABELS), counted("x"), counted("c", **bare), counted("b", **LABELS)]
    transport.answers["ListContainerStats"] = lambda _: cri.ListContainerStatsResponse(stats=reported)
    assert answered(pod_stats(transport, uid)) == (
        PodStats(
            uid="u",
            name="web",
            namespace="ns",
            containers=(container_stats("id-a", "a"), container_stats("id-b", "b")),
        ),
        PodStats(uid="v", name="", namespace="", containers=(container_stats("id-c", "c"),)),
    )
    expected = cri.ListContainerStatsRequest(filter=cri.ContainerStatsFilter(label_selector=selector))
    assert transport.requests[1:] == [(RUNTIME + "ListContainerStats", expected, 30.0)]


@pytest.mark.parametrize("reported, expected", [(0, None), (1, 1), (2**62 - 1, 2**62 - 1), (2**62, None)])
def test_memory_without_a_limit_has_none_available(reported: int, expected: int | None) -> None:
    transport = ScriptedTransport()
    memory = cri.MemoryUsage(available_bytes=number(reported))
    answer = cri.ListPodSandboxStatsResponse(stats=[sandbox_stats(LABELS, memory=memory)])
    transport.answers["ListPodSandboxStats"] = lambda _: answer
    (pod,) = answered(pod_stats(transport))
    assert pod.memory == MemoryStats(at=at(0), available_bytes=expected)


# How a runtime is set up.


def set_up(
    config: object, *conditions: cri.RuntimeCondition, driver: cri.RuntimeConfigResponse | None = None
) -> tuple[RuntimeInfo, ScriptedTransport]:
    transport = ScriptedTransport()
    status = cri.StatusResponse(
        info={"config": json.dumps(config) if config is not None else "{"},
        status=cri.RuntimeStatus(conditions=conditions),
    )
    transport.answers["Status"] = lambda _: status
    transport.answers["RuntimeConfig"] = lambda _: Unimplemented("old") if driver is None else driver
    return answered(runtime_info(transport)), transport


def test_the_settings_of_a_runtime_are_read_from_its_status() -> None:
    config = {
        "sandboxImage": "pause:3",
        "cni": {"confDir": "/net", "binDir": "/bin"},
        "containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"SystemdCgroup": True}}}},
    }
    broken = cri.RuntimeCondition(type="NetworkReady", reason="NoCni", message="no plugin")
    found, transport = set_up(config, cri.RuntimeCondition(type="RuntimeReady", status=True), broken)
    assert found == RuntimeInfo(
        cgroup_driver="systemd",
        sandbox_image="pause:3",
        network_directory="/net",
        plugin_directory="/bin",
        network_problem="no plugin",
    )
    assert transport.requests == [
        (RUNTIME + "Status", cri.StatusRequest(verbose=True), 10.0),
        (RUNTIME + "RuntimeConfig", cri.RuntimeConfigRequest(), 10.0),
    ]


@pytest.mark.parametrize("config", [{}, None, [], {"sandboxImage": 1, "cni": 2, "containerd": 3, "crio": 4}])
def test_a_runtime_without_a_readable_configuration_has_no_settings(config: object) -> None:
    assert set_up(config)[0] == RuntimeInfo()


NETWORK = {
    "a ready network": ({"status": True, "message": "fine"}, ""),
    "an unready network with a reason": ({"reason": "NoCni"}, "NoCni"),
    "an unready network without a reason": ({}, "not ready"),
}


@pytest.mark.parametrize("fields, expected", NETWORK.values(), ids=NETWORK.keys())
def test_a_network_that_is_not_ready_is_reported_with_its_message_or_reason(
    fields: dict[str, Any], expected: str
) -> None:
    assert set_up({}, cri.RuntimeCondition(type="NetworkReady", **fields))[0] == RuntimeInfo(network_problem=expected)


@pytest.mark.parametrize(
    "linux, expected",
    [
        (cri.LinuxRuntimeConfiguration(cgroup_driver=cri.SYSTEMD), "systemd"),
        (cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS), "cgroupfs"),
        (None, ""),
    ],
)
def test_the_cgroup_driver_is_requested_from_the_runtime(
    linux: cri.LinuxRuntimeConfiguration | None, expected: str
) -> None:
    answer = cri.RuntimeConfigResponse(linux=linux)
    assert set_up({}, driver=answer)[0].cgroup_driver == expected


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"systemdCgroup": False}, "cgroupfs"),
        ({"systemdCgroup": True}, "systemd"),
        ({"crio": {"CgroupManagerName": "systemd"}, "systemdCgroup": False}, "systemd"),
        ({"containerd": {"runtimes": {"": {"options": {"SystemdCgroup": False}}}}, "systemdCgroup": True}, "systemd"),
        ({"containerd": {"runtimes": {"": {"options": {"SystemdCgroup": "yes"}}}}}, "cgroupfs"),
    ],
)
def test_the_cgroup_driver_is_read_from_the_configuration(config: dict[str, Any], expected: str) -> None:
    assert set_up(config)[0].cgroup_driver == expected


STREAMS: dict[str, tuple[dict[str, Any], EventStreamKind, float]] = {
    "the CRI stream": ({"GetContainerEvents": cri.ContainerEventResponse()}, EventStreamKind.CRI, 0.0),
    "CRI's, that is silent": ({"GetContainerEvents": ...}, EventStreamKind.CRI, 0.5),
    "containerd's": ({"Subscribe": ...}, EventStreamKind.CONTAINERD, 0.5),
    "CRI's ends at once": ({"GetContainerEvents": None, "Subscribe": ...}, EventStreamKind.CONTAINERD, 0.5),
    "none": ({}, EventStreamKind.NONE, 0.0),
    "both end": ({"GetContainerEvents": None, "Subscribe": None}, EventStreamKind.NONE, 0.0),
}


@pytest.mark.parametrize("streams, expected, seconds", STREAMS.values(), ids=STREAMS.keys())
def test_the_stream_of_events_that_the_runtime_serves_is_found(
    streams: dict[str, Any], expected: EventStreamKind, seconds: float
) -> None:
    async def scenario() -> EventStreamKind:
        transport = ScriptedTransport()
        for name, first in streams.items():
            transport.streams[name] = asyncio.Queue()
            if first is not ...:
                transport.streams[name].put_nowait(first)
        return await event_stream_kind(transport)

    assert simulate(scenario())[:2] == (expected, seconds)


@pytest.mark.parametrize("image, expected", [(cri.Image(id="i"), True), (None, False)])
def test_an_image_is_present_if_the_runtime_reports_it(image: cri.Image | None, expected: bool) -> None:
    transport = ScriptedTransport()
    transport.answers["ImageStatus"] = lambda _: cri.ImageStatusResponse(image=image)
    assert answered(has_image(transport, "pause")) is expected
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image="pause"))
    assert transport.requests == [(IMAGES + "ImageStatus", request, 10.0)]


def test_the_first_file_system_with_a_mount_point_is_used(tmp_path: Path) -> None:
    transport = ScriptedTransport()
    places = ["", str(tmp_path), "/nowhere"]
    reported = [
        cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint=place), used_bytes=number(index + 5))
        for index, place in enumerate(places)
    ]
    transport.answers["ImageFsInfo"] = lambda _: cri.ImageFsInfoResponse(image_filesystems=reported)
    found = asyncio.run(_await(image_usage(transport)))
    assert found is not None
    assert found == ImageFsUsage(
        mountpoint=str(tmp_path),
        used_bytes=6,
        capacity_bytes=found.capacity_bytes,
        available_bytes=found.available_bytes,
    )
    assert 0 < found.available_bytes <= found.capacity_bytes
    assert transport.requests == [(IMAGES + "ImageFsInfo", cri.ImageFsInfoRequest(), 30.0)]


async def _await(work: Awaitable[T]) -> T:
    return await work


# Refusals.

CODED = RuntimeRefused("rpc error: code = Unknown desc = no\nspace")


def test_the_text_of_an_error_has_no_grpc_code() -> None:
    assert [message_of(each) for each in (CODED, RuntimeRefused("plain"))] == ["no\nspace", "plain"]
    assert (type(without_code(CODED)), str(without_code(CODED))) == (RuntimeRefused, "no\nspace")


NAMES = {
    'name "x" is reserved for "abc"': (True, "abc"),
    "the name is already in use by abc": (True, ""),
    "rpc error: code = Unknown desc = is reserved": (True, ""),
    "no space": (False, ""),
}


@pytest.mark.parametrize("message", NAMES)
def test_an_error_about_a_name_that_is_taken_names_its_holder(message: str) -> None:
    error = RuntimeRefused(message)
    assert (is_name_taken(error), holder_of_name(error)) == NAMES[message]


TIMEOUTS: dict[str, tuple[TryLater, bool]] = {
    "the call": (CallTimedOut("late"), True),
    "message of CRI-O": (RuntimeRefused("exec command timed out"), True),
    "message of containerd": (RuntimeRefused("timeout 1s exceeded"), True),
    "message of Go": (RuntimeRefused("context deadline exceeded"), True),
    "others": (RuntimeRefused("timeout exceeded"), False),
}


@pytest.mark.parametrize("error, expected", TIMEOUTS.values(), ids=TIMEOUTS.keys())
def test_the_errors_of_a_command_that_timed_out_are_recognised(error: TryLater, expected: bool) -> None:
    assert is_command_timeout(error) is expected


PULLS: dict[str, tuple[list[RuntimeRefused], str, str]] = {
    "an uninformative code is dropped": ([CODED], "no\nspace", "ErrImagePull"),
    "with any other code": (
        [RuntimeRefused("rpc error: code = Internal desc = no")], "rpc error: code = Internal desc = no",
        "ErrImagePull"),
    "not there": ([ObjectNotFound("gone")], "rpc error: code = NotFound desc = gone", "ErrImagePull"),
    "duplicate messages are merged": ([CODED, CODED], "no\nspace", "ErrImagePull"),
    "all that differ": ([CODED, RuntimeRefused("b")], "[no\nspace, b]", "ErrImagePull"),
    "a registry that is away": (
        [RuntimeRefused("RegistryUnavailable: x")], "RegistryUnavailable: x", "RegistryUnavailable"),
    "a wrong signature": (
        [RuntimeRefused("SignatureValidationFailed: x")], "SignatureValidationFailed: x", "SignatureValidationFailed"),
}  # fmt: skip


@pytest.mark.parametrize("errors, message, reason", PULLS.values(), ids=PULLS.keys())
def test_a_failed_pull_has_a_text_and_a_reason(errors: list[RuntimeRefused], message: str, reason: str) -> None:
    failure = pull_failure(errors)
    assert (str(failure), failure.reason) == (message, reason)


# CriImages.

ONE = '{"auths": {"r.example": {"username": "one", "password": "p1"}}}'
TWO = '{"auths": {"r.example": {"username": "two", "password": "p2"}}}'


def images(pulls: list[str | Exception], present: dict[str, str]) -> ScriptedTransport:
    transport = ScriptedTransport()

    def pull(_: object) -> Any:
        answer = pulls.pop(0)
        return answer if isinstance(answer, Exception) else cri.PullImageResponse(image_ref=answer)

    def find(request: Any) -> Any:
        found = present.get(request.image.image)
        if found == "error":
            return ObjectNotFound("gone")
        return cri.ImageStatusResponse(image=None if found is None else cri.Image(id=found))

    transport.answers = {"PullImage": pull, "ImageStatus": find}
    return transport


def test_an_image_is_pulled_with_each_secret_until_one_works() -> None:
    transport = images([CODED, "ref"], {"ref": "i"})
    assert answered(CriImages(CriCalls(transport)).pull_image("r.example/x", (ONE, TWO))).id == "i"
    requests: Any = [request for _, request, _ in transport.requests]
    assert [(each.auth.username, each.auth.password) for each in requests[:2]] == [("one", "p1"), ("two", "p2")]
    assert [each.image.image for each in requests] == ["r.example/x", "r.example/x", "ref"]


PULLED: dict[str, tuple[str, dict[str, str], str]] = {
    "found under the runtime's name": ("ref", {"ref": "i", "x": "j"}, "i"),
    "found under its own name": ("ref", {"x": "j"}, "j"),
    "found under its own name, for there is no other": ("", {"": "i", "x": "j"}, "j"),
    "found although the other name is an error": ("ref", {"ref": "error", "x": "j"}, "j"),
}


@pytest.mark.parametrize("reference, present, expected", PULLED.values(), ids=PULLED.keys())
def test_a_pulled_image_is_looked_up_by_both_its_names(reference: str, present: dict[str, str], expected: str) -> None:
    transport = images([reference], present)
    assert answered(CriImages(CriCalls(transport)).pull_image("x")).id == expected
    first: Any = transport.requests[0][1]
    assert not first.HasField("auth")


def test_a_pull_that_fails_raises_and_an_image_that_is_missing_is_none() -> None:
    transport = images(["ref", CODED, RuntimeRefused("b"), CallTimedOut("late")], {"broken": "error"})
    store = CriImages(CriCalls(transport))
    with pytest.raises(ImagePullFailed, match='image "x" was pulled, but the runtime does not have it'):
        answered(store.pull_image("x"))
    with pytest.raises(ImagePullFailed, match=r"\[no\nspace, b\]"):
        answered(store.pull_image("r.example/x", (ONE, TWO)))
    with pytest.raises(CallTimedOut):
        answered(store.pull_image("x"))
    assert [answered(store.image(name)) for name in ("gone", "broken")] == [None, None]


# Pods.


class Node(ScriptedTransport):
    """A runtime with one pod."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = [self.box("b2", 2), self.box("b1", 1)]
        self.containers = [
            self.container("c2", cri.CONTAINER_RUNNING, 2),
            self.container("c1", cri.CONTAINER_EXITED, 1),
        ]
        self.finished = 100 * SECOND
        self.ip = "192.0.2.1"
        self.answers = {
            "ListPodSandbox": lambda _: cri.ListPodSandboxResponse(items=self.boxes),
            "ListContainers": lambda _: cri.ListContainersResponse(containers=self.containers),
            "PodSandboxStatus": self._box,
            "ContainerStatus": self._container,
        }

    def box(self, name: str, attempt: int, state: Any = cri.SANDBOX_READY) -> cri.PodSandbox:
        metadata = cri.PodSandboxMetadata(attempt=attempt)
        return cri.PodSandbox(id=name, metadata=metadata, state=state, labels=LABELS, created_at=SECOND)

    def container(self, name: str, state: Any, created: int) -> cri.Container:
        return cri.Container(id=name, state=state, created_at=created, pod_sandbox_id="b2", labels=LABELS)

    def _box(self, request: Any) -> Any:
        box = next((each for each in self.boxes if each.id == request.pod_sandbox_id), None)
        if box is None or not self.ip:
            return ObjectNotFound("gone")
        network = cri.PodSandboxNetworkStatus(ip="" if self.ip == "none" else self.ip)
        status = cri.PodSandboxStatus(
            id=box.id, metadata=box.metadata, state=box.state, network=network, created_at=box.created_at
        )
        return cri.PodSandboxStatusResponse(status=status)

    def _container(self, request: Any) -> Any:
        each = next(each for each in self.containers if each.id == request.container_id)
        if each.state == cri.CONTAINER_UNKNOWN:
            return ObjectNotFound("gone")
        status = cri.ContainerStatus(
            id=each.id, state=each.state, finished_at=self.finished, created_at=each.created_at
        )
        return cri.ContainerStatusResponse(status=status)

    def new_requests(self) -> list[str]:
        """The methods and ids since the last time."""
        found = []
        for method, request, _ in self.requests:
            fields: Any = request
            name = method.rpartition("/")[2]
            if name.startswith("List"):
                found.append(f"{name} {dict(fields.filter.label_selector).get('io.kubernetes.pod.uid', '')}".strip())
            else:
                found.append(f"{name} {fields.pod_sandbox_id if 'Sandbox' in name else fields.container_id}")
        self.requests.clear()
        return sorted(found)


LISTS = ["ListContainers u", "ListPodSandbox u"]


def test_a_pod_record_is_complete_and_constant_parts_are_requested_once() -> None:
    async def scenario() -> None:
        node, index = Node(), OwnerIndex()
        inspector = PodInspector(CriCalls(node), index, VirtualClock())
        record = await inspector.pod_record(PodUID("u"))
        c2 = ContainerRecord(
            id="c2", name="", state=RecordState.RUNNING, sandbox_id="b2", created_at=at(0), started_at=at(0)
        )
        c1 = ContainerRecord(
            id="c1",
            name="",
            state=RecordState.EXITED,
            sandbox_id="b2",
            created_at=at(0),
            started_at=at(0),
            finished_at=at(100),
        )
        b2 = SandboxRecord(id="b2", ready=True, attempt=2, ip="192.0.2.1", created_at=at(1))
        b1 = SandboxRecord(id="b1", ready=True, attempt=1, created_at=at(1))
        assert record == PodRecord(
            uid="u",
            name="web",
            namespace="ns",
            ips=("192.0.2.1",),
            sandboxes=(b2, b1),
            containers=(c2, c1),
        )
        statuses = ["ContainerStatus c1", "ContainerStatus c2"]
        assert node.new_requests() == [*statuses, *LISTS, "PodSandboxStatus b2"]
        assert await inspector.pod_record(PodUID("u")) == record
        assert node.new_requests() == LISTS
        inspector.forget("c1")
        inspector.forget("b2")
        inspector.forget("unknown")
        assert await inspector.pod_record(PodUID("u")) == record
        assert node.new_requests() == ["ContainerStatus c1", *LISTS, "PodSandboxStatus b2"]
        owners = [index.get(name) for name in ("b2", "b1", "c1")]
        assert owners == [Owner(PodUID("u"), kind) for kind in (Kind.SANDBOX, Kind.SANDBOX, Kind.CONTAINER)]

    simulate(scenario())


def test_changed_objects_are_requested_again() -> None:
    async def scenario() -> None:
        node, clock = Node(), VirtualClock()
        inspector = PodInspector(CriCalls(node), OwnerIndex(), clock)
        now = int(clock.now().timestamp() * SECOND)
        node.finished = now - 5 * SECOND
        node.ip = "none"
        for _ in range(2):  # five seconds after an end, and without an address
            await inspector.pod_record(PodUID("u"))
            assert {"ContainerStatus c1", "PodSandboxStatus b2"} <= set(node.new_requests())
        node.finished -= 1000
        node.ip = "192.0.2.9"
        await inspector.pod_record(PodUID("u"))
        node.requests.clear()
        await inspector.pod_record(PodUID("u"))
        assert node.new_requests() == LISTS
        node.containers[0] = node.container("c2", cri.CONTAINER_EXITED, 2)
        node.boxes[0] = node.box("b2", 2, cri.SANDBOX_NOTREADY)
        record = await inspector.pod_record(PodUID("u"))
        assert node.new_requests() == ["ContainerStatus c2", *LISTS, "PodSandboxStatus b2"]
        assert (record.ips, record.containers[0].state) == ((), RecordState.EXITED)

    simulate(scenario())


def test_objects_removed_between_a_list_and_a_status_are_skipped() -> None:
    async def scenario() -> None:
        node = Node()
        inspector = PodInspector(CriCalls(node), OwnerIndex(), VirtualClock())
        node.containers[0] = node.container("c2", cri.CONTAINER_UNKNOWN, 2)
        node.ip = ""
        record = await inspector.pod_record(PodUID("u"))
        assert [[each.id for each in part] for part in (record.sandboxes, record.containers)] == [["b1"], ["c1"]]
        node.containers = node.containers[:1]
        assert (await inspector.pod_record(PodUID("u"))).containers == ()
        node.boxes, node.containers = [], [node.container("c3", cri.CONTAINER_CREATED, 1)]
        record = await inspector.pod_record(PodUID("u"))
        assert (record.name, [each.id for each in record.containers]) == ("web", ["c3"])
        node.containers = []
        assert await inspector.pod_record(PodUID("u")) == PodRecord(uid="u", name="", namespace="")

    simulate(scenario())


def test_a_list_drops_cached_records_of_removed_objects() -> None:
    async def scenario() -> None:
        node = Node()
        inspector = PodInspector(CriCalls(node), OwnerIndex(), VirtualClock())
        await inspector.pod_record(PodUID("u"))
        assert [pod.uid for pod in await inspector.list_pods()] == ["u"]
        node.requests.clear()
        await inspector.pod_record(PodUID("u"))
        assert node.new_requests() == LISTS  # it is still cached
        boxes, containers = node.boxes, node.containers
        node.boxes, node.containers = [], []
        assert await inspector.list_pods() == ()
        assert node.new_requests() == ["ListContainers", "ListPodSandbox"]
        node.boxes, node.containers = boxes, containers
        await inspector.pod_record(PodUID("u"))
        assert len(node.new_requests()) == 5

    simulate(scenario())


def test_the_time_of_the_last_inspection_is_recorded() -> None:
    async def scenario() -> None:
        node = Node()
        inspector = PodInspector(CriCalls(node), OwnerIndex(), VirtualClock())
        assert not inspector.inspected_since(PodUID("u"), 0.0)
        await asyncio.sleep(5)
        await inspector.pod_record(PodUID("u"))
        assert [inspector.inspected_since(PodUID("u"), moment) for moment in (4.9, 5.0, 5.1)] == [True, False, False]
        assert not inspector.inspected_since(PodUID("v"), 1.0)
        node.boxes, node.containers = [], []
        await inspector.list_pods()
        assert not inspector.inspected_since(PodUID("u"), 4.9)

    simulate(scenario())


def test_a_runtime_that_cannot_be_reached_is_an_error() -> None:
    transport = ScriptedTransport()
    transport.answers["Status"] = lambda _: RuntimeUnavailable("away")
    with pytest.raises(RuntimeUnavailable):
        answered(runtime_info(transport))
