"""The quality-of-service class of a pod: who is squeezed last when the node runs short.

A spec comes in; `Guaranteed`, `Burstable` or `BestEffort` goes out. Only cpu and memory above zero
count. Resources of the pod itself, when it has any, speak for all its containers; ephemeral
containers never count, all init containers do. The Go ancestor is `ComputePodQOS` in
pkg/apis/core/v1/helper/qos.
"""

from collections.abc import Mapping

from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.model.wire import QuantityLike

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"

_COMPUTE = ("cpu", "memory")


def qos_class(spec: core.PodSpec) -> str:
    """The class that the resources of a pod earn it."""
    if spec.resources is not None:
        asking = [spec.resources]
    else:
        asking = [container.resources for container in (*spec.containers, *(spec.init_containers or ()))]
    requests = [_compute_amounts(resources.requests) for resources in asking]
    limits = [_compute_amounts(resources.limits) for resources in asking]
    if not any(requests) and not any(limits):
        return BEST_EFFORT
    if all(len(amounts) == len(_COMPUTE) for amounts in limits) and _sums(requests) == _sums(limits):
        return GUARANTEED
    return BURSTABLE


def qos_of(pod: core.Pod) -> str:
    """The class a pod has: the one its status records, else the one its spec earns."""
    return pod.status.qos_class or qos_class(pod.spec)


def _compute_amounts(resources: Mapping[str, QuantityLike] | None) -> dict[str, Quantity]:
    """Cpu and memory, where they are above zero."""
    amounts = {name: parse_quantity((resources or {}).get(name, 0)) for name in _COMPUTE}
    return {name: amount for name, amount in amounts.items() if amount > ZERO}


def _sums(parts: list[dict[str, Quantity]]) -> dict[str, Quantity]:
    sums: dict[str, Quantity] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, ZERO) + amount
    return sums
