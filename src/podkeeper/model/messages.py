"""Messages between the engine's modules, named as in the kubelet."""

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
    """The operation of a pod update."""

    SET = "SET"
    ADD = "ADD"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    REMOVE = "REMOVE"
    RECONCILE = "RECONCILE"


class PodUpdate(msgspec.Struct, frozen=True):
    """A change of the desired pods, from a source to the storage and from there to the loop."""

    op: Op
    pods: tuple[Pod, ...]
    source: str


class LifecycleEventType(StrEnum):
    """A change of a container or sandbox that PLEG detected."""

    CONTAINER_STARTED = "ContainerStarted"
    CONTAINER_DIED = "ContainerDied"
    CONTAINER_REMOVED = "ContainerRemoved"
    CONTAINER_CHANGED = "ContainerChanged"
    POD_SYNC = "PodSync"


class LifecycleEvent(msgspec.Struct, frozen=True):
    """A change in a pod. `data` is the id of the container or sandbox."""

    uid: PodUID
    type: LifecycleEventType
    data: str = ""


class ProbeKind(StrEnum):
    LIVENESS = "liveness"
    READINESS = "readiness"
    STARTUP = "startup"


class ProbeResult(StrEnum):
    """The result that a probe worker stores for a container."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeUpdate(msgspec.Struct, frozen=True):
    """A probe's stored result changed. `container_id` has the API's format."""

    kind: ProbeKind
    uid: PodUID
    container_id: str
    result: ProbeResult


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class PodEvent(msgspec.Struct, frozen=True):
    """An event to record about a pod."""

    type: EventType
    reason: str
    message: str
    uid: str = ""
    container_path: str = ""  # `spec.containers{web}` if the event is about one container
