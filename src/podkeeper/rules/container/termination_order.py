"""The order in which the containers of a pod are stopped.

Inputs are a pod's spec and the names of its running containers. The output maps each name to the names it waits for.
All containers stop at once, except sidecars. They serve the others, so they stop last, one after the other, in reverse
start order.

    app, app, init, ephemeral  ->  last sidecar  ->  ...  ->  first sidecar

    (sidecars wait only for app containers: an init or ephemeral container stops at once, and nothing waits for it)

A container waits at most for its own grace period (`rules.container.grace`), then it is stopped although others remain.
PreStop hooks do not wait: those of all containers start at once.

Kubelet counterpart: `terminationOrdering` in pkg/kubelet/kuberuntime/kuberuntime_termination_order.go.
"""

from collections.abc import Collection, Mapping

from podkeeper.model.k8s.core import PodSpec
from podkeeper.rules.container.restart import is_sidecar

TerminationOrder = Mapping[str, frozenset[str]]
"""Container name -> names of the running containers that must exit before it is stopped."""


def termination_order(spec: PodSpec, running: Collection[str]) -> TerminationOrder:
    """Return which running containers each running container waits for.

    A sidecar waits for every later running sidecar. In the kubelet it waits only for its direct successor in the spec.
    There, the neighbours of an exited sidecar stop at the same time.
    """
    order: dict[str, frozenset[str]] = dict.fromkeys(running, frozenset())
    awaited = frozenset(container.name for container in spec.containers if container.name in order)
    # In reverse start order: an earlier sidecar may serve a later one (KEP-753).
    for container in reversed(spec.init_containers or ()):
        if is_sidecar(container) and container.name in order:
            order[container.name] = awaited
            awaited = awaited | {container.name}
    return order
