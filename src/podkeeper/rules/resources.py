"""What a pod asks of a node, summed over its containers as the scheduler and the node agent sum it.

Specs come in, exact amounts by resource name go out. The law of the sums: app containers and
sidecars run together, so they add up; a plain init container runs alone with the sidecars started
before it, so it only raises the total where it needs more than all the rest. Resources of the pod
itself replace what its containers say, and the overhead of the sandbox comes on top. The Go
ancestor is component-helpers/resource.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.restart import is_sidecar

Amounts = Mapping[str, Quantity]
"""Exact amounts by resource name."""

HUGE_PAGES_PREFIX = "hugepages-"


def amounts_of(resources: Mapping[str, QuantityLike] | None) -> dict[str, Quantity]:
    """Give wire quantities their value."""
    return {name: parse_quantity(wire) for name, wire in (resources or {}).items()}


def requests_of(container: core.Container) -> dict[str, Quantity]:
    """What one container requests."""
    return amounts_of(container.resources.requests)


def limits_of(container: core.Container) -> dict[str, Quantity]:
    """What one container is limited to."""
    return amounts_of(container.resources.limits)


def is_huge_pages(name: str) -> bool:
    """Tell whether a resource is huge pages of some size."""
    return name.startswith(HUGE_PAGES_PREFIX)


def may_be_pod_level(name: str) -> bool:
    """Tell whether a resource can be given for the pod as a whole."""
    return name in ("cpu", "memory") or is_huge_pages(name)


def is_native(name: str) -> bool:
    """Tell whether a resource belongs to Kubernetes itself, spelt with or without its domain."""
    return "/" not in name or "kubernetes.io/" in name


def container_total(spec: core.PodSpec, part: Callable[[core.Container], Amounts]) -> dict[str, Quantity]:
    """The largest amounts all containers hold at one time, of their requests or their limits."""
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
    """Everything a pod requests, its overhead included."""
    requests = container_total(spec, part)
    if spec.resources is not None:
        pod_level = amounts_of(spec.resources.requests)
        requests |= {name: amount for name, amount in pod_level.items() if may_be_pod_level(name)}
    return _sum_of((requests, amounts_of(spec.overhead)))


def held_requests(pod: core.Pod) -> dict[str, Quantity]:
    """Everything a pod on the node holds: while it is resized, the larger of what it had and will have."""
    statuses = {
        status.name: status
        for status in (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    }
    starting = {container.name for container in pod.spec.init_containers or () if not is_sidecar(container)}

    def held(container: core.Container) -> Amounts:
        status = statuses.get(container.name)
        if status is None or status.resources is None or container.name in starting:  # those are never resized
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
    """The largest of the amounts in play; a resize that can never be granted plays no part."""
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


# ---- spelling ------------------------------------------------------------------------------


def canonical_quantity(wire: QuantityLike) -> QuantityLike:
    """A quantity in the reference's spelling; one that cannot be read stays, for validation to name."""
    try:
        return str(parse_quantity(wire))
    except BadInput:
        return wire


def canonical_resources(wire: Mapping[str, QuantityLike] | None) -> dict[str, QuantityLike] | None:
    """Resources in the reference's spelling, with nothing finer than a thousandth."""
    return None if wire is None else {name: _stored(value) for name, value in wire.items()}


def canonical_requirements(requirements: core.ResourceRequirements) -> core.ResourceRequirements:
    """Requests and limits in the reference's spelling."""
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
