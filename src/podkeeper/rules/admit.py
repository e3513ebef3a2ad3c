"""Admission: may this pod run on this node, beside the pods that are already here?

A pod, the node and the other pods come in. None goes out when the pod fits, a `Rejection` with
the reference's reason and message when it does not, and `Preempt` when a critical pod fits once
other pods are gone. Only the first reason is told, in the reference's order: the pod's OS, then
resources (count of pods, cpu, memory, ephemeral storage, the rest by name), node affinity, node
name, host ports, taints that evict.

The Go ancestors are pkg/kubelet/lifecycle/predicate.go, `AdmissionCheck` of the scheduler and
pkg/kubelet/preemption. The choice of whom to preempt is in `rules/preempt.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import Quantity
from podkeeper.rules import resources
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.node_match import is_untolerated, matches_node
from podkeeper.rules.preempt import Shortage, cannot_reclaim, is_critical_pod, victims_for
from podkeeper.rules.restart import is_sidecar

NODE_OS: Final = "linux"

_OS_LABEL: Final = "kubernetes.io/os"
_FIRST_RESOURCES: Final = ("pods", "cpu", "memory", "ephemeral-storage")
_ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The pod may not run here. It fails with this reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """The pod may run here once these pods are killed, in this order."""

    victims: tuple[core.Pod, ...]


def admit(pod: core.Pod, node: core.Node, others: Iterable[core.Pod]) -> Rejection | Preempt | None:
    """Decide whether a pod may run. `others` are the active pods already admitted."""
    neighbours = tuple(other for other in others if not _is_same(other, pod))
    unsupported = _unsupported(pod, node)
    if unsupported is not None:
        return unsupported
    shortages = tuple(_shortages(pod.spec, node, neighbours))
    mismatches = tuple(_mismatches(pod, node, neighbours))
    if not shortages and not mismatches:
        return None
    if not is_critical_pod(pod):
        return _out_of(shortages[0]) if shortages else mismatches[0]
    if mismatches:
        return mismatches[0]
    victims = victims_for(pod, neighbours, shortages)
    if victims is None:
        return Rejection(
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: "
            f"preemption: error finding a set of pods to preempt: {cannot_reclaim(pod, neighbours, shortages)}",
        )
    return Preempt(victims)


def _is_same(other: core.Pod, pod: core.Pod) -> bool:
    return other is pod or (pod.metadata.uid is not None and other.metadata.uid == pod.metadata.uid)


def _unsupported(pod: core.Pod, node: core.Node) -> Rejection | None:
    """What no preemption can cure, asked first so that nobody is killed in vain."""
    # A quirk kept from the reference: it looks at the pod's own label, not at its node selector.
    if (pod.metadata.labels or {}).get(_OS_LABEL, NODE_OS) != NODE_OS:
        return Rejection(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if pod.spec.os is not None and pod.spec.os.name != NODE_OS:
        return Rejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    context, features = pod.spec.security_context, node.status.features
    strict = context is not None and context.supplemental_groups_policy == "Strict"
    if strict and not (features is not None and features.supplemental_groups_policy):
        return Rejection(
            "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"
        )
    return None


# ---- resources -----------------------------------------------------------------------------


def _shortages(spec: core.PodSpec, node: core.Node, others: tuple[core.Pod, ...]) -> Iterator[Shortage]:
    """The resources a pod asks more of than is left."""
    capacity = _counted(resources.amounts_of(node.status.allocatable))
    if len(others) + 1 > capacity.get("pods", 0):
        yield Shortage("pods", 1, len(others), capacity.get("pods", 0))

    def known(container: core.Container) -> resources.Amounts:
        """Requests without devices this node never heard of: those are the cluster's business."""
        wanted = resources.requests_of(container)
        return {name: amount for name, amount in wanted.items() if resources.is_native(name) or name in capacity}

    requested = _counted(resources.pod_requests(spec, known))
    used: dict[str, int] = {}
    for other in others:
        for name, amount in _counted(resources.held_requests(other)).items():
            used[name] = used.get(name, 0) + amount
    for name in sorted(requested, key=_order):
        amount, taken, total = requested[name], used.get(name, 0), capacity.get(name, 0)
        if name != "pods" and amount > 0 and amount > total - taken:
            yield Shortage(name, amount, taken, total)


def _counted(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """Amounts in the units of the scheduler: thousandths of a cpu, and whole ones of the rest."""
    return {
        name: amount.milli_value if name == "cpu" else amount.value
        for name, amount in amounts.items()
        if name in _FIRST_RESOURCES or _is_scalar(name)
    }


def _is_scalar(name: str) -> bool:
    return "/" in name or resources.is_huge_pages(name) or name.startswith("attachable-volumes-")


def _order(name: str) -> tuple[int, str]:
    place = _FIRST_RESOURCES.index(name) if name in _FIRST_RESOURCES else len(_FIRST_RESOURCES)
    return place, name


def _out_of(shortage: Shortage) -> Rejection:
    return Rejection(
        f"OutOf{shortage.resource}",
        f"Node didn't have enough resource: {shortage.resource}, requested: {shortage.requested}, "
        f"used: {shortage.used}, capacity: {shortage.capacity}",
    )


# ---- everything else -----------------------------------------------------------------------


def _mismatches(pod: core.Pod, node: core.Node, others: tuple[core.Pod, ...]) -> Iterator[Rejection]:
    """What keeps a pod away, however much room there is."""
    if not matches_node(pod.spec, node):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.spec.node_name and pod.spec.node_name != node.metadata.name:
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if _ports_clash(pod, others):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if not is_static_pod(pod) and is_untolerated(pod.spec, node, effect="NoExecute"):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(predicate: str, description: str) -> Rejection:
    return Rejection(predicate, f"Predicate {predicate} failed: {description}")


@dataclass(frozen=True, slots=True)
class _HostPort:
    address: str
    protocol: str
    number: int


def _ports_clash(pod: core.Pod, others: tuple[core.Pod, ...]) -> bool:
    wanted = tuple(_host_ports(pod.spec))
    taken = [port for other in others for port in _host_ports(other.spec)] if wanted else []
    return any(_clash(port, held) for port in wanted for held in taken)


def _clash(port: _HostPort, held: _HostPort) -> bool:
    same_address = port.address == held.address or _ANY_ADDRESS in (port.address, held.address)
    return same_address and (port.protocol, port.number) == (held.protocol, held.number)


def _host_ports(spec: core.PodSpec) -> Iterator[_HostPort]:
    """Ports of the host a pod holds as long as it runs."""
    sidecars = filter(is_sidecar, spec.init_containers or ())
    for container in (*sidecars, *spec.containers):
        for port in container.ports or ():
            if port.host_port and port.host_port > 0:
                yield _HostPort(port.host_ip or _ANY_ADDRESS, port.protocol or "TCP", port.host_port)
