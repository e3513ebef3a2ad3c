"""Whom the kernel kills first when the machine runs out of memory: a pod and a container come in, a score goes out.

From -997 (last) to 1000 (first). A Guaranteed pod and a node-critical one go last, a BestEffort one goes first; between
them, the more of the machine's memory a container requests, the longer it is spared. What a pod requests beyond its
containers is shared out among them. A sidecar is spared at least as long as the app container that requests least:
it must not go before those it serves. The Go ancestor is pkg/kubelet/qos/policy.go.
"""

from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO
from podkeeper.rules.preempt import is_critical_pod
from podkeeper.rules.qos import BEST_EFFORT, GUARANTEED, qos_of
from podkeeper.rules.resources import amounts_of, container_total, may_be_pod_level, requests_of
from podkeeper.rules.restart import is_sidecar

SPARED: Final = -997
FIRST_TO_GO: Final = 1000
_NODE_CRITICAL: Final = "system-node-critical"


def oom_score_of(pod: core.Pod, container: core.Container | core.EphemeralContainer, memory_bytes: int) -> int:
    """The score of a container's processes on a machine with so much memory."""
    qos = qos_of(pod)
    if qos == GUARANTEED or (is_critical_pod(pod) and pod.spec.priority_class_name == _NODE_CRITICAL):
        return SPARED
    if qos == BEST_EFFORT:
        return FIRST_TO_GO
    requested = _memory_request(container)
    if isinstance(container, core.Container) and is_sidecar(container) and _is_init(pod, container):
        requested = max(requested, min(map(_memory_request, pod.spec.containers), default=0))
    score = 1000 - 1000 * (requested + _share_of_the_rest(pod.spec)) // max(memory_bytes, 1)
    return min(max(score, 1000 + SPARED), FIRST_TO_GO - 1)


def _memory_request(container: core.Container | core.EphemeralContainer) -> int:
    return amounts_of(container.resources.requests).get("memory", ZERO).value


def _is_init(pod: core.Pod, container: core.Container) -> bool:
    return any(each.name == container.name for each in pod.spec.init_containers or ())


def _share_of_the_rest(spec: core.PodSpec) -> int:
    """What a pod requests beyond its containers, for each of them."""
    requests = amounts_of(spec.resources.requests) if spec.resources is not None else {}
    if not any(map(may_be_pod_level, requests)) or not requests.get("memory"):
        return 0
    rest = requests["memory"].value - container_total(spec, requests_of).get("memory", ZERO).value
    return max(rest, 0) // (len(spec.containers) + len(spec.init_containers or ()) or 1)
