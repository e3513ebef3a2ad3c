"""Labels and annotations that identify sandboxes and containers.

They are the same as the kubelet's.

In: pods and containers. Out: texts. A restarted agent needs data that CRI's records lack: the hash of the spec, the
grace period, the preStop hook. Annotations store it. Names and JSON spelling are the kubelet's. Kubelet counterpart:
pkg/kubelet/kuberuntime/labels.go.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime_calls import ContainerConfig

POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"

HASH: Final = "io.kubernetes.container.hash"
RESTART_COUNT: Final = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH: Final = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY: Final = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP: Final = "io.kubernetes.container.preStopHandler"
PORTS: Final = "io.kubernetes.container.ports"
DELETION_GRACE: Final = "io.kubernetes.pod.deletionGracePeriod"
TERMINATION_GRACE: Final = "io.kubernetes.pod.terminationGracePeriod"

# The kubelet decodes these annotations, and recorded requests are compared as text, so write fields in the order of
# Go's structs.
_GO_ORDER: Final = (
    *("name", "hostPort", "containerPort", "protocol", "hostIP"),
    *("exec", "httpGet", "tcpSocket", "sleep", "command"),
    *("path", "port", "host", "scheme", "httpHeaders", "value", "seconds"),
)
_ALWAYS_WRITTEN: Final = frozenset({"containerPort", "port", "value", "seconds"})
_GO_ESCAPES: Final = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def pod_labels(pod: Pod) -> dict[str, str]:
    """Return the labels of a sandbox: the pod's labels and its identity."""
    return {**(pod.metadata.labels or {}), **_identity(pod)}


def container_labels(pod: Pod, container_name: str) -> dict[str, str]:
    """Return the labels of a container: its identity."""
    return {**_identity(pod), CONTAINER_NAME: container_name}


def container_annotations(config: ContainerConfig) -> dict[str, str]:
    """Return the annotations that allow the agent to stop a container without its pod's spec."""
    pod, container = config.pod, config.container
    annotations = {
        HASH: config.spec_hash,
        RESTART_COUNT: str(config.attempt),
        TERMINATION_MESSAGE_PATH: container.termination_message_path or "",
        TERMINATION_MESSAGE_POLICY: container.termination_message_policy or "",
    }
    if pod.metadata.deletion_grace_period_seconds is not None:
        annotations[DELETION_GRACE] = str(pod.metadata.deletion_grace_period_seconds)
    if pod.spec.termination_grace_period_seconds is not None:
        annotations[TERMINATION_GRACE] = str(pod.spec.termination_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        annotations[PRE_STOP] = _go_json(container.lifecycle.pre_stop)
    if container.ports:
        annotations[PORTS] = _go_json(container.ports)
    return annotations


def _identity(pod: Pod) -> dict[str, str]:
    meta = pod.metadata
    return {POD_NAME: meta.name or "", POD_NAMESPACE: meta.namespace or "", POD_UID: meta.uid or ""}


def _go_json(value: Any) -> str:
    """Return JSON as Go writes it: its field order, without empty fields, with HTML characters escaped."""
    return msgspec.json.encode(_in_order(msgspec.to_builtins(value))).decode().translate(_GO_ESCAPES)


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        names = sorted(value, key=_GO_ORDER.index)
        return {name: _in_order(value[name]) for name in names if value[name] or name in _ALWAYS_WRITTEN}
    if isinstance(value, (list, tuple)):
        return [_in_order(each) for each in value]
    return value
