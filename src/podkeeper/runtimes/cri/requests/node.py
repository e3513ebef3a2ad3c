"""Facts about a node and its runtime that CRI requests need.

Filled from the machine (`runtimes/cri/host_facts.py`), the runtime's Status call and the kubelet's configuration. All
other modules only read them. The defaults are the kubelet's, for a runtime without optional features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from podkeeper.rules.cgroup.limits import PERIOD_MICROSECONDS, CpuPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """Features of a runtime handler."""

    recursive_read_only: bool = False
    user_namespaces: bool = False


NOTHING_NEW: Final = Handler()


@dataclass(frozen=True, slots=True)
class IdRange:
    """The host IDs of a pod with its own user namespace. `first` is ID 0 in the pod."""

    first: int
    length: int = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    memory_bytes: int
    pods_root: str  # holds a directory per pod UID
    seccomp_root: str  # profiles of type Localhost are named relative to it
    cgroup_v2: bool
    hugepage_sizes: tuple[str, ...] = ()  # "2MB", "1GB"
    hidden_paths: tuple[str, ...] = ()  # masked in containers in addition to the usual paths
    selinux: bool = False  # enabled on this machine
    apparmor: bool = True  # enabled on this machine
    swap_controller: bool = True  # swap accounting is on
    swap_bytes: int = 0

    cpu_cfs_quota: bool = True
    cpu_period: int = PERIOD_MICROSECONDS
    default_seccomp: bool = False
    single_process_oom_kill: bool = False  # OOM kills only one process (cgroup v2 only)
    limited_swap: bool = False  # memorySwap.swapBehavior is LimitedSwap
    allowed_unsafe_sysctls: tuple[str, ...] = ()

    runtime_classes: Mapping[str, str] = field(default_factory=dict)  # runtime class -> handler
    handlers: Mapping[str, Handler] = field(default_factory=dict)  # by name; "" is the default handler
    supplemental_groups_policy: bool = False  # the runtime supports it

    @property
    def cpu_policy(self) -> CpuPolicy:
        return CpuPolicy(enforce=self.cpu_cfs_quota, period=self.cpu_period)
