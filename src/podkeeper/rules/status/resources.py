"""The resources in a status: what a container or pod actually has.

In: specs and the actual resources. Out: `ResourceRequirements`. A running container shows its actual resources. If they
are unknown, the former values stay. A container that does not run shows the resources of its spec. CPU amounts below
the kernel's minimum are shown as in the spec. Kubelet counterpart: `convertContainerStatusResources` and
`convertToAPIPodLevelResourcesStatus` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from podkeeper.model.quantity import ZERO, Format, Quantity, parse_quantity
from podkeeper.model.runtime import ActualResources, ContainerRecord, RecordState
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.resources import amounts_of, container_total, limits_of, may_be_pod_level, pod_requests
from podkeeper.rules.status.phase import Phase

MIN_CPU_REQUEST_MILLI = 2
"""The smallest CPU request that the kernel can apply."""

MIN_CPU_LIMIT_MILLI = 10
"""The smallest CPU limit that the kernel can apply."""

WireAmounts = Mapping[str, QuantityLike]

_NOTHING = ActualResources()
_NOTHING_SHOWN = ResourceRequirements()


def container_resources(
    container: Container, record: ContainerRecord, container_id: str, old: ContainerStatus | None
) -> ResourceRequirements:
    """Return the resources to show for a container that the runtime has."""
    declared = container.resources
    if record.state is not RecordState.RUNNING:
        return declared
    actual = record.resources or _NOTHING
    still_runs = old is not None and old.state.running is not None and old.container_id == container_id
    shown = (old.resources if old is not None and still_runs else None) or _NOTHING_SHOWN
    limits, requests = declared.limits, declared.requests
    if limits is not None:
        limits = _cpu(limits, actual.cpu_limit_milli, MIN_CPU_LIMIT_MILLI, shown.limits)
        limits = _memory(limits, actual.memory_limit_bytes, shown.limits)
    if requests is not None:
        requests = _cpu(requests, actual.cpu_request_milli, MIN_CPU_REQUEST_MILLI, shown.requests)
        requests = _memory(requests, actual.memory_request_bytes, shown.requests)
    return replace(declared, limits=limits, requests=requests)


def pod_resources(pod: Pod, old: PodStatus, actual: ActualResources | None) -> ResourceRequirements:
    """Return the resources to show for a pod. `actual` is from its cgroup."""
    declared = pod.spec.resources or _NOTHING_SHOWN
    if pod.status.phase != Phase.RUNNING:
        return replace(declared, requests=allocated_resources(pod.spec), limits=_wire(_pod_limits(pod.spec)))
    actual = actual or _NOTHING
    # The API may still show a terminated pod as Running. Then keep the resources it had while it ran.
    shown = (old.resources if old.phase != Phase.PENDING else None) or _NOTHING_SHOWN
    requests = _cpu(declared.requests or {}, actual.cpu_request_milli, MIN_CPU_REQUEST_MILLI, shown.requests)
    if "memory" not in requests:
        summed = allocated_resources(pod.spec) or {}
        requests |= {name: amount for name, amount in summed.items() if name == "memory"}
    requests = _memory(requests, None, shown.requests)  # a cgroup has no memory request
    limits = _cpu(declared.limits or {}, actual.cpu_limit_milli, MIN_CPU_LIMIT_MILLI, shown.limits)
    limits = _memory(limits, actual.memory_limit_bytes, shown.limits)
    return replace(declared, requests=requests or None, limits=limits or None)


def allocated_resources(spec: PodSpec) -> dict[str, QuantityLike] | None:
    """Return the requests that the pod was admitted with."""
    return _wire(pod_requests(spec))


def _pod_limits(spec: PodSpec) -> dict[str, Quantity]:
    limits = container_total(spec, limits_of)
    if spec.resources is not None:
        pod_level = amounts_of(spec.resources.limits)
        limits |= {name: amount for name, amount in pod_level.items() if may_be_pod_level(name)}
    overhead = amounts_of(spec.overhead)
    return {name: amount + overhead.get(name, ZERO) if amount else amount for name, amount in limits.items()}


def _cpu(
    declared: WireAmounts, actual_milli: int | None, minimum_milli: int, shown: WireAmounts | None
) -> dict[str, QuantityLike]:
    if actual_milli is None:
        return _as_shown_before(declared, "cpu", shown)
    if max(actual_milli, parse_quantity(declared.get("cpu", 0)).milli_value) <= minimum_milli:
        return dict(declared)
    return {**declared, "cpu": str(Quantity(actual_milli, -3))}


def _memory(declared: WireAmounts, actual_bytes: int | None, shown: WireAmounts | None) -> dict[str, QuantityLike]:
    if actual_bytes is None:
        return _as_shown_before(declared, "memory", shown)
    return {**declared, "memory": str(Quantity(actual_bytes, format=Format.BINARY_SI))}


def _as_shown_before(declared: WireAmounts, name: str, shown: WireAmounts | None) -> dict[str, QuantityLike]:
    return {**declared, name: shown[name]} if shown and name in shown else dict(declared)


def _wire(amounts: Mapping[str, Quantity]) -> dict[str, QuantityLike] | None:
    return {name: str(amount) for name, amount in amounts.items()} or None
