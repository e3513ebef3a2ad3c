"""The QoS class of a pod: `Guaranteed`, `Burstable` or `BestEffort`.

Only cpu and memory amounts above zero count. Pod-level resources, if any, replace those of the containers. All init
containers count, ephemeral containers never do.

Kubelet counterpart: `ComputePodQOS` in pkg/apis/core/v1/helper/qos.
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
    """Return the class that follows from the spec's resources."""
    if spec.resources is not None:
        requirements = [spec.resources]
    else:
        requirements = [container.resources for container in (*spec.containers, *(spec.init_containers or ()))]
    requests = [_compute_amounts(resources.requests) for resources in requirements]
    limits = [_compute_amounts(resources.limits) for resources in requirements]
    if not any(requests) and not any(limits):
        return BEST_EFFORT
    if all(len(amounts) == len(_COMPUTE) for amounts in limits) and _sums(requests) == _sums(limits):
        return GUARANTEED
    return BURSTABLE


def qos_of(pod: core.Pod) -> str:
    """Return the class in the pod's status, else the class that follows from its spec."""
    return pod.status.qos_class or qos_class(pod.spec)


def _compute_amounts(resources: Mapping[str, QuantityLike] | None) -> dict[str, Quantity]:
    """Return the amounts of cpu and memory that are above zero."""
    amounts = {name: parse_quantity((resources or {}).get(name, 0)) for name in _COMPUTE}
    return {name: amount for name, amount in amounts.items() if amount > ZERO}


def _sums(parts: list[dict[str, Quantity]]) -> dict[str, Quantity]:
    sums: dict[str, Quantity] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, ZERO) + amount
    return sums
