"""Resource usage of pods, as the runtime reports it.

    ListPodSandboxStats -> PodStats with network and containers
       `-- refused --> ListContainerStats -> PodStats with containers only

Older runtimes do not have the first call. Some refuse the whole call while one sandbox terminates. Containers without a
pod are skipped. Kubelet counterpart: pkg/kubelet/stats/cri_stats_provider.go.
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
    """Return the usage of all pods, or of one. Raises TryLater."""
    selector = {} if uid is None else {POD_UID: uid}
    try:
        pods = cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(label_selector=selector))
        answer = await transport.unary(_PODS, pods, cri.ListPodSandboxStatsResponse, SECONDS)
    except RuntimeRefused:
        containers = cri.ListContainerStatsRequest(filter=cri.ContainerStatsFilter(label_selector=selector))
        listed = await transport.unary(_CONTAINERS, containers, cri.ListContainerStatsResponse, SECONDS)
        return pods_of_containers(listed.stats)
    found = (pod_of_sandbox(each) for each in answer.stats if each.attributes.labels.get(POD_UID))
    return tuple(pod for pod in found if pod.cpu or pod.memory or pod.containers)  # CRI-O lists stopped pods, too


def pod_of_sandbox(stats: cri.PodSandboxStats) -> PodStats:
    labels, linux = stats.attributes.labels, stats.linux
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


def pods_of_containers(stats: Iterable[cri.ContainerStats]) -> tuple[PodStats, ...]:
    pods: dict[tuple[str, str, str], list[ContainerStats]] = {}
    for each in stats:
        labels = each.attributes.labels
        if uid := labels.get(POD_UID):
            key = uid, labels.get(POD_NAME, ""), labels.get(POD_NAMESPACE, "")
            pods.setdefault(key, []).append(container_of(each))
    return tuple(
        PodStats(uid=uid, name=name, namespace=namespace, containers=tuple(containers))
        for (uid, name, namespace), containers in pods.items()
    )


def container_of(stats: cri.ContainerStats) -> ContainerStats:
    about = stats.attributes
    return ContainerStats(
        id=about.id,
        name=about.labels.get(CONTAINER_NAME) or about.metadata.name,
        cpu=_cpu(stats.cpu) if stats.HasField("cpu") else None,
        memory=_memory(stats.memory) if stats.HasField("memory") else None,
        writable_layer=_layer(stats.writable_layer) if stats.HasField("writable_layer") else None,
    )


# Parts.


def _cpu(stats: cri.CpuUsage) -> CpuStats:
    return CpuStats(
        at=instant(stats.timestamp),
        total_nanoseconds=_value(stats, "usage_core_nano_seconds"),
        nanocores=_value(stats, "usage_nano_cores"),
    )


def _memory(stats: cri.MemoryUsage) -> MemoryStats:
    return MemoryStats(
        at=instant(stats.timestamp),
        working_set_bytes=_value(stats, "working_set_bytes"),
        usage_bytes=_value(stats, "usage_bytes"),
        rss_bytes=_value(stats, "rss_bytes"),
        available_bytes=_available(_value(stats, "available_bytes")),
        page_faults=_value(stats, "page_faults"),
        major_page_faults=_value(stats, "major_page_faults"),
    )


def _available(stats: int | None) -> int | None:
    """Return the bytes left below a memory limit, or None.

    Without a limit, containerd reports 0, and CRI-O reports the 8 EiB of cgroup v1.
    """
    return stats if stats and stats < _NO_LIMIT else None


def _layer(stats: cri.FilesystemUsage) -> FileSystemStats:
    return FileSystemStats(
        mountpoint=stats.fs_id.mountpoint,
        used_bytes=_value(stats, "used_bytes"),
        inodes_used=_value(stats, "inodes_used"),
    )


def _interfaces(stats: cri.NetworkUsage) -> Iterator[InterfaceStats]:
    first = (stats.default_interface,) if stats.HasField("default_interface") else ()
    for each in (*first, *stats.interfaces):
        yield InterfaceStats(
            name=each.name,
            received_bytes=_value(each, "rx_bytes"),
            received_errors=_value(each, "rx_errors"),
            sent_bytes=_value(each, "tx_bytes"),
            sent_errors=_value(each, "tx_errors"),
        )


def _value(stats: Message, name: str) -> int | None:
    """Return an optional number."""
    if not stats.HasField(name):
        return None
    number: int = getattr(stats, name).value
    return number
