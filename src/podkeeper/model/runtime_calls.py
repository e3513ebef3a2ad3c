"""What the engine hands to a runtime, and what a runtime tells unasked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """A sandbox to be made. The pod's spec says the rest (host namespaces, sysctls, ports, DNS)."""

    pod: Pod
    attempt: int
    hostname: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that appears in a container."""

    container_path: str
    host_path: str
    read_only: bool = False
    propagation: str = ""  # as the spec spells it; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """A container to be made: its spec, and what was worked out from it."""

    pod: Pod
    container: Container | EphemeralContainer
    attempt: int  # its restart count
    image: str  # the image's id, as the runtime knows it
    spec_hash: str
    command: tuple[str, ...] = ()  # `$(NAME)` expanded
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    log_path: str = ""  # below the sandbox's log directory


class RuntimeEventType(StrEnum):
    """What happened to a container or a sandbox."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class RuntimeEvent:
    """Something happened to a container (or a sandbox) of a pod; whoever wants to know more must look."""

    uid: PodUID
    container_id: str
    type: RuntimeEventType
    at: datetime


@dataclass(frozen=True, slots=True)
class RuntimeHealth:
    """How a runtime says it is."""

    runtime_ready: bool = True
    network_ready: bool = True
    message: str = ""
