"""Convert CRI messages to the records of the runtime port.

    PodSandbox, Container (lists)              -> PodRecord with IDs and states
    PodSandboxStatus, ContainerStatus          -> SandboxRecord, ContainerRecord with everything else

An object belongs to a pod if it has the label `io.kubernetes.pod.uid`, whichever agent created it. So pods of a kubelet
are read like our own. Objects without the label are ignored. This module does no I/O: the termination message is an
argument. Kubelet counterparts: `getPods`, `GetPodStatus` and `toKubeContainerStatus` in kuberuntime.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from msgspec.structs import replace

from podkeeper.model.runtime import (
    ActualResources,
    ContainerRecord,
    ImageRecord,
    LinuxUser,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.runtimes.cri.requests.labels import (
    CONTAINER_NAME,
    HASH,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    RESTART_COUNT,
    TERMINATION_MESSAGE_PATH,
    TERMINATION_MESSAGE_POLICY,
)
from podkeeper.runtimes.cri.schema import cri

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STATES: Final = {
    cri.CONTAINER_CREATED: RecordState.CREATED,
    cri.CONTAINER_RUNNING: RecordState.RUNNING,
    cri.CONTAINER_EXITED: RecordState.EXITED,
}
_SHARES_PER_CPU: Final = 1024
# The kernel's minimum, which the kubelet writes for "no CPU request".
_MIN_SHARES: Final = 2
_FALLBACK_TO_LOGS: Final = "FallbackToLogsOnError"
# The kubelet's exception: such a container never ran, so its log does not contain the reason.
_CANNOT_RUN: Final = "ContainerCannotRun"


def instant(nanoseconds: int) -> datetime:
    """Return the time of nanoseconds since 1970."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


# Lists.


def listed_pods(sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]) -> tuple[PodRecord, ...]:
    """Return all pods in two lists with IDs and states. Newest objects first."""
    pods: dict[str, tuple[Mapping[str, str], list[SandboxRecord], list[ContainerRecord]]] = {}
    for box in sandboxes_by_age(sandboxes):
        if uid := box.labels.get(POD_UID):
            pods.setdefault(uid, (box.labels, [], []))[1].append(listed_sandbox(box))
    for container in containers_by_age(containers):
        if uid := container.labels.get(POD_UID):
            pods.setdefault(uid, (container.labels, [], []))[2].append(listed_container(container))
    return tuple(pod_record(uid, labels, boxes, made) for uid, (labels, boxes, made) in pods.items())


def pod_record(
    uid: str, labels: Mapping[str, str], sandboxes: Iterable[SandboxRecord], containers: Iterable[ContainerRecord]
) -> PodRecord:
    """Return a pod of sorted parts. Its addresses are those of its newest sandbox while it is ready."""
    boxes = tuple(sandboxes)
    return PodRecord(
        uid=uid,
        name=labels.get(POD_NAME, ""),
        namespace=labels.get(POD_NAMESPACE, ""),
        ips=_addresses(boxes[0]) if boxes and boxes[0].ready else (),
        sandboxes=boxes,
        containers=tuple(containers),
    )


def sandboxes_by_age(sandboxes: Iterable[cri.PodSandbox]) -> list[cri.PodSandbox]:
    """Sort by attempt, then by creation time, newest first."""
    return sorted(sandboxes, key=lambda box: (-box.metadata.attempt, -box.created_at, box.id))


def containers_by_age(containers: Iterable[cri.Container]) -> list[cri.Container]:
    """Sort by creation time, newest first."""
    return sorted(containers, key=lambda container: (-container.created_at, container.id))


def listed_sandbox(box: cri.PodSandbox) -> SandboxRecord:
    return SandboxRecord(
        id=box.id,
        ready=box.state == cri.SANDBOX_READY,
        attempt=box.metadata.attempt,
        created_at=instant(box.created_at),
    )


def listed_state(container: cri.Container) -> RecordState:
    return _STATES.get(container.state, RecordState.UNKNOWN)


def listed_container(container: cri.Container) -> ContainerRecord:
    return ContainerRecord(
        id=container.id,
        name=_container_name(container.labels, container.metadata),
        state=listed_state(container),
        image=container.image.image,
        image_id=container.image_id or container.image_ref,
        image_ref=container.image_ref,
        spec_hash=container.annotations.get(HASH, ""),
        sandbox_id=container.pod_sandbox_id,
        restart_count=_number(container.annotations.get(RESTART_COUNT)),
        created_at=instant(container.created_at),
    )


# Statuses.


def sandbox_record(status: cri.PodSandboxStatus) -> SandboxRecord:
    network = status.network if status.HasField("network") else None
    return SandboxRecord(
        id=status.id,
        ready=status.state == cri.SANDBOX_READY,
        attempt=status.metadata.attempt,
        network=_network_mode(status),
        ip=None if network is None else network.ip,
        additional_ips=() if network is None else tuple(each.ip for each in network.additional_ips),
        created_at=instant(status.created_at),
    )


def container_record(status: cri.ContainerStatus, sandbox_id: str, termination_message: str = "") -> ContainerRecord:
    """Return the record of a container. `termination_message` is appended to the runtime's message."""
    state = _STATES.get(status.state, RecordState.UNKNOWN)
    record = ContainerRecord(
        id=status.id,
        name=_container_name(status.labels, status.metadata),
        state=state,
        image=status.image.image,
        image_id=status.image_id or status.image_ref,
        image_ref=status.image_ref,
        spec_hash=status.annotations.get(HASH, ""),
        sandbox_id=sandbox_id,
        restart_count=_number(status.annotations.get(RESTART_COUNT)),
        created_at=instant(status.created_at),
        # A container that could not be started has no start time. Report 1970, as the kubelet does.
        started_at=None if state is RecordState.CREATED else instant(status.started_at),
        resources=_resources(status),
        user=_user(status),
    )
    if state is not RecordState.EXITED:
        return record
    return replace(
        record,
        # containerd records the start after its call has returned, which may be after the exit.
        finished_at=instant(max(status.started_at, status.finished_at)),
        exit_code=status.exit_code,
        reason=status.reason,
        message=": ".join(filter(None, (status.message, termination_message))),
    )


def termination_log_of(status: cri.ContainerStatus) -> str:
    """Return the host path of a container's termination message file. "" if there is none."""
    wanted = status.annotations.get(TERMINATION_MESSAGE_PATH, "")
    if not wanted:
        return ""
    path = wanted if wanted.startswith("/") else f"/{wanted}"
    return next((mount.host_path for mount in status.mounts if mount.container_path == path), "")


def may_use_log(status: cri.ContainerStatus) -> bool:
    """Return whether the end of the log may serve as termination message: it failed, and its spec allows it."""
    return (
        status.annotations.get(TERMINATION_MESSAGE_POLICY) == _FALLBACK_TO_LOGS
        and status.exit_code != 0
        and status.reason != _CANNOT_RUN
    )


def image_record(image: cri.Image) -> ImageRecord:
    return ImageRecord(
        id=image.id,
        tags=tuple(image.repo_tags),
        digests=tuple(image.repo_digests),
        size_bytes=image.size,
        user=str(image.uid.value) if image.HasField("uid") else image.username,
        pinned=image.pinned,
    )


# Parts.


def _container_name(labels: Mapping[str, str], metadata: cri.ContainerMetadata) -> str:
    return labels.get(CONTAINER_NAME) or metadata.name


def _number(text: str | None) -> int:
    """Return the count in an annotation. 0 if it is not a number, as in the kubelet."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _network_mode(status: cri.PodSandboxStatus) -> NetworkMode | None:
    if not status.linux.namespaces.HasField("options"):
        return None
    return NetworkMode.NODE if status.linux.namespaces.options.network == cri.NODE else NetworkMode.POD


def _addresses(box: SandboxRecord) -> tuple[str, ...]:
    """Return the addresses of a sandbox, primary first. Empty if one is invalid, as in the kubelet."""
    found = tuple(filter(None, (box.ip, *box.additional_ips)))
    return found if all(map(_is_address, found)) else ()


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _resources(status: cri.ContainerStatus) -> ActualResources | None:
    """Return the actual resources of a container. Runtimes do not report memory requests."""
    linux = status.resources.linux
    cpu_limit = linux.cpu_quota * 1000 // linux.cpu_period if linux.cpu_period > 0 and linux.cpu_quota > 0 else 0
    # Round up, because the conversion to shares rounds down.
    cpu_request = -(-linux.cpu_shares * 1000 // _SHARES_PER_CPU) if linux.cpu_shares >= _MIN_SHARES else 0
    memory_limit = max(0, linux.memory_limit_in_bytes)
    if not (cpu_limit or cpu_request or memory_limit):
        return None
    return ActualResources(
        cpu_limit_milli=cpu_limit or None,
        cpu_request_milli=cpu_request or None,
        memory_limit_bytes=memory_limit or None,
    )


def _user(status: cri.ContainerStatus) -> LinuxUser | None:
    if not status.user.HasField("linux"):
        return None
    user = status.user.linux
    return LinuxUser(uid=user.uid, gid=user.gid, supplemental_groups=tuple(user.supplemental_groups))
