"""Resources and host ports that pods hold on a node, per pod and in total.

`NodeUsage` adds and removes the `PodUsage` of single pods. The cost depends on the size of that pod only, not on the
number of pods.

Kubelet counterparts: `NodeInfo` and `HostPortInfo` of the scheduler.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import Quantity
from podkeeper.rules import resources
from podkeeper.rules.container.restart import is_sidecar

FIRST_RESOURCES: Final = ("pods", "cpu", "memory", "ephemeral-storage")
ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host port, on one address or on all."""

    address: str
    protocol: str
    number: int


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod holds: requests in the scheduler's units, and host ports."""

    amounts: tuple[tuple[str, int], ...]
    ports: tuple[HostPort, ...]


class NodeUsage:
    """The total of all pods."""

    def __init__(self) -> None:
        self.pods = 0
        self._used: dict[str, int] = {}
        self._ports: dict[tuple[str, int], dict[str, int]] = {}  # (protocol, number) -> number of users by address

    def add(self, share: PodUsage) -> None:
        self.pods += 1
        for name, amount in share.amounts:
            self._used[name] = self._used.get(name, 0) + amount
        for port in share.ports:
            addresses = self._ports.setdefault((port.protocol, port.number), {})
            addresses[port.address] = addresses.get(port.address, 0) + 1

    def remove(self, share: PodUsage) -> None:
        """Remove one pod. Its usage must equal the one that was added."""
        self.pods -= 1
        for name, amount in share.amounts:
            self._used[name] -= amount
        for port in share.ports:
            addresses = self._ports[port.protocol, port.number]
            addresses[port.address] -= 1
            # Remove a count of zero, because `holds` only checks whether an address is present.
            if not addresses[port.address]:
                del addresses[port.address]

    def used(self, resource: str) -> int:
        return self._used.get(resource, 0)

    def holds(self, port: HostPort) -> bool:
        """Return whether a pod holds this port or one that conflicts with it."""
        addresses = self._ports.get((port.protocol, port.number))
        if not addresses:
            return False
        return port.address == ANY_ADDRESS or port.address in addresses or ANY_ADDRESS in addresses


def usage_of(pod: core.Pod) -> PodUsage:
    return PodUsage(tuple(in_scheduler_units(resources.held_requests(pod)).items()), tuple(host_ports(pod.spec)))


def in_scheduler_units(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """Convert amounts to the scheduler's units: thousandths of a cpu, whole units of the rest."""
    return {
        name: amount.milli_value if name == "cpu" else amount.value
        for name, amount in amounts.items()
        if name in FIRST_RESOURCES or _is_scalar(name)
    }


def host_ports(spec: core.PodSpec) -> Iterator[HostPort]:
    """Yield the host ports that a pod holds while it runs."""
    sidecars = filter(is_sidecar, spec.init_containers or ())
    for container in (*sidecars, *spec.containers):
        for port in container.ports or ():
            if port.host_port and port.host_port > 0:
                yield HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)


def _is_scalar(name: str) -> bool:
    return "/" in name or resources.is_huge_pages(name) or name.startswith("attachable-volumes-")
