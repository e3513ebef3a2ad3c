"""The CRI message of a sandbox.

    SandboxConfig + NodeFacts -> cri.PodSandboxConfig, and the runtime handler

Kubelet counterpart: `generatePodSandboxConfig` in pkg/kubelet/kuberuntime/kuberuntime_sandbox.go.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, ContainerPort
from podkeeper.model.runtime_calls import Dns, SandboxConfig
from podkeeper.rules.admission.sysctls import sysctl_error, sysctls_of
from podkeeper.runtimes.cri.requests.labels import pod_labels
from podkeeper.runtimes.cri.requests.node import IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.resources import overhead_resources, sandbox_resources
from podkeeper.runtimes.cri.requests.security import sandbox_security
from podkeeper.runtimes.cri.requests.users import runtime_handler_of
from podkeeper.runtimes.cri.schema import cri

__all__ = ["runtime_handler_of", "sandbox_message"]

_PROTOCOLS: Final = {"TCP": cri.TCP, "UDP": cri.UDP, "SCTP": cri.SCTP}


def sandbox_message(config: SandboxConfig, node: NodeFacts, users: IdRange | None = None) -> cri.PodSandboxConfig:
    """Return the message. `users` is the ID range of a pod with its own user namespace. Raises NotConfigurable."""
    pod, meta = config.pod, config.pod.metadata
    if error := sysctl_error(pod, node.allowed_unsafe_sysctls):
        raise NotConfigurable(error)
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=meta.name or "", namespace=meta.namespace or "", uid=meta.uid or "", attempt=config.attempt
        ),
        hostname=config.hostname,
        log_directory=config.log_directory,
        dns_config=_dns(config.dns),
        port_mappings=[mapping for container in pod.spec.containers for mapping in _port_mappings(container)],
        labels=pod_labels(pod),
        annotations=meta.annotations or {},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=config.cgroup_parent,
            security_context=sandbox_security(pod, node, users),
            sysctls=sysctls_of(pod),
            overhead=overhead_resources(pod.spec, node),
            resources=sandbox_resources(pod.spec, node),
        ),
    )


def _dns(dns: Dns | None) -> cri.DNSConfig | None:
    if dns is None:
        return None
    return cri.DNSConfig(servers=dns.servers, searches=dns.searches, options=dns.options)


def _port_mappings(container: Container) -> Iterator[cri.PortMapping]:
    """Yield all ports of a container, also without host port. A name is used once."""
    seen: set[str] = set()
    for port in container.ports or ():
        name = port.name or _default_name(port)
        if name not in seen:
            seen.add(name)
            yield cri.PortMapping(
                protocol=_PROTOCOLS.get(port.protocol or "", cri.TCP),
                container_port=port.container_port,
                host_port=port.host_port or 0,
                host_ip=port.host_ip or "",
            )


def _default_name(port: ContainerPort) -> str:
    """Return a name for a port without one, different for each address family."""
    return f"{_family(port.host_ip)}-{port.protocol}-{port.host_ip}:{port.container_port}:{port.host_port or 0}"


def _family(address: str | None) -> str:
    if not address:
        return "any"
    try:
        return f"v{ip_address(address).version}"
    except ValueError:
        return "v4"
