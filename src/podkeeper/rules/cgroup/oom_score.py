"""The OOM score of a container.

It determines the order in which the kernel kills processes when memory runs out. Scores range from -997 (killed last)
to 1000 (killed first). Guaranteed and node-critical pods have the lowest score, BestEffort pods the highest. Between
them, a container with a larger memory request has a lower score. A pod-level request beyond the sum of the containers
is divided among them. A sidecar's score is at most that of the app container with the smallest request, because it must
not be killed before the containers it serves.

Kubelet counterpart: pkg/kubelet/qos/policy.go.
"""

from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO
from podkeeper.rules.admission.preempt import is_critical_pod
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.qos import BEST_EFFORT, GUARANTEED, qos_of
from podkeeper.rules.resources import amounts_of, container_total, may_be_pod_level, requests_of

# The kubelet's guaranteedOOMScoreAdj. Its own processes have -999.
LAST_KILLED: Final = -997
FIRST_KILLED: Final = 1000
_NODE_CRITICAL: Final = "system-node-critical"


def oom_score_of(pod: core.Pod, container: core.Container | core.EphemeralContainer, memory_bytes: int) -> int:
    """Return the score of a container's processes on a machine with this much memory."""
    qos = qos_of(pod)
    if qos == GUARANTEED or (is_critical_pod(pod) and pod.spec.priority_class_name == _NODE_CRITICAL):
        return LAST_KILLED
    if qos == BEST_EFFORT:
        return FIRST_KILLED
    requested = _memory_request(container)
    if isinstance(container, core.Container) and is_sidecar(container) and _is_init(pod, container):
        requested = max(requested, min(map(_memory_request, pod.spec.containers), default=0))
    score = 1000 - 1000 * (requested + _share_of_remainder(pod.spec)) // max(memory_bytes, 1)
    # As in the kubelet: a Burstable container is killed before Guaranteed ones and after BestEffort ones, whatever it
    # requests.
    return min(max(score, 1000 + LAST_KILLED), FIRST_KILLED - 1)


def _memory_request(container: core.Container | core.EphemeralContainer) -> int:
    return amounts_of(container.resources.requests).get("memory", ZERO).value


def _is_init(pod: core.Pod, container: core.Container) -> bool:
    return any(each.name == container.name for each in pod.spec.init_containers or ())


def _share_of_remainder(spec: core.PodSpec) -> int:
    """Return the pod-level memory request beyond the sum of the containers, divided by their number."""
    requests = amounts_of(spec.resources.requests) if spec.resources is not None else {}
    if not any(map(may_be_pod_level, requests)) or not requests.get("memory"):
        return 0
    remainder = requests["memory"].value - container_total(spec, requests_of).get("memory", ZERO).value
    return max(remainder, 0) // (len(spec.containers) + len(spec.init_containers or ()) or 1)
