"""What pods hold of a node: one pod's share, and the sum of all shares, kept up to date share by share.

A pod comes in, its `Share` goes out: requests in the scheduler's units, and ports of the host. `NodeUsage` adds
shares and takes them away again, each in the size of that share, however many pods there are. The Go ancestors are
`NodeInfo` and `HostPortInfo` of the scheduler.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import Quantity
from podkeeper.rules import resources
from podkeeper.rules.restart import is_sidecar

FIRST_RESOURCES: Final = ("pods", "cpu", "memory", "ephemeral-storage")
ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the host, on one address or on any."""

    address: str
    protocol: str
    number: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod holds."""

    amounts: tuple[tuple[str, int], ...]
    ports: tuple[HostPort, ...]


class NodeUsage:
    """What all pods together hold."""

    def __init__(self) -> None:
        self.pods = 0
        self._used: dict[str, int] = {}
        self._ports: dict[tuple[str, int], dict[str, int]] = {}  # (protocol, number) -> how often by address

    def add(self, share: Share) -> None:
        """One pod more."""
        self.pods += 1
        for name, amount in share.amounts:
            self._used[name] = self._used.get(name, 0) + amount
        for port in share.ports:
            addresses = self._ports.setdefault((port.protocol, port.number), {})
            addresses[port.address] = addresses.get(port.address, 0) + 1

    def remove(self, share: Share) -> None:
        """One pod less; its share must be the one that was added."""
        self.pods -= 1
        for name, amount in share.amounts:
            self._used[name] -= amount
        for port in share.ports:
            addresses = self._ports[port.protocol, port.number]
            addresses[port.address] -= 1
            if not addresses[port.address]:
                del addresses[port.address]

    def used(self, resource: str) -> int:
        """How much is held of a resource."""
        return self._used.get(resource, 0)

    def holds(self, port: HostPort) -> bool:
        """Whether some pod holds a port, or one that cannot stand beside it."""
        addresses = self._ports.get((port.protocol, port.number))
        if not addresses:
            return False
        return port.address == ANY_ADDRESS or port.address in addresses or ANY_ADDRESS in addresses


def share_of(pod: core.Pod) -> Share:
    """What a pod on the node holds of it."""
    return Share(tuple(counted(resources.held_requests(pod)).items()), tuple(host_ports(pod.spec)))


def counted(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """Amounts in the units of the scheduler: thousandths of a cpu, and whole ones of the rest."""
    return {
        name: amount.milli_value if name == "cpu" else amount.value
        for name, amount in amounts.items()
        if name in FIRST_RESOURCES or _is_scalar(name)
    }


def host_ports(spec: core.PodSpec) -> Iterator[HostPort]:
    """Ports of the host a pod holds as long as it runs."""
    sidecars = filter(is_sidecar, spec.init_containers or ())
    for container in (*sidecars, *spec.containers):
        for port in container.ports or ():
            if port.host_port and port.host_port > 0:
                yield HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)


def _is_scalar(name: str) -> bool:
    return "/" in name or resources.is_huge_pages(name) or name.startswith("attachable-volumes-")
