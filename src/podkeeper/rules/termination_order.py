"""Who must be gone before whom when all containers of a pod are stopped.

A pod's spec and the names of what runs come in; for each of these names, the names it waits for go
out. Everything stops at once, except sidecars: they serve the others, so they go last, one after the
other, in the reverse of the order they were started in.

    app, app, init, ephemeral  ->  last sidecar  ->  ...  ->  first sidecar

    (only app containers hold sidecars up: an init container that still runs, or an ephemeral one, is
    stopped at once and nobody waits for it)

Waiting is limited by the waiting container's own grace (`rules.container_grace`): when that is used
up, the container is stopped although others remain. Its preStop hook does not wait: hooks of all
containers begin at once. The Go ancestor is `terminationOrdering` in
pkg/kubelet/kuberuntime/kuberuntime_termination_order.go.
"""

from collections.abc import Collection, Mapping, Set

from podkeeper.model.k8s.core import PodSpec
from podkeeper.rules.restart import is_sidecar

TerminationOrder = Mapping[str, frozenset[str]]
"""Container name -> names of the running containers that must be gone before it is stopped."""


def termination_order(spec: PodSpec, running: Collection[str]) -> TerminationOrder:
    """Who waits for whom, among the containers that run.

    A sidecar waits for every later sidecar that runs. (The reference lets it wait only for its direct
    successor in the spec, so that one dead sidecar lets those on both sides of it stop together.)
    """
    order: dict[str, frozenset[str]] = dict.fromkeys(running, frozenset())
    holding_up = frozenset(container.name for container in spec.containers if container.name in order)
    for container in reversed(spec.init_containers or ()):
        if is_sidecar(container) and container.name in order:
            order[container.name] = holding_up
            holding_up = holding_up | {container.name}
    return order


def free_to_stop(order: TerminationOrder, gone: Set[str]) -> tuple[str, ...]:
    """The containers that are still there and need wait for nobody any more."""
    return tuple(name for name, awaited in order.items() if name not in gone and awaited <= gone)
