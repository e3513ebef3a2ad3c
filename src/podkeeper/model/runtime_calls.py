"""What the engine hands to a runtime, and what a runtime tells unasked."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID


class Dns(msgspec.Struct, frozen=True, kw_only=True):
    """How names are looked up in a pod."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class SandboxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to be made. The pod's spec says the rest (host namespaces, sysctls, ports)."""

    pod: Pod
    attempt: int
    hostname: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""
    dns: Dns | None = None  # None: as the runtime does it


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path that appears in a container."""

    container_path: str
    host_path: str
    volume: str = ""  # its name in the pod's spec
    sub_path: str = ""  # the part of it that appears; whoever mounts it lets no symbolic link lead out
    read_only: bool = False
    recursive_read_only: str = ""  # as the spec spells it; empty: not said
    propagation: str = ""  # as the spec spells it; empty: none


class ContainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A container to be made: its spec, and what was worked out from it."""

    pod: Pod
    container: Container | EphemeralContainer
    attempt: int  # its restart count
    image: str  # the image's id, as the runtime knows it
    image_user: str = ""  # whom the image wants its process to run as: an id, a name, or nobody in particular
    spec_hash: str
    command: tuple[str, ...] = ()  # `$(NAME)` expanded
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    log_path: str = ""  # below the sandbox's log directory
    pod_ips: tuple[str, ...] = ()
    target_id: str = ""  # of the container whose processes it shares; only for ephemeral containers


class RuntimeEventType(StrEnum):
    """What happened to a container or a sandbox."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


class RuntimeEvent(msgspec.Struct, frozen=True):
    """Something happened to a container (or a sandbox) of a pod; whoever wants to know more must look."""

    uid: PodUID
    container_id: str
    type: RuntimeEventType
    at: datetime


class RuntimeHealth(msgspec.Struct, frozen=True):
    """How a runtime says it is."""

    runtime_ready: bool = True
    network_ready: bool = True
    message: str = ""
