"""Which kernel settings a pod may have: those that are its own, and that no other pod feels.

A pod, and what the node's owner allows besides the safe ones (names, or beginnings that end in `*`), come in; what is
wrong goes out. Names may be written with slashes; dots are what is compared and what a runtime is told. Kernels before
4.15, which share some of the safe ones, are not told apart. The Go ancestors are pkg/kubelet/sysctl and
component-helpers/node/util/sysctl.
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
_NAMESPACED_BEGINNINGS: Final = ("net.", "fs.mqueue.")
_SWAPPED: Final = str.maketrans("./", "/.")


def sysctls_of(pod: Pod) -> Mapping[str, str]:
    """The settings a pod wants, with names as a runtime is told them."""
    context = pod.spec.security_context
    return {dotted(each.name): each.value for each in (context.sysctls if context else None) or ()}


def sysctl_trouble(pod: Pod, allowed_unsafe: Sequence[str] = ()) -> str | None:
    """Why a pod may not have a setting it wants; None: it may have all."""
    for name in sysctls_of(pod):
        if not any(_matches(name, dotted(pattern)) for pattern in (*SAFE, *allowed_unsafe)):
            return f'forbidden sysctl: "{name}" not allowlisted'
        if shared := _shared_with_the_node(name, pod):
            return f'forbidden sysctl: "{name}" not allowed with host {shared} enabled'
    return None


def unsafe_sysctl_trouble(pattern: str) -> str | None:
    """Why a node's owner cannot allow a setting, or a beginning of names; None: he can."""
    name = dotted(pattern).partition("*")[0]
    if name in _NAMESPACED or name.startswith(_NAMESPACED_BEGINNINGS):
        return None
    return f"cannot allow {pattern!r} to pods: it is not known to be a setting that each pod has of its own"


def dotted(name: str) -> str:
    """A name with dots between its parts; in one that was written with slashes the two change places."""
    slash, dot = name.find("/"), name.find(".")
    return name.translate(_SWAPPED) if slash != -1 and (dot == -1 or slash < dot) else name


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _shared_with_the_node(name: str, pod: Pod) -> str:
    """The namespace of a setting, if the pod has the node's."""
    if name.startswith("net."):
        return "Net" if pod.spec.host_network else ""
    return "IPC" if pod.spec.host_ipc else ""  # all others that are namespaced: kernel.shm*, kernel.msg*, fs.mqueue.*
