"""What the rooms tell each other: small frozen values, named as the kubelet names them."""

from enum import StrEnum
from typing import NewType

import msgspec

from podkeeper.model.k8s.core import Pod

PodUID = NewType("PodUID", str)

FILE_SOURCE = "file"
HTTP_SOURCE = "http"
API_SOURCE = "api"
ALL_SOURCES = "*"

CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
CONFIG_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
CONFIG_FIRST_SEEN_ANNOTATION = "kubernetes.io/config.seen"
CONFIG_HASH_ANNOTATION = "kubernetes.io/config.hash"


class Op(StrEnum):
    """What a source, or the storage, says about some pods."""

    SET = "SET"
    ADD = "ADD"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    REMOVE = "REMOVE"
    RECONCILE = "RECONCILE"


class PodUpdate(msgspec.Struct, frozen=True):
    """A change of the desired pods: from a source to the storage, and from there to the loop."""

    op: Op
    pods: tuple[Pod, ...]
    source: str


class LifecycleEventType(StrEnum):
    """What PLEG saw happen to a container or sandbox."""

    CONTAINER_STARTED = "ContainerStarted"
    CONTAINER_DIED = "ContainerDied"
    CONTAINER_REMOVED = "ContainerRemoved"
    CONTAINER_CHANGED = "ContainerChanged"
    POD_SYNC = "PodSync"


class LifecycleEvent(msgspec.Struct, frozen=True):
    """Something happened in a pod; `data` is the container's or sandbox's id."""

    uid: PodUID
    type: LifecycleEventType
    data: str = ""


class ProbeKind(StrEnum):
    """What a probe is asked for."""

    LIVENESS = "liveness"
    READINESS = "readiness"
    STARTUP = "startup"


class ProbeResult(StrEnum):
    """What a probe worker stores for a container."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeUpdate(msgspec.Struct, frozen=True):
    """A probe's stored result for a container changed; `container_id` is the one the API shows."""

    kind: ProbeKind
    uid: PodUID
    container_id: str
    result: ProbeResult


class EventType(StrEnum):
    """How serious a recorded event is."""

    NORMAL = "Normal"
    WARNING = "Warning"


class PodEvent(msgspec.Struct, frozen=True):
    """An event to be recorded about a pod."""

    type: EventType
    reason: str
    message: str
    uid: str = ""
    container_path: str = ""  # `spec.containers{web}` when the event is about one container
