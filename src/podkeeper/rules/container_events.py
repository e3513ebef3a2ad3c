"""Events about one container, in the words that people and tools know.

A pod, a container's name and what happened come in; a `PodEvent` goes out. A container's id never stands in a
message: it is replaced by the name, or the same event would be another one each time. The Go ancestors are
`recordContainerEvent` in pkg/kubelet/kuberuntime and pkg/kubelet/events.
"""

from enum import StrEnum

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.rules.naming import container_path


class Reason(StrEnum):
    """Why an event is recorded."""

    CREATED = "Created"
    STARTED = "Started"
    FAILED = "Failed"
    KILLING = "Killing"
    PULLING = "Pulling"
    PULLED = "Pulled"
    INSPECT_FAILED = "InspectFailed"
    NEVER_PULL = "ErrImageNeverPull"
    POST_START_FAILED = "FailedPostStartHook"
    PRE_STOP_FAILED = "FailedPreStopHook"
    HTTP_FALLBACK = "LifecycleHTTPFallback"
    SANDBOX_CHANGED = "SandboxChanged"
    SANDBOX_FAILED = "FailedCreatePodSandBox"
    SANDBOX_STATUS_FAILED = "FailedPodSandBoxStatus"


def normal(pod: Pod | None, container_name: str, reason: Reason, message: str, container_id: str = "") -> PodEvent:
    """Something happened to a container as it should."""
    return _event(EventType.NORMAL, pod, container_name, reason, message, container_id)


def warning(pod: Pod | None, container_name: str, reason: Reason, message: str, container_id: str = "") -> PodEvent:
    """Something went wrong with a container."""
    return _event(EventType.WARNING, pod, container_name, reason, message, container_id)


def _event(
    type_: EventType, pod: Pod | None, container_name: str, reason: Reason, message: str, container_id: str
) -> PodEvent:
    shown = message.replace(container_id, container_name) if container_id else message
    uid = "" if pod is None else pod.metadata.uid or ""
    return PodEvent(type_, reason, shown, uid, container_path(pod, container_name))
