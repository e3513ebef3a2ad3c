"""Records of what a runtime has: sandboxes, containers, images, as CRI describes them.

Ids are the runtime's own; `api_container_id` makes the form the API shows (`containerd://id`).
Times are aware UTC datetimes; None means that the thing has not happened (or is not known).
"""

from datetime import datetime
from enum import StrEnum

import msgspec


class ContainerState(StrEnum):
    """Where a container stands, as the runtime sees it."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class NetworkMode(StrEnum):
    """Whose network namespace a sandbox uses."""

    POD = "pod"
    NODE = "node"


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox: what a pod's containers share."""

    id: str
    ready: bool
    attempt: int = 0
    network: NetworkMode | None = None
    ip: str | None = None  # None: no network information; "": no address
    additional_ips: tuple[str, ...] = ()
    created_at: datetime | None = None


class ActualResources(msgspec.Struct, frozen=True, kw_only=True):
    """What a container or pod really gets, read back from the machine; None: not told."""

    cpu_request_milli: int | None = None
    cpu_limit_milli: int | None = None
    memory_request_bytes: int | None = None
    memory_limit_bytes: int | None = None


class LinuxUser(msgspec.Struct, frozen=True, kw_only=True):
    """Who a container's first process runs as."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One container, running or not; `restart_count` is the attempt number it was created with."""

    id: str
    name: str
    state: ContainerState
    image: str = ""
    image_id: str = ""  # what the runtime goes by
    image_ref: str = ""  # what is shown: mostly the name with its digest; "": the id
    spec_hash: str = ""  # of the container spec it was created from
    sandbox_id: str = ""  # "": not told, taken to be the newest
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
    """All that a runtime knows of one pod; both lists newest first."""

    uid: str
    name: str = ""
    namespace: str = ""
    ips: tuple[str, ...] = ()
    sandboxes: tuple[SandboxRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()

    def container(self, name: str) -> ContainerRecord | None:
        """The newest container of that name."""
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
    """The file system that images lie on, and how full it is."""

    mountpoint: str
    used_bytes: int  # by images
    capacity_bytes: int
    available_bytes: int


def api_container_id(runtime_name: str, container_id: str) -> str:
    """The id as the API shows it."""
    return f"{runtime_name}://{container_id}"


def bare_container_id(api_id: str) -> str:
    """The runtime's own id from the one the API shows."""
    return api_id.partition("://")[2] if "://" in api_id else api_id
