"""Facts of the host and features that the runtime reports."""

from dataclasses import replace
from pathlib import Path

import pytest

from podkeeper.runtimes.cri.host_facts import machine_facts, with_runtime_status
from podkeeper.runtimes.cri.requests.node import Handler, NodeFacts
from podkeeper.runtimes.cri.schema import cri

V2 = {
    "proc/meminfo": "MemTotal:       16384 kB\nMemFree:   1 kB\nSwapTotal:       2048 kB\nHugePages_Total:  0\n",
    "proc/self/cgroup": "0::/system.slice/agent.service\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/system.slice/agent.service/memory.swap.max": "max\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/free": "0",
    "sys/kernel/mm/hugepages/hugepages-64kB/free": "0",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free": "0",
    "sys/kernel/mm/hugepages/odd": "0",
    "sys/devices/system/cpu/cpu10/thermal_throttle/count": "0",
    "sys/devices/system/cpu/cpu2/thermal_throttle/count": "0",
    "sys/devices/system/cpu/cpufreq/thermal_throttle/count": "0",
    "sys/fs/selinux/enforce": "1",
    "sys/module/apparmor/parameters/enabled": "Y\n",
}
V1 = {
    "proc/meminfo": "MemTotal:       16384 kB\n",
    "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": "9223372036854771712\n",
    "sys/module/apparmor/parameters/enabled": "N\n",
}

THROTTLES = tuple(f"/sys/devices/system/cpu/cpu{number}/thermal_throttle" for number in (2, 10))
BARE = NodeFacts(
    memory_bytes=2**24,
    pods_root="/pods",
    seccomp_root="/seccomp",
    cgroup_v2=False,
    apparmor=False,
    swap_controller=True,
)

MACHINES = {
    "a machine with everything": (
        V2,
        replace(
            BARE, swap_bytes=2**21, cgroup_v2=True, hugepage_sizes=("64KB", "2MB", "1GB"), hidden_paths=THROTTLES,
            selinux=True, apparmor=True)),
    "version 1": (V1, BARE),
    "nothing to be read": ({}, replace(BARE, memory_bytes=0, swap_controller=False)),
}  # fmt: skip


@pytest.mark.parametrize("files, expected", MACHINES.values(), ids=MACHINES.keys())
def test_machine(files: dict[str, str], expected: NodeFacts, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert machine_facts("/pods", "/seccomp", root=str(tmp_path)) == expected


def test_this_machine_has_memory() -> None:
    facts = machine_facts("/pods", "/seccomp")
    assert facts.memory_bytes > 2**26
    assert all(path.startswith("/sys/") for path in facts.hidden_paths)


def test_reported_features_of_a_runtime() -> None:
    facts = machine_facts("/pods", "/seccomp")
    status = cri.StatusResponse(
        runtime_handlers=[
            cri.RuntimeHandler(name="", features=cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True)),
            cri.RuntimeHandler(name="kata"),
        ],
        features=cri.RuntimeFeatures(supplemental_groups_policy=True),
    )
    found = with_runtime_status(facts, status)
    assert found.handlers == {"": Handler(recursive_read_only=True), "kata": Handler()}
    assert found.supplemental_groups_policy is True
    assert with_runtime_status(facts, cri.StatusResponse()) == facts
