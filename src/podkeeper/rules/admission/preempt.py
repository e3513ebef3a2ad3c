"""Preemption: choose the pods to kill so that a critical pod fits.

A critical pod is rejected for missing resources only if killing other pods cannot free enough. Pods of a higher QoS
class are killed last. First find the Guaranteed pods that must be killed even if all others are killed. Then find the
Burstable pods, then the BestEffort pods. Within a class, the pod whose requests come closest to the missing amount is
killed first. If two pods are equally close, the one that requests less is killed.

Kubelet counterpart: pkg/kubelet/preemption.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity
from podkeeper.rules import resources
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, qos_of
from podkeeper.rules.static.mirror import is_mirror_pod, is_static_pod

# scheduling.SystemCriticalPriority of Kubernetes.
SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pod requests more of a resource than is left."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """The amount that must be freed."""
        return self.requested - (self.capacity - self.used)


@dataclass(frozen=True, slots=True)
class _Need:
    resource: str
    amount: int


_Needs = tuple[_Need, ...]


def is_critical_pod(pod: core.Pod) -> bool:
    """Return whether the node must make room for a pod: static pods, mirror pods and system priorities."""
    return is_static_pod(pod) or is_mirror_pod(pod) or (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


def may_preempt(preemptor: core.Pod, other: core.Pod) -> bool:
    if is_critical_pod(preemptor) and not is_critical_pod(other):
        return True
    if preemptor.spec.priority is None or other.spec.priority is None:
        return False
    return preemptor.spec.priority > other.spec.priority


def victims_for(
    pod: core.Pod, others: Iterable[core.Pod], shortages: Iterable[Shortage]
) -> tuple[core.Pod, ...] | None:
    """Return the pods to kill, in order. None if killing all candidates would not free enough."""
    best_effort, burstable, guaranteed = _by_class(pod, others)
    needs = _needs_of(shortages)
    # Do not kill any pod if killing all of them is not enough.
    if _left(needs, [*best_effort, *burstable, *guaranteed]):
        return None
    # The kubelet's order: first find the fewest pods of the highest class, assuming that all lower ones are killed.
    of_guaranteed = _closest(guaranteed, _left(needs, [*best_effort, *burstable]))
    of_burstable = _closest(burstable, _left(needs, [*best_effort, *of_guaranteed]))
    of_best_effort = _closest(best_effort, _left(needs, [*of_burstable, *of_guaranteed]))
    return (*of_best_effort, *of_burstable, *of_guaranteed)


def cannot_reclaim_message(pod: core.Pod, others: Iterable[core.Pod], shortages: Iterable[Shortage]) -> str:
    """Return the kubelet's message for the case without victims."""
    best_effort, burstable, guaranteed = _by_class(pod, others)
    left = _left(_needs_of(shortages), [*best_effort, *burstable, *guaranteed])
    listed = "".join(f"(res: {need.resource}, q: {need.amount}), " for need in left)
    return f"no set of running pods found to reclaim resources: [{listed}]"


def _needs_of(shortages: Iterable[Shortage]) -> _Needs:
    return tuple(_Need(shortage.resource, shortage.missing) for shortage in shortages)


def _by_class(pod: core.Pod, others: Iterable[core.Pod]) -> tuple[list[core.Pod], list[core.Pod], list[core.Pod]]:
    classes: dict[str, list[core.Pod]] = {BEST_EFFORT: [], BURSTABLE: [], GUARANTEED: []}
    for other in others:
        if may_preempt(pod, other) and (quality := qos_of(other)) in classes:
            classes[quality].append(other)
    return classes[BEST_EFFORT], classes[BURSTABLE], classes[GUARANTEED]


def _closest(pods: Sequence[core.Pod], needs: _Needs) -> list[core.Pod]:
    """Choose pods, each time the one closest to the amounts still needed, until nothing is needed."""
    remaining, chosen = list(pods), []
    while needs:
        best = 0
        for index in range(1, len(remaining)):
            distance, shortest = _distance(needs, remaining[index]), _distance(needs, remaining[best])
            if distance < shortest or (distance == shortest and _requests_no_more(remaining[index], remaining[best])):
                best = index
        chosen.append(remaining[best])
        needs = _left(needs, [remaining[best]])
        remaining[best] = remaining[-1]  # as in the kubelet, because this order decides later ties
        remaining.pop()
    return chosen


def _distance(needs: _Needs, pod: core.Pod) -> float:
    """Return the sum of squares of the fractions of each resource that a pod's requests do not cover."""
    shares = (max(need.amount - _request(pod, need.resource), 0) / need.amount for need in needs)
    return float(sum(share**2 for share in shares))


def _left(needs: _Needs, killed: Iterable[core.Pod]) -> _Needs:
    """Return the amounts still needed after some pods are killed."""
    pods = tuple(killed)
    after = (replace(need, amount=need.amount - sum(_request(pod, need.resource) for pod in pods)) for need in needs)
    return tuple(need for need in after if need.amount > 0)


def _requests_no_more(pod: core.Pod, other: core.Pod) -> bool:
    amounts = [(_request(pod, name), _request(other, name)) for name in ("memory", "cpu")]
    return next((mine < theirs for mine, theirs in amounts if mine != theirs), True)


def _request(pod: core.Pod, resource: str) -> int:
    """Return the amount of a resource that killing a pod frees."""
    if resource == "pods":
        return 1
    amount = _amount(pod.spec, resource)
    overhead = resources.amounts_of(pod.spec.overhead).get(resource)
    # As in the kubelet, overhead counts only for resources that the containers request.
    if overhead is not None and amount:
        amount += overhead
    return amount.milli_value if resource == "cpu" else amount.value


def _amount(spec: core.PodSpec, resource: str) -> Quantity:
    whole = spec.resources or core.ResourceRequirements()
    if any(map(resources.may_be_pod_level, (*(whole.requests or {}), *(whole.limits or {})))):
        pod_level = resources.amounts_of(whole.requests)
        return pod_level.get(resource, ZERO) if resources.may_be_pod_level(resource) else ZERO
    return resources.container_total(spec, resources.requests_of).get(resource, ZERO)
