"""Admission decisions beside a list of pods."""

from collections.abc import Collection

from podkeeper.model.k8s import core
from podkeeper.rules.admission.admit import Preempt, Rejection, admit
from podkeeper.rules.admission.usage import NodeUsage, usage_of


def decide(pod: core.Pod, node: core.Node, others: Collection[core.Pod]) -> Rejection | Preempt | None:
    """Return the decision about a pod. `others` are the pods already admitted, without the pod itself."""
    usage = NodeUsage()
    for other in others:
        usage.add(usage_of(other))
    return admit(pod, node, usage, lambda: others)
