"""What must be known of a node and its runtime before a request can be written.

Filled by whoever looks at the machine (`runtimes/cri/machine.py`), the runtime (its Status call) and the kubelet's
configuration; all else in this room only reads it. Defaults are the reference's, for a runtime that offers nothing new.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from podkeeper.rules.cgroup_limits import PERIOD_MICROSECONDS, CpuPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """What one of a runtime's handlers can do."""

    recursive_read_only: bool = False
    user_namespaces: bool = False


NOTHING_NEW: Final = Handler()


@dataclass(frozen=True, slots=True)
class IdRange:
    """The users and groups of the node that a pod with users of its own has: its 0 is `first`, and so on."""

    first: int
    length: int = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All of it, at one time."""

    memory_bytes: int
    pods_root: str  # holds a directory per pod UID
    seccomp_root: str  # profiles of type Localhost are named relative to it
    cgroup_v2: bool
    hugepage_sizes: tuple[str, ...] = ()  # "2MB", "1GB"
    hidden_paths: tuple[str, ...] = ()  # of this machine, hidden from containers besides the usual ones
    selinux: bool = False  # enabled on this machine
    apparmor: bool = True  # enabled on this machine
    swap_controller: bool = True  # the kernel keeps count of swap
    swap_bytes: int = 0

    cpu_cfs_quota: bool = True
    cpu_period: int = PERIOD_MICROSECONDS
    default_seccomp: bool = False
    single_process_oom_kill: bool = False  # out of memory, only the process that asked goes (version 2 only)
    limited_swap: bool = False  # memorySwap.swapBehavior is LimitedSwap
    allowed_unsafe_sysctls: tuple[str, ...] = ()

    runtime_classes: Mapping[str, str] = field(default_factory=dict)  # names of handlers, by runtime class
    handlers: Mapping[str, Handler] = field(default_factory=dict)  # by name; "" is the runtime's usual one
    supplemental_groups_policy: bool = False  # the runtime obeys it

    @property
    def cpu_policy(self) -> CpuPolicy:
        """How containers are held to their CPU limits."""
        return CpuPolicy(enforce=self.cpu_cfs_quota, period=self.cpu_period)
