"""The Node object and the addresses as of the start of the agent.

Kubelet counterpart: pkg/kubelet/kubelet_getters.go.
"""

from podkeeper.model.k8s.core import Node
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.resources import Amounts, amounts_of
from podkeeper.rules.status.pod import NodeView


class NodeInfo:
    def __init__(self, *, node: Node, host_ips: tuple[str, ...], runtime: Runtime) -> None:
        self._node = node
        self._host_ips = host_ips
        self._runtime = runtime

    def node(self) -> Node:
        return self._node

    def uid(self) -> str | None:
        return self._node.metadata.uid

    def allocatable(self) -> Amounts:
        return amounts_of(self._node.status.allocatable)

    def host_ips(self) -> tuple[str, ...]:
        return self._host_ips

    def view(self) -> NodeView:
        """Return the facts that pod statuses contain."""
        return NodeView(
            runtime_name=self._runtime.name,
            host_ips=self._host_ips,
            recursive_read_only=_supports_recursive_read_only_mounts(self._node),
        )


def _supports_recursive_read_only_mounts(node: Node) -> bool:
    """Return whether the runtime's default handler supports recursive read-only mounts."""
    default = next((each.features for each in node.status.runtime_handlers or () if not each.name), None)
    return default is not None and bool(default.recursive_read_only_mounts)
