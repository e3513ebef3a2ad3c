"""Sysctls that a pod may set: namespaced ones that do not affect other pods.

Inputs are a pod and the node's `allowedUnsafeSysctls` (names, or prefixes that end in `*`). Names may be written with
slashes. They are compared, and sent to the runtime, with dots. Kernels before 4.15, where some safe sysctls are not
namespaced, are not treated differently.

Kubelet counterparts: pkg/kubelet/sysctl and component-helpers/node/util/sysctl.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from podkeeper.model.k8s.core import Pod

SAFE: Final = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
_NAMESPACED: Final = frozenset(
    {
        *("kernel.sem", "kernel.shm", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"),
        *("kernel.msg", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni"),
    }
)
_NAMESPACED_PREFIXES: Final = ("net.", "fs.mqueue.")
_SWAPPED: Final = str.maketrans("./", "/.")


def sysctls_of(pod: Pod) -> Mapping[str, str]:
    """Return the sysctls of a pod, with dotted names."""
    context = pod.spec.security_context
    return {dotted(each.name): each.value for each in (context.sysctls if context else None) or ()}


def sysctl_error(pod: Pod, allowed_unsafe: Sequence[str] = ()) -> str | None:
    """Return why a pod may not set one of its sysctls, None if it may set all."""
    for name in sysctls_of(pod):
        if not any(_matches(name, dotted(pattern)) for pattern in (*SAFE, *allowed_unsafe)):
            return f'forbidden sysctl: "{name}" not allowlisted'
        # Without its own namespace, the pod would change the setting of the whole node.
        if shared := _host_namespace(name, pod):
            return f'forbidden sysctl: "{name}" not allowed with host {shared} enabled'
    return None


def unsafe_sysctl_error(pattern: str) -> str | None:
    """Return why `allowedUnsafeSysctls` must not contain a name or prefix, None if it may."""
    name = dotted(pattern).partition("*")[0]
    if name in _NAMESPACED or name.startswith(_NAMESPACED_PREFIXES):
        return None
    return f"cannot allow sysctl {pattern!r}: it is not known to be namespaced"


def dotted(name: str) -> str:
    """Return a name with dots between its parts. In a name with slashes, dots and slashes are swapped."""
    slash, dot = name.find("/"), name.find(".")
    return name.translate(_SWAPPED) if slash != -1 and (dot == -1 or slash < dot) else name


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _host_namespace(name: str, pod: Pod) -> str:
    """Return the namespace of a sysctl if the pod shares it with the node."""
    if name.startswith("net."):
        return "Net" if pod.spec.host_network else ""
    return "IPC" if pod.spec.host_ipc else ""  # all other namespaced sysctls: kernel.shm*, kernel.msg*, fs.mqueue.*
