"""Events about one container, with the kubelet's reasons and messages.

The container's id in a message is replaced by its name. Otherwise each restart would produce a different event.

Kubelet counterparts: `recordContainerEvent` in pkg/kubelet/kuberuntime and pkg/kubelet/events.
"""

from enum import StrEnum

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.rules.naming import container_path


class EventReason(StrEnum):
    """The reason of an event."""

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


def normal(pod: Pod | None, container_name: str, reason: EventReason, message: str, container_id: str = "") -> PodEvent:
    return _event(EventType.NORMAL, pod, container_name, reason, message, container_id)


def warning(
    pod: Pod | None, container_name: str, reason: EventReason, message: str, container_id: str = ""
) -> PodEvent:
    return _event(EventType.WARNING, pod, container_name, reason, message, container_id)


def _event(
    type_: EventType, pod: Pod | None, container_name: str, reason: EventReason, message: str, container_id: str
) -> PodEvent:
    shown = message.replace(container_id, container_name) if container_id else message
    uid = "" if pod is None else pod.metadata.uid or ""
    return PodEvent(type_, reason, shown, uid, container_path(pod, container_name))
