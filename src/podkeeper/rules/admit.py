"""Admission: may this pod run on this node, beside the pods that are already here?

A pod, the node and what the other pods hold of it come in. None goes out when the pod fits, a `Rejection` with
the reference's reason and message when it does not, and `Preempt` when a critical pod fits once
other pods are gone. Only the first reason is told, in the reference's order: kernel settings, the pod's OS, then
resources (count of pods, cpu, memory, ephemeral storage, the rest by name), node affinity, node
name, host ports, taints that evict; at last AppArmor. Kernel settings and AppArmor are asked about only where the
runtime has its say in them (`Enforcement`).

What the others hold (`NodeUsage`) is kept by whoever asks, one pod's `Share` at a time (`rules/usage.py`): the
decision itself looks at no other pod, unless somebody has to be preempted.

The Go ancestors are pkg/kubelet/lifecycle/{predicate,handlers}.go, pkg/kubelet/sysctl, `AdmissionCheck` of the
scheduler and pkg/kubelet/preemption. The choice of whom to preempt is in `rules/preempt.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.rules import resources
from podkeeper.rules.apparmor import apparmor_trouble
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.node_match import is_untolerated, matches_node
from podkeeper.rules.preempt import Shortage, cannot_reclaim, is_critical_pod, victims_for
from podkeeper.rules.sysctls import sysctl_trouble
from podkeeper.rules.usage import FIRST_RESOURCES, NodeUsage, counted, host_ports, share_of

NODE_OS: Final = "linux"

_OS_LABEL: Final = "kubernetes.io/os"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The pod may not run here. It fails with this reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What the containers of this node can be held to."""

    unsafe_sysctls: tuple[str, ...] = ()  # kernel settings that pods may have besides the safe ones
    apparmor: bool = False  # the node has it


@dataclass(frozen=True, slots=True)
class Preempt:
    """The pod may run here once these pods are killed, in this order."""

    victims: tuple[core.Pod, ...]
    resource: str = ""  # the first that is short


def admit(pod: core.Pod, node: core.Node, others: Iterable[core.Pod]) -> Rejection | Preempt | None:
    """Decide whether a pod may run. `others` are the active pods already admitted."""
    neighbours = tuple(other for other in others if not _is_same(other, pod))
    usage = NodeUsage()
    for other in neighbours:
        usage.add(share_of(other))
    return admit_beside(pod, node, usage, lambda: neighbours)


def admit_beside(
    pod: core.Pod,
    node: core.Node,
    usage: NodeUsage,
    neighbours: Callable[[], Iterable[core.Pod]],
    enforcement: Enforcement | None = None,
) -> Rejection | Preempt | None:
    """Decide whether a pod may run beside what others hold; `neighbours` are asked for only if some must be killed."""
    if enforcement is None:
        return _predicates(pod, node, usage, neighbours)
    if trouble := sysctl_trouble(pod, enforcement.unsafe_sysctls):
        return Rejection("SysctlForbidden", trouble)
    verdict = _predicates(pod, node, usage, neighbours)
    if isinstance(verdict, Rejection) or pod.status.phase != "Pending":
        return verdict  # whoever runs already, has his profile
    trouble = apparmor_trouble(pod, enabled=enforcement.apparmor)
    return verdict if trouble is None else Rejection("AppArmor", trouble)


def _predicates(
    pod: core.Pod, node: core.Node, usage: NodeUsage, neighbours: Callable[[], Iterable[core.Pod]]
) -> Rejection | Preempt | None:
    unsupported = _unsupported(pod, node)
    if unsupported is not None:
        return unsupported
    shortages = tuple(_shortages(pod.spec, node, usage))
    mismatches = tuple(_mismatches(pod, node, usage))
    if not shortages and not mismatches:
        return None
    if not is_critical_pod(pod):
        return _out_of(shortages[0]) if shortages else mismatches[0]
    if mismatches:
        return mismatches[0]
    others = tuple(neighbours())
    victims = victims_for(pod, others, shortages)
    if victims is None:
        return Rejection(
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: "
            f"preemption: error finding a set of pods to preempt: {cannot_reclaim(pod, others, shortages)}",
        )
    return Preempt(victims, shortages[0].resource)


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


def _shortages(spec: core.PodSpec, node: core.Node, usage: NodeUsage) -> Iterator[Shortage]:
    """The resources a pod asks more of than is left."""
    capacity = counted(resources.amounts_of(node.status.allocatable))
    if usage.pods + 1 > capacity.get("pods", 0):
        yield Shortage("pods", 1, usage.pods, capacity.get("pods", 0))

    def known(container: core.Container) -> resources.Amounts:
        """Requests without devices this node never heard of: those are the cluster's business."""
        wanted = resources.requests_of(container)
        return {name: amount for name, amount in wanted.items() if resources.is_native(name) or name in capacity}

    requested = counted(resources.pod_requests(spec, known))
    for name in sorted(requested, key=_order):
        amount, taken, total = requested[name], usage.used(name), capacity.get(name, 0)
        if name != "pods" and amount > 0 and amount > total - taken:
            yield Shortage(name, amount, taken, total)


def _order(name: str) -> tuple[int, str]:
    place = FIRST_RESOURCES.index(name) if name in FIRST_RESOURCES else len(FIRST_RESOURCES)
    return place, name


def _out_of(shortage: Shortage) -> Rejection:
    return Rejection(
        f"OutOf{shortage.resource}",
        f"Node didn't have enough resource: {shortage.resource}, requested: {shortage.requested}, "
        f"used: {shortage.used}, capacity: {shortage.capacity}",
    )


# ---- everything else -----------------------------------------------------------------------


def _mismatches(pod: core.Pod, node: core.Node, usage: NodeUsage) -> Iterator[Rejection]:
    """What keeps a pod away, however much room there is."""
    if not matches_node(pod.spec, node):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.spec.node_name and pod.spec.node_name != node.metadata.name:
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if any(map(usage.holds, host_ports(pod.spec))):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if not is_static_pod(pod) and is_untolerated(pod.spec, node, effect="NoExecute"):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(predicate: str, description: str) -> Rejection:
    return Rejection(predicate, f"Predicate {predicate} failed: {description}")
