"""Resources in requests, for cases that the recorded pods do not cover."""

from dataclasses import replace
from typing import Any

import pytest

from podkeeper.model.k8s.core import Container, Pod, PodStatus, ResourceRequirements
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requests.requesting import GIB, NODE, annotated, made, pod, sandboxed

MIB = 2**20
V2 = replace(NODE, cgroup_v2=True)


def needs(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=requests, limits=limits)


def resources(own: ResourceRequirements, node: NodeFacts = NODE, **spec: Any) -> cri.LinuxContainerResources:
    return made(pod(Container(name="web", resources=own), spec=spec), node=node).linux.resources


CPU = {
    "no resources": (needs(), NODE, (2, 0, 100000)),
    "a request": (needs({"cpu": "500m"}), NODE, (512, 0, 100000)),
    "a limit alone is a request too": (needs(None, {"cpu": "2"}), NODE, (2048, 200000, 100000)),
    "a very small limit": (needs(None, {"cpu": "1m"}), NODE, (2, 1000, 100000)),
    "a request of nothing stays one": (needs({"cpu": "0"}, {"cpu": "1"}), NODE, (2, 100000, 100000)),
    "very much": (needs({"cpu": "1000"}), NODE, (262144, 0, 100000)),
    "a period of the node's own": (needs(None, {"cpu": "1"}), replace(NODE, cpu_period=5000), (1024, 5000, 5000)),
    "limits that are not enforced": (needs(None, {"cpu": "1"}), replace(NODE, cpu_cfs_quota=False), (1024, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("own, node, expected", CPU.values(), ids=CPU.keys())
def test_cpu(own: ResourceRequirements, node: NodeFacts, expected: tuple[int, int, int]) -> None:
    found = resources(own, node)
    assert (found.cpu_shares, found.cpu_quota, found.cpu_period) == expected


def test_a_container_without_limits_has_those_of_its_pod() -> None:
    whole = needs({"memory": "1Gi"}, {"cpu": "1", "memory": "2Gi", "hugepages-2Mi": "8Mi"})
    node = replace(NODE, hugepage_sizes=("2MB",))
    found = resources(needs(), node, resources=whole)
    assert (found.cpu_quota, found.memory_limit_in_bytes, found.hugepage_limits[0].limit) == (100000, 2 * GIB, 8 * MIB)
    found = resources(needs(None, {"cpu": "250m", "memory": "1Gi", "hugepages-2Mi": "2Mi"}), node, resources=whole)
    assert (found.cpu_quota, found.memory_limit_in_bytes, found.hugepage_limits[0].limit) == (25000, GIB, 2 * MIB)


def test_every_size_of_huge_pages_has_a_limit() -> None:
    node = replace(NODE, hugepage_sizes=("64KB", "2MB", "1GB"))
    own = needs(None, {"hugepages-1Gi": "4Gi", "hugepages-64Ki": "1Mi", "hugepages-odd": "1", "memory": "1Gi"})
    limits = {limit.page_size: limit.limit for limit in resources(own, node).hugepage_limits}
    assert limits == {"64KB": MIB, "2MB": 0, "1GB": 4 * GIB}


# ---- version 2, and swap ----

BURSTABLE = needs({"memory": "4Gi"}, {"memory": "8Gi"})
GUARANTEED = needs({"cpu": "1", "memory": "4Gi"}, {"cpu": "1", "memory": "4Gi"})
WITH_SWAP = replace(V2, limited_swap=True, swap_bytes=8 * GIB)

UNIFIED = {
    "all processes are OOM-killed together, and swap is off": (
        needs(), V2, {"memory.oom.group": "1", "memory.swap.max": "0"}),
    "single processes are OOM-killed with singleProcessOOMKill": (
        needs(), replace(V2, single_process_oom_kill=True), {"memory.swap.max": "0"}),
    "no swap setting if the kernel has no swap controller": (
        needs(), replace(V2, swap_controller=False), {"memory.oom.group": "1"}),
    "the share of the swap equals the share of the memory": (
        BURSTABLE, WITH_SWAP, {"memory.oom.group": "1", "memory.swap.max": str(2 * GIB)}),
    "no swap for a guaranteed pod": (GUARANTEED, WITH_SWAP, {"memory.oom.group": "1", "memory.swap.max": "0"}),
    "no swap without a memory request": (
        needs({"cpu": "1"}), WITH_SWAP, {"memory.oom.group": "1", "memory.swap.max": "0"}),
    "no swap if the request equals the limit": (
        needs({"memory": "1Gi"}, {"memory": "1Gi"}), WITH_SWAP, {"memory.oom.group": "1", "memory.swap.max": "0"}),
    "no swap if the request exceeds the memory of the node": (
        needs({"memory": "17Gi"}), WITH_SWAP, {"memory.oom.group": "1", "memory.swap.max": "0"}),
    "nothing in cgroup version 1": (BURSTABLE, replace(WITH_SWAP, cgroup_v2=False), {}),
}  # fmt: skip


@pytest.mark.parametrize("own, node, expected", UNIFIED.values(), ids=UNIFIED.keys())
def test_unified(own: ResourceRequirements, node: NodeFacts, expected: dict[str, str]) -> None:
    assert dict(resources(own, node).unified) == expected


def test_a_critical_pod_never_swaps() -> None:
    found = resources(BURSTABLE, WITH_SWAP, priority=2_000_000_000)
    assert found.unified["memory.swap.max"] == "0"


SWAP_V1 = {
    "memory and swap together are the memory": (BURSTABLE, NODE, 8 * GIB),
    "no limit is none": (needs(), NODE, 0),
    "not set without a swap controller": (BURSTABLE, replace(NODE, swap_controller=False), 0),
}


@pytest.mark.parametrize("own, node, expected", SWAP_V1.values(), ids=SWAP_V1.keys())
def test_swap_in_version_1(own: ResourceRequirements, node: NodeFacts, expected: int) -> None:
    assert resources(own, node).memory_swap_limit_in_bytes == expected


# ---- sandboxes ----


def box(given: Pod, node: NodeFacts = NODE) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
    linux = sandboxed(given, node).linux
    assert (linux.HasField("overhead"), linux.HasField("resources")) == (True, True)
    return linux.resources, linux.overhead


def test_a_sandbox_has_the_sums_of_its_containers() -> None:
    given = pod(
        Container(name="a", resources=needs({"cpu": "500m"}, {"cpu": "1", "memory": "1Gi"})),
        Container(name="b", resources=needs({"cpu": "250m"}, {"cpu": "1", "memory": "1Gi"})),
        init=(Container(name="i", resources=needs({"cpu": "2"}, {"cpu": "3"})),),
    )
    found, overhead = box(given)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (2048, 300000, 2 * GIB)
    assert overhead == cri.LinuxContainerResources()


def test_pod_level_resources_replace_the_sums_and_overhead_is_separate() -> None:
    given = pod(
        Container(name="a", resources=needs({"cpu": "500m"}, {"cpu": "1", "memory": "1Gi"})),
        spec={"resources": needs({"cpu": "2"}, {"memory": "4Gi"}), "overhead": {"cpu": "250m", "memory": "64Mi"}},
    )
    found, overhead = box(given, V2)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (2048, 100000, 4 * GIB)
    assert overhead == cri.LinuxContainerResources(
        cpu_shares=256,
        cpu_quota=25000,
        cpu_period=100000,
        memory_limit_in_bytes=64 * MIB,
        unified={"memory.oom.group": "1"},
    )
    assert (found.oom_score_adj, list(found.hugepage_limits)) == (0, [])


def test_a_status_decides_the_class_of_a_pod() -> None:
    given = annotated(pod(Container(name="web", resources=GUARANTEED)))
    assert made(given).linux.resources.oom_score_adj == -997
    changed = Pod(metadata=given.metadata, spec=given.spec, status=PodStatus(qos_class="BestEffort"))
    assert made(changed).linux.resources.oom_score_adj == 1000
