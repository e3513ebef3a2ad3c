"""Facts about this machine for CRI requests, read once at the start.

In: the directory of the pods. Out: `NodeFacts`, with the kubelet's defaults for everything that the kubelet's
configuration and the runtime decide (`with_runtime_status`). Blocks. A file that cannot be read counts as absent.
Kubelet counterparts: cadvisor's machine information; pkg/kubelet/kuberuntime, selinux, apparmor, pkg/securitycontext.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from podkeeper.runtimes.cri.requests.node import Handler, NodeFacts
from podkeeper.runtimes.cri.schema import cri


def machine_facts(pods_root: str, seccomp_root: str, root: str = "/") -> NodeFacts:
    """Return the facts of the machine whose file system is at `root`."""
    proc, sys = Path(root, "proc"), Path(root, "sys")
    cgroup_v2 = (sys / "fs/cgroup/cgroup.controllers").exists()
    memory = _meminfo(proc)
    return NodeFacts(
        memory_bytes=memory.get("MemTotal", 0),
        swap_bytes=memory.get("SwapTotal", 0),
        pods_root=pods_root,
        seccomp_root=seccomp_root,
        cgroup_v2=cgroup_v2,
        hugepage_sizes=tuple(_huge_page_sizes(sys)),
        hidden_paths=tuple(f"/{path.relative_to(root)}" for path in _throttle_counters(sys)),
        selinux=(sys / "fs/selinux/enforce").exists(),
        apparmor=_text(sys / "module/apparmor/parameters/enabled").startswith("Y"),
        swap_controller=_swap_file(proc, sys, cgroup_v2).exists(),
    )


def with_runtime_status(facts: NodeFacts, status: cri.StatusResponse) -> NodeFacts:
    """Add the features that a runtime reports."""
    handlers = {
        each.name: Handler(
            recursive_read_only=each.features.recursive_read_only_mounts,
            user_namespaces=each.features.user_namespaces,
        )
        for each in status.runtime_handlers
    }
    return replace(facts, handlers=handlers, supplemental_groups_policy=status.features.supplemental_groups_policy)


def _meminfo(proc: Path) -> dict[str, int]:
    found = re.findall(r"^(\w+): +(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE)
    return {name: int(kibibytes) * 1024 for name, kibibytes in found}


def _huge_page_sizes(sys: Path) -> Iterator[str]:
    """Yield the huge page sizes of the kernel in the spelling of cgroup files."""
    try:
        names = os.listdir(sys / "kernel/mm/hugepages")
    except OSError:
        return
    for name in sorted(names, key=lambda name: (len(name), name)):
        if found := re.fullmatch(r"hugepages-(\d+)kB", name):
            size, unit = int(found[1]), 0
            while size >= 1024 and size % 1024 == 0 and unit < 2:
                size, unit = size // 1024, unit + 1
            yield f"{size}{('KB', 'MB', 'GB')[unit]}"


def _throttle_counters(sys: Path) -> list[Path]:
    """Return the thermal counters, which are a side channel between containers."""
    found = (sys / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")
    return sorted(found, key=lambda path: (len(path.parent.name), path))


def _swap_file(proc: Path, sys: Path, cgroup_v2: bool) -> Path:
    """Return a file that exists if swap accounting is on.

    In version 2, the root cgroup has no such file, so use the cgroup of this process.
    """
    if not cgroup_v2:
        return sys / "fs/cgroup/memory/memory.memsw.limit_in_bytes"
    own = next((line[3:] for line in _text(proc / "self/cgroup").splitlines() if line.startswith("0::")), "/")
    return sys / "fs/cgroup" / own.lstrip("/") / "memory.swap.max"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
