"""What pods use, as the runtime counts it.

    ListPodSandboxStats -> PodStats, with the network and all in the pod
       `-- not to be had --> ListContainerStats -> PodStats with its containers alone

Older runtimes do not have the first, or refuse all of it when one sandbox is just ending. Only what belongs to a pod
appears. The Go ancestor is pkg/kubelet/stats/cri_stats_provider.go.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from google.protobuf.message import Message

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodUID
from podkeeper.model.stats import (
    ContainerStats,
    CpuStats,
    FileSystemStats,
    InterfaceStats,
    MemoryStats,
    PodStats,
)
from podkeeper.runtimes.cri.records import instant
from podkeeper.runtimes.cri.requests.labels import CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Transport

SECONDS: Final = 30.0
_NO_LIMIT: Final = 2**62
_PODS: Final = "/runtime.v1.RuntimeService/ListPodSandboxStats"
_CONTAINERS: Final = "/runtime.v1.RuntimeService/ListContainerStats"


async def pod_stats(transport: Transport, uid: PodUID | None = None) -> Sequence[PodStats]:
    """What all pods use, or one; who is not there does not appear. Raises TryLater."""
    selector = {} if uid is None else {POD_UID: uid}
    try:
        pods = cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(label_selector=selector))
        answer = await transport.unary(_PODS, pods, cri.ListPodSandboxStatsResponse, SECONDS)
    except RuntimeRefused:
        containers = cri.ListContainerStatsRequest(filter=cri.ContainerStatsFilter(label_selector=selector))
        listed = await transport.unary(_CONTAINERS, containers, cri.ListContainerStatsResponse, SECONDS)
        return pods_of_containers(listed.stats)
    told = (pod_of_sandbox(each) for each in answer.stats if each.attributes.labels.get(POD_UID))
    return tuple(pod for pod in told if pod.cpu or pod.memory or pod.containers)  # CRI-O lists what is stopped, too


def pod_of_sandbox(told: cri.PodSandboxStats) -> PodStats:
    """A pod as its sandbox's stats tell."""
    labels, linux = told.attributes.labels, told.linux
    return PodStats(
        uid=labels.get(POD_UID, ""),
        name=labels.get(POD_NAME, ""),
        namespace=labels.get(POD_NAMESPACE, ""),
        cpu=_cpu(linux.cpu) if linux.HasField("cpu") else None,
        memory=_memory(linux.memory) if linux.HasField("memory") else None,
        processes=_value(linux.process, "process_count"),
        interfaces=tuple(_interfaces(linux.network)),
        containers=tuple(map(container_of, linux.containers)),
    )


def pods_of_containers(told: Iterable[cri.ContainerStats]) -> tuple[PodStats, ...]:
    """Pods as their containers' stats tell."""
    pods: dict[tuple[str, str, str], list[ContainerStats]] = {}
    for each in told:
        labels = each.attributes.labels
        if uid := labels.get(POD_UID):
            key = uid, labels.get(POD_NAME, ""), labels.get(POD_NAMESPACE, "")
            pods.setdefault(key, []).append(container_of(each))
    return tuple(
        PodStats(uid=uid, name=name, namespace=namespace, containers=tuple(containers))
        for (uid, name, namespace), containers in pods.items()
    )


def container_of(told: cri.ContainerStats) -> ContainerStats:
    """A container as its stats tell."""
    about = told.attributes
    return ContainerStats(
        id=about.id,
        name=about.labels.get(CONTAINER_NAME) or about.metadata.name,
        cpu=_cpu(told.cpu) if told.HasField("cpu") else None,
        memory=_memory(told.memory) if told.HasField("memory") else None,
        writable_layer=_layer(told.writable_layer) if told.HasField("writable_layer") else None,
    )


# Parts.


def _cpu(told: cri.CpuUsage) -> CpuStats:
    return CpuStats(
        at=instant(told.timestamp),
        total_nanoseconds=_value(told, "usage_core_nano_seconds"),
        nanocores=_value(told, "usage_nano_cores"),
    )


def _memory(told: cri.MemoryUsage) -> MemoryStats:
    return MemoryStats(
        at=instant(told.timestamp),
        working_set_bytes=_value(told, "working_set_bytes"),
        usage_bytes=_value(told, "usage_bytes"),
        rss_bytes=_value(told, "rss_bytes"),
        available_bytes=_available(_value(told, "available_bytes")),
        page_faults=_value(told, "page_faults"),
        major_page_faults=_value(told, "major_page_faults"),
    )


def _available(told: int | None) -> int | None:
    """What is left of a limit; where there is none, containerd says 0, and CRI-O what cgroup v1 has for it: 8 EiB."""
    return told if told and told < _NO_LIMIT else None


def _layer(told: cri.FilesystemUsage) -> FileSystemStats:
    return FileSystemStats(
        mountpoint=told.fs_id.mountpoint,
        used_bytes=_value(told, "used_bytes"),
        inodes_used=_value(told, "inodes_used"),
    )


def _interfaces(told: cri.NetworkUsage) -> Iterator[InterfaceStats]:
    first = (told.default_interface,) if told.HasField("default_interface") else ()
    for each in (*first, *told.interfaces):
        yield InterfaceStats(
            name=each.name,
            received_bytes=_value(each, "rx_bytes"),
            received_errors=_value(each, "rx_errors"),
            sent_bytes=_value(each, "tx_bytes"),
            sent_errors=_value(each, "tx_errors"),
        )


def _value(told: Message, name: str) -> int | None:
    """A number that may be missing."""
    if not told.HasField(name):
        return None
    number: int = getattr(told, name).value
    return number
