"""Admission: decide whether a pod may run beside the admitted pods.

Inputs are a pod, the node and the resources that other pods hold. The result is None if the pod fits. If it does not
fit, the result is a `Rejection` with the kubelet's reason and message. If a critical pod fits after other pods are
killed, the result is `Preempt`.

Only the first reason is reported, in the kubelet's order: sysctls, the pod's OS, resources (number of pods, cpu,
memory, ephemeral storage, then the rest by name), node affinity, node name, host ports, NoExecute taints, AppArmor.
Sysctls and AppArmor are checked only if the runtime applies them (`Enforcement`).

The caller keeps the usage of all pods up to date (`NodeUsage`, one `PodUsage` at a time). The decision reads no other
pod unless it must choose pods to preempt (`rules/admission/preempt.py`).

Kubelet counterparts: pkg/kubelet/lifecycle/{predicate,handlers}.go, pkg/kubelet/sysctl, `AdmissionCheck` of the
scheduler and pkg/kubelet/preemption.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.rules import resources
from podkeeper.rules.admission.apparmor import apparmor_error
from podkeeper.rules.admission.node_match import is_untolerated, matches_node
from podkeeper.rules.admission.preempt import Shortage, cannot_reclaim_message, is_critical_pod, victims_for
from podkeeper.rules.admission.sysctls import sysctl_error
from podkeeper.rules.admission.usage import FIRST_RESOURCES, NodeUsage, host_ports, in_scheduler_units
from podkeeper.rules.static.mirror import is_static_pod

NODE_OS: Final = "linux"

_OS_LABEL: Final = "kubernetes.io/os"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The pod may not run here. It fails with this reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Settings of the checks that only some runtimes need."""

    unsafe_sysctls: tuple[str, ...] = ()  # sysctls that pods may set in addition to the safe ones
    apparmor: bool = False  # enabled on the node


@dataclass(frozen=True, slots=True)
class Preempt:
    """The pod may run here once these pods are killed, in this order."""

    victims: tuple[core.Pod, ...]
    resource: str = ""  # the first resource that is short


def admit(
    pod: core.Pod,
    node: core.Node,
    usage: NodeUsage,
    other_pods: Callable[[], Iterable[core.Pod]],
    enforcement: Enforcement | None = None,
) -> Rejection | Preempt | None:
    """Decide whether a pod may run beside the given usage. Calls `other_pods` only to choose pods to preempt."""
    if enforcement is None:
        return _predicates(pod, node, usage, other_pods)
    if error := sysctl_error(pod, enforcement.unsafe_sysctls):
        return Rejection("SysctlForbidden", error)
    decision = _predicates(pod, node, usage, other_pods)
    # AppArmor after the resources, as in the kubelet. Unlike there, no pod is killed before the AppArmor check rejects
    # the pod.
    if isinstance(decision, Rejection) or pod.status.phase != "Pending":
        return decision  # a pod that already runs has its profile
    error = apparmor_error(pod, enabled=enforcement.apparmor)
    return decision if error is None else Rejection("AppArmor", error)


def _predicates(
    pod: core.Pod, node: core.Node, usage: NodeUsage, other_pods: Callable[[], Iterable[core.Pod]]
) -> Rejection | Preempt | None:
    unsupported = _unsupported(pod, node)
    if unsupported is not None:
        return unsupported
    # The kubelet's order. All reasons are collected, because preemption only helps if every one of them is a shortage.
    shortages = tuple(_shortages(pod.spec, node, usage))
    mismatches = tuple(_mismatches(pod, node, usage))
    if not shortages and not mismatches:
        return None
    if not is_critical_pod(pod):
        return _out_of(shortages[0]) if shortages else mismatches[0]
    # As in the kubelet, preemption only recovers from missing resources.
    if mismatches:
        return mismatches[0]
    others = tuple(other_pods())
    victims = victims_for(pod, others, shortages)
    if victims is None:
        return Rejection(
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: "
            f"preemption: error finding a set of pods to preempt: {cannot_reclaim_message(pod, others, shortages)}",
        )
    return Preempt(victims, shortages[0].resource)


def _unsupported(pod: core.Pod, node: core.Node) -> Rejection | None:
    """Return rejections that preemption cannot resolve.

    Checked first, so that no pod is killed for a pod that is rejected anyway.
    """
    # Kept from the kubelet: it reads the pod's own label, not its node selector.
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
    """Yield the resources of which the pod requests more than is left."""
    capacity = in_scheduler_units(resources.amounts_of(node.status.allocatable))
    if usage.pods + 1 > capacity.get("pods", 0):
        yield Shortage("pods", 1, usage.pods, capacity.get("pods", 0))

    def known(container: core.Container) -> resources.Amounts:
        """Return requests without extended resources that this node does not have: a scheduler extender owns those."""
        wanted = resources.requests_of(container)
        return {name: amount for name, amount in wanted.items() if resources.is_native(name) or name in capacity}

    requested = in_scheduler_units(resources.pod_requests(spec, known))
    # Sorted, because the first shortage is reported. In the kubelet, the order of scalar resources is random.
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
    """Yield rejections that do not depend on resources."""
    if not matches_node(pod.spec, node):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.spec.node_name and pod.spec.node_name != node.metadata.name:
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if any(map(usage.holds, host_ports(pod.spec))):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    # As in the kubelet, taints do not concern static pods.
    if not is_static_pod(pod) and is_untolerated(pod.spec, node, effect="NoExecute"):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(predicate: str, description: str) -> Rejection:
    return Rejection(predicate, f"Predicate {predicate} failed: {description}")
