"""Parameters of runtime calls, and events that a runtime sends."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID


class Dns(msgspec.Struct, frozen=True, kw_only=True):
    """DNS settings of a pod."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class SandboxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to create. The pod's spec contains the rest (host namespaces, sysctls, ports)."""

    pod: Pod
    attempt: int
    hostname: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""
    dns: Dns | None = None  # None: the runtime's default


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path to mount into a container."""

    container_path: str
    host_path: str
    volume: str = ""  # its name in the pod's spec
    sub_path: str = ""  # the runtime must not follow symbolic links out of the volume
    read_only: bool = False
    recursive_read_only: str = ""  # as in the spec; "": unset
    propagation: str = ""  # as in the spec; "": none


class ContainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A container to create: its spec, and values computed from it."""

    pod: Pod
    container: Container | EphemeralContainer
    attempt: int  # the restart count
    image: str  # the runtime's id of the image
    image_user: str = ""  # the image's user: an id, a name, or "" for none
    spec_hash: str
    command: tuple[str, ...] = ()  # `$(NAME)` expanded
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    log_path: str = ""  # relative to the sandbox's log directory
    pod_ips: tuple[str, ...] = ()
    target_id: str = ""  # the container whose process namespace an ephemeral container shares


class RuntimeEventType(StrEnum):
    """A change of a container or sandbox."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


class RuntimeEvent(msgspec.Struct, frozen=True):
    """A change of a container or sandbox of a pod. For details, inspect the pod."""

    uid: PodUID
    container_id: str
    type: RuntimeEventType
    at: datetime


class RuntimeHealth(msgspec.Struct, frozen=True):
    """The health that a runtime reports about itself."""

    runtime_ready: bool = True
    network_ready: bool = True
    message: str = ""
