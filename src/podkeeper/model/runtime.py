"""Records of a runtime's sandboxes, containers and images, as in the CRI.

Ids are the runtime's own. `api_container_id` returns the API's format (`containerd://id`). Times are aware UTC
datetimes. None: the event has not happened, or its time is unknown.
"""

from datetime import datetime
from enum import StrEnum

import msgspec


class RecordState(StrEnum):
    """The state of a container that the runtime reports."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class NetworkMode(StrEnum):
    """The network namespace of a sandbox."""

    POD = "pod"
    NODE = "node"


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox, the environment that a pod's containers share."""

    id: str
    ready: bool
    attempt: int = 0
    network: NetworkMode | None = None
    ip: str | None = None  # None: no network information; "": no address
    additional_ips: tuple[str, ...] = ()
    created_at: datetime | None = None


class ActualResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a container or pod really has, as read from the machine. None: unknown."""

    cpu_request_milli: int | None = None
    cpu_limit_milli: int | None = None
    memory_request_bytes: int | None = None
    memory_limit_bytes: int | None = None


class LinuxUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a container's first process."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One container, running or not. `restart_count` is the attempt number it was created with."""

    id: str
    name: str
    state: RecordState
    image: str = ""
    image_id: str = ""  # the runtime's id
    image_ref: str = ""  # shown in the status: usually the name with its digest; "": show the id
    spec_hash: str = ""  # hash of the spec it was created from
    sandbox_id: str = ""  # "": unknown, treated as the newest
    restart_count: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    resources: ActualResources | None = None
    user: LinuxUser | None = None


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the runtime reports about one pod. Both lists are newest first."""

    uid: str
    name: str = ""
    namespace: str = ""
    ips: tuple[str, ...] = ()
    sandboxes: tuple[SandboxRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()

    def container(self, name: str) -> ContainerRecord | None:
        """Return the newest container of that name."""
        return next((record for record in self.containers if record.name == name), None)


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One image on the node."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    size_bytes: int = 0
    user: str = ""
    pinned: bool = False


class ImageFsUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of the file system that holds images."""

    mountpoint: str
    used_bytes: int  # by images
    capacity_bytes: int
    available_bytes: int


def api_container_id(runtime_name: str, container_id: str) -> str:
    """Return the id in the API's format."""
    return f"{runtime_name}://{container_id}"


def bare_container_id(api_id: str) -> str:
    """Return the runtime's id from the API's format."""
    return api_id.partition("://")[2] if "://" in api_id else api_id
