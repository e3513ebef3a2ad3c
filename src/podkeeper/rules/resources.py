"""Requests and limits of pods, summed as the scheduler and the kubelet sum them.

Inputs are specs, outputs are exact amounts by resource name:

* App containers and sidecars run together, so their amounts add up.
* A plain init container runs alone with the sidecars started before it. So it only raises the total where it needs
  more than all other containers together.
* Pod-level resources replace the sums of the containers. The overhead of the sandbox is added.

Kubelet counterpart: component-helpers/resource.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.container.restart import is_sidecar

Amounts = Mapping[str, Quantity]
"""Exact amounts by resource name."""

HUGE_PAGES_PREFIX = "hugepages-"


def amounts_of(resources: Mapping[str, QuantityLike] | None) -> dict[str, Quantity]:
    """Parse quantities."""
    return {name: parse_quantity(wire) for name, wire in (resources or {}).items()}


def requests_of(container: core.Container) -> dict[str, Quantity]:
    return amounts_of(container.resources.requests)


def limits_of(container: core.Container) -> dict[str, Quantity]:
    return amounts_of(container.resources.limits)


def is_huge_pages(name: str) -> bool:
    return name.startswith(HUGE_PAGES_PREFIX)


def may_be_pod_level(name: str) -> bool:
    """Return whether a resource can be set for the pod as a whole."""
    return name in ("cpu", "memory") or is_huge_pages(name)


def is_native(name: str) -> bool:
    """Return whether a resource belongs to Kubernetes itself, with or without the kubernetes.io domain."""
    return "/" not in name or "kubernetes.io/" in name


def container_total(spec: core.PodSpec, part: Callable[[core.Container], Amounts]) -> dict[str, Quantity]:
    """Return the largest amounts that all containers hold at one time. `part` selects requests or limits."""
    together = _sum_of(part(container) for container in spec.containers)
    sidecars: dict[str, Quantity] = {}
    starting: dict[str, Quantity] = {}
    for container in spec.init_containers or ():
        own = part(container)
        if is_sidecar(container):
            together = _sum_of((together, own))
            sidecars = _sum_of((sidecars, own))
            starting = _larger_of(starting, sidecars)
        else:
            starting = _larger_of(starting, _sum_of((own, sidecars)))
    return _larger_of(together, starting)


def pod_requests(spec: core.PodSpec, part: Callable[[core.Container], Amounts] = requests_of) -> dict[str, Quantity]:
    """Return everything a pod requests, including its overhead."""
    requests = container_total(spec, part)
    if spec.resources is not None:
        pod_level = amounts_of(spec.resources.requests)
        requests |= {name: amount for name, amount in pod_level.items() if may_be_pod_level(name)}
    return _sum_of((requests, amounts_of(spec.overhead)))


def held_requests(pod: core.Pod) -> dict[str, Quantity]:
    """Return everything an admitted pod holds. During a resize, this is the larger of the old and the new amounts."""
    statuses = {
        status.name: status
        for status in (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    }
    starting = {container.name for container in pod.spec.init_containers or () if not is_sidecar(container)}

    def held(container: core.Container) -> Amounts:
        status = statuses.get(container.name)
        if (
            status is None or status.resources is None or container.name in starting
        ):  # init containers are never resized
            return requests_of(container)
        return _resized(pod, container.resources.requests, status.resources.requests, status.allocated_resources)

    spec = pod.spec
    if spec.resources is not None and spec.resources.requests and pod.status.resources is not None:
        whole = _resized(pod, spec.resources.requests, pod.status.resources.requests, pod.status.allocated_resources)
        texts: dict[str, QuantityLike] = {name: str(whole.get(name, ZERO)) for name in spec.resources.requests}
        spec = msgspec.structs.replace(spec, resources=msgspec.structs.replace(spec.resources, requests=texts))
    return pod_requests(spec, held)


def _resized(
    pod: core.Pod,
    wanted: Mapping[str, QuantityLike] | None,
    actual: Mapping[str, QuantityLike] | None,
    allocated: Mapping[str, QuantityLike] | None,
) -> dict[str, Quantity]:
    """Return the largest of the desired, actual and allocated amounts. An infeasible resize does not count."""
    pending = next((c for c in pod.status.conditions or () if c.type == "PodResizePending"), None)
    impossible = pending is not None and pending.reason == "Infeasible"
    largest = _larger_of(amounts_of(actual), amounts_of(allocated))
    return largest if impossible else _larger_of(amounts_of(wanted), largest)


def _sum_of(parts: Iterable[Amounts]) -> dict[str, Quantity]:
    sums: dict[str, Quantity] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums[name] + amount if name in sums else amount
    return sums


def _larger_of(left: Amounts, right: Amounts) -> dict[str, Quantity]:
    return {**left, **{name: amount for name, amount in right.items() if name not in left or amount > left[name]}}


# ---- canonical form ------------------------------------------------------------------------------


def canonical_quantity(wire: QuantityLike) -> QuantityLike:
    """Return a quantity in the API server's canonical form. An invalid one stays as it is, for validation to report."""
    try:
        return str(parse_quantity(wire))
    except BadInput:
        return wire


def canonical_resources(wire: Mapping[str, QuantityLike] | None) -> dict[str, QuantityLike] | None:
    """Return resources in canonical form, rounded up to thousandths."""
    return None if wire is None else {name: _stored(value) for name, value in wire.items()}


def canonical_requirements(requirements: core.ResourceRequirements) -> core.ResourceRequirements:
    return msgspec.structs.replace(
        requirements,
        limits=canonical_resources(requirements.limits),
        requests=canonical_resources(requirements.requests),
    )


def _stored(wire: QuantityLike) -> QuantityLike:
    try:
        return str(parse_quantity(wire).rounded_up_to_milli())
    except BadInput:
        return wire
