"""CRI resources of containers and sandboxes.

In: a pod, a container, the node. Out: `LinuxContainerResources`. The formulas are in `rules.cgroup.limits` and
`rules.cgroup.oom_score`. In CRI, 0 means unset.
Kubelet counterparts: kuberuntime_container_linux.go and kuberuntime_sandbox_linux.go.
"""

from collections.abc import Mapping
from typing import Final

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSpec
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.rules.admission.preempt import is_critical_pod
from podkeeper.rules.cgroup.limits import container_limits, quota_of, shares_of
from podkeeper.rules.cgroup.oom_score import oom_score_of
from podkeeper.rules.qos import BURSTABLE, qos_of
from podkeeper.rules.resources import (
    HUGE_PAGES_PREFIX,
    Amounts,
    amounts_of,
    container_total,
    is_huge_pages,
    limits_of,
    may_be_pod_level,
    requests_of,
)
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri

_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


def container_resources(
    pod: Pod, container: Container | EphemeralContainer, node: NodeFacts
) -> cri.LinuxContainerResources:
    """Return the resources of a container, for its creation and for later updates."""
    limits = container_limits(pod.spec, container, node.cpu_policy)
    made = cri.LinuxContainerResources(
        cpu_shares=limits.cpu_shares,
        cpu_quota=limits.cpu_quota or 0,
        cpu_period=limits.cpu_period if node.cpu_cfs_quota else 0,
        memory_limit_in_bytes=limits.memory or 0,
        oom_score_adj=oom_score_of(pod, container, node.memory_bytes),
        hugepage_limits=_huge_page_limits(pod.spec, container, node),
        unified=_group_oom_kill(node),
    )
    _set_swap(made, pod, container, node)
    return made


def sandbox_resources(spec: PodSpec, node: NodeFacts) -> cri.LinuxContainerResources:
    """Return the sum of a pod's containers, without its overhead."""
    whole = spec.resources
    requests = container_total(spec, requests_of) | _pod_level(amounts_of(whole.requests if whole else None))
    limits = container_total(spec, limits_of) | _pod_level(amounts_of(whole.limits if whole else None))
    cpu_limit = limits.get("cpu", ZERO)
    return _resources(requests.get("cpu", cpu_limit), cpu_limit, limits.get("memory", ZERO), node)


def overhead_resources(spec: PodSpec, node: NodeFacts) -> cri.LinuxContainerResources:
    """Return the resources of the sandbox itself. Empty if the pod has no overhead."""
    if spec.overhead is None:
        return cri.LinuxContainerResources()
    overhead = amounts_of(spec.overhead)
    cpu = overhead.get("cpu", ZERO)
    return _resources(cpu, cpu, overhead.get("memory", ZERO), node)


def _resources(
    cpu_request: Quantity, cpu_limit: Quantity, memory_limit: Quantity, node: NodeFacts
) -> cri.LinuxContainerResources:
    quota = quota_of(cpu_limit.milli_value, node.cpu_period) if node.cpu_cfs_quota else None
    return cri.LinuxContainerResources(
        cpu_shares=shares_of(cpu_request.milli_value),
        cpu_quota=quota or 0,
        cpu_period=node.cpu_period if node.cpu_cfs_quota else 0,
        memory_limit_in_bytes=memory_limit.value,
        unified=_group_oom_kill(node),
    )


def _group_oom_kill(node: NodeFacts) -> Mapping[str, str]:
    """Make the kernel kill all processes of a container that is out of memory."""
    return {"memory.oom.group": "1"} if node.cgroup_v2 and not node.single_process_oom_kill else {}


def _pod_level(amounts: Amounts) -> dict[str, Quantity]:
    return {name: amount for name, amount in amounts.items() if may_be_pod_level(name)}


# ---- huge pages ----


def _huge_page_limits(
    spec: PodSpec, container: Container | EphemeralContainer, node: NodeFacts
) -> list[cri.HugepageLimit]:
    """Return a limit for each page size: the container's, else the pod's, else 0."""
    pod_level = amounts_of(spec.resources.limits) if spec.resources is not None else {}
    wanted = _by_page_size(pod_level) | _by_page_size(amounts_of(container.resources.limits))
    return [cri.HugepageLimit(page_size=size, limit=wanted.get(size, 0)) for size in node.hugepage_sizes]


def _by_page_size(amounts: Amounts) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        if is_huge_pages(name):
            size = _page_size(name.removeprefix(HUGE_PAGES_PREFIX))
            if size is not None:
                found[size] = amount.value
    return found


def _page_size(text: str) -> str | None:
    """Return a page size in the spelling of cgroup files: `2Mi` is `2MB`."""
    try:
        size = parse_quantity(text).value
    except BadInput:
        return None
    unit = 0
    while size and size % 1024 == 0 and unit < len(_UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}"


# ---- swap ----


def _set_swap(
    made: cri.LinuxContainerResources, pod: Pod, container: Container | EphemeralContainer, node: NodeFacts
) -> None:
    if not node.swap_controller:
        return
    if node.cgroup_v2:
        made.unified["memory.swap.max"] = str(_swap_bytes(pod, container, node))
    else:
        # The limit of the sum of memory and swap, so no swap is allowed.
        made.memory_swap_limit_in_bytes = made.memory_limit_in_bytes


def _swap_bytes(pod: Pod, container: Container | EphemeralContainer, node: NodeFacts) -> int:
    """Return the swap limit: for Burstable pods in proportion to the memory request, for others 0."""
    if not node.limited_swap or is_critical_pod(pod) or qos_of(pod) != BURSTABLE:
        return 0
    request = amounts_of(container.resources.requests).get("memory", ZERO)
    limit = amounts_of(container.resources.limits).get("memory", ZERO)
    # As in the kubelet: a container with equal request and limit gets no swap.
    if request == limit or not 0 <= request.value <= node.memory_bytes:
        return 0
    return request.value * node.swap_bytes // max(node.memory_bytes, 1)
