"""Cgroup limits and files. The figures come from the kubelet's tests and formulas."""

import pytest

from podkeeper.model.k8s import core
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.cgroup.limits import (
    CgroupLimits,
    CpuPolicy,
    container_limits,
    container_weight_of,
    files_of,
    pod_limits,
    pod_weight_of,
    quota_of,
    share_files,
    shares_of,
)
from podkeeper.testing import build

Mi = 1024 * 1024
TUNED = CpuPolicy(period=5000)
UNBOUNDED = CpuPolicy(enforce=False)


def resources(requests: str = "", limits: str = "") -> core.ResourceRequirements:
    """Resources written as `cpu memory`."""

    def amounts(text: str) -> dict[str, QuantityLike]:
        return {name: amount for name, amount in zip(("cpu", "memory"), text.split(), strict=False) if amount != "-"}

    return core.ResourceRequirements(requests=amounts(requests), limits=amounts(limits))


def pod_with(
    *containers: core.ResourceRequirements,
    init: tuple[core.Container, ...] = (),
    whole: core.ResourceRequirements | None = None,
    overhead: dict[str, QuantityLike] | None = None,
) -> core.Pod:
    """A pod whose containers have these resources."""
    built = tuple(build.container(resources=each) for each in containers)
    return build.pod(init=init, spec={"containers": built, "resources": whole, "overhead": overhead})


def init(requests: str = "", limits: str = "") -> core.Container:
    return build.container(resources=resources(requests, limits))


def sidecar(requests: str = "", limits: str = "") -> core.Container:
    return build.container(resources=resources(requests, limits), sidecar=True)


# ---- formulas: printed by the kubelet's Go code --------------------------------------------

MILLI_CPU = [  # thousandths of a CPU, shares, quota in 100 ms
    (0, 2, None), (1, 2, 1000), (2, 2, 1000), (3, 3, 1000), (5, 5, 1000), (9, 9, 1000), (10, 10, 1000),
    (100, 102, 10000), (150, 153, 15000), (250, 256, 25000), (333, 340, 33300), (999, 1022, 99900),
    (1000, 1024, 100000), (1500, 1536, 150000), (4000, 4096, 400000), (255999, 262142, 25599900),
    (256000, 262144, 25600000), (256001, 262144, 25600100), (1000000, 262144, 100000000),
]  # fmt: skip

WEIGHTS = [  # shares, weight of a container (runtimes), weight of a pod (kubelet)
    (2, 1, 1), (3, 2, 1), (102, 17, 4), (256, 35, 10), (512, 59, 20), (1024, 100, 39), (2048, 174, 79),
    (4096, 303, 157), (10240, 639, 391), (65536, 3023, 2500), (262143, 10000, 9999), (262144, 10000, 10000),
]  # fmt: skip


@pytest.mark.parametrize("milli, shares, quota", MILLI_CPU)
def test_a_request_becomes_shares_and_a_limit_a_quota(milli: int, shares: int, quota: int | None) -> None:
    assert (shares_of(milli), quota_of(milli)) == (shares, quota)


@pytest.mark.parametrize("shares, of_container, of_pod", WEIGHTS)
def test_shares_become_weights(shares: int, of_container: int, of_pod: int) -> None:
    assert (container_weight_of(shares), pod_weight_of(shares)) == (of_container, of_pod)


def test_more_shares_are_never_less_weight() -> None:
    for weight_of in (container_weight_of, pod_weight_of):
        weights = [weight_of(shares) for shares in range(2, 262145, 7)]
        assert weights == sorted(weights)
        assert (weights[0], min(weights) >= 1, max(weights) <= 10000) == (1, True, True)


# ---- pods: the kubelet's TestResourceConfigForPod, and more cases ------------------

HALF = resources("100m 100Mi", "200m 200Mi")
FULL = resources("100m 100Mi", "100m 100Mi")
PODS = {  # pod, policy -> shares, quota, memory
    "BestEffort gets the smallest share": (pod_with(resources()), CpuPolicy(), (2, None, None)),
    "requests alone set no limit": (pod_with(resources("100m 100Mi")), CpuPolicy(), (102, None, None)),
    "limits of all containers limit the pod": (pod_with(HALF), CpuPolicy(), (102, 20000, 200 * Mi)),
    "no quota where CPU limits are not enforced": (pod_with(HALF), UNBOUNDED, (102, None, 200 * Mi)),
    "one unlimited container: no pod limit": (pod_with(HALF, resources("100m 100Mi")), CpuPolicy(), (204, None, None)),
    "a shorter period, a smaller quota": (pod_with(HALF), TUNED, (102, 1000, 200 * Mi)),
    "guaranteed": (pod_with(FULL), CpuPolicy(), (102, 10000, 100 * Mi)),
    "guaranteed, with a quota of at least 1 ms": (pod_with(FULL), TUNED, (102, 1000, 100 * Mi)),
    "guaranteed, without a quota": (pod_with(FULL), UNBOUNDED, (102, None, 100 * Mi)),
    "one unlimited init container: no pod limit": (
        pod_with(HALF, init=(init("100m 100Mi", "100m 100Mi"), init("100m 100Mi"))), CpuPolicy(), (102, None, None)),
    "an init container that needs more counts": (
        pod_with(HALF, init=(init("300m 10Mi", "400m 300Mi"),)), CpuPolicy(), (307, 40000, 300 * Mi)),
    "an init container that needs less does not": (
        pod_with(HALF, init=(init("10m 10Mi", "10m 10Mi"),)), CpuPolicy(), (102, 20000, 200 * Mi)),
    "sidecars are added": (
        pod_with(HALF, init=(sidecar("50m 10Mi", "100m 50Mi"),)), CpuPolicy(), (153, 30000, 250 * Mi)),
    "an init container runs beside earlier sidecars": (
        pod_with(HALF, init=(sidecar("50m 10Mi", "100m 50Mi"), init("500m 1Mi", "500m 500Mi"))),
        CpuPolicy(), (563, 60000, 550 * Mi)),
    "a sidecar's limits count for later init containers": (
        pod_with(HALF, init=(sidecar("50m 10Mi", "100m 50Mi"), init())), CpuPolicy(), (153, 30000, 250 * Mi)),
    "but not for earlier ones": (
        pod_with(HALF, init=(init(), sidecar("50m 10Mi", "100m 50Mi"))), CpuPolicy(), (153, None, None)),
    "one resource may be limited without the other": (
        pod_with(resources("100m", "- 64Mi"), resources("100m", "1 64Mi")), CpuPolicy(), (204, None, 128 * Mi)),
    "overhead is added to requests and limits": (
        pod_with(resources("100m 100Mi", "- 200Mi"), overhead={"cpu": "100m", "memory": "50Mi"}),
        CpuPolicy(), (204, None, 250 * Mi)),
    "empty pod-level resources are ignored": (pod_with(resources(), whole=resources()), CpuPolicy(), (2, None, None)),
    "requests of the pod": (pod_with(resources(), whole=resources("100m 100Mi")), CpuPolicy(), (102, None, None)),
    "requests of the pod replace those of containers": (
        pod_with(resources("10m 50Mi"), whole=resources("100m 100Mi")), CpuPolicy(), (102, None, None)),
    "limits of the pod": (pod_with(resources(), whole=HALF), CpuPolicy(), (102, 20000, 200 * Mi)),
    "limits of the pod replace those of containers": (
        pod_with(resources("10m 50Mi", "50m 100Mi"), whole=HALF), CpuPolicy(), (102, 20000, 200 * Mi)),
    "requests of the pod, limits of its containers": (
        pod_with(resources("200m 200Mi", "200m 200Mi"), whole=resources("200m 300Mi")),
        CpuPolicy(), (204, 20000, 200 * Mi)),
    "guaranteed as a whole": (pod_with(resources(), whole=FULL), CpuPolicy(), (102, 10000, 100 * Mi)),
    "guaranteed as a whole, whatever its containers have": (
        pod_with(resources("10m 50Mi", "50m 50Mi"), init=(init("10m 50Mi", "50m 50Mi"),), whole=FULL),
        CpuPolicy(), (102, 10000, 100 * Mi)),
}  # fmt: skip


@pytest.mark.parametrize("given, policy, expected", PODS.values(), ids=PODS.keys())
def test_pod_limits(given: core.Pod, policy: CpuPolicy, expected: tuple[int, int | None, int | None]) -> None:
    limits = pod_limits(given, policy)
    assert (limits.cpu_shares, limits.cpu_quota, limits.memory) == expected
    assert (limits.cpu_weight, limits.cpu_period) == (pod_weight_of(limits.cpu_shares), policy.period)


def test_the_pids_limit_is_the_nodes() -> None:
    assert pod_limits(pod_with(resources()), pids=100).pids == pod_limits(pod_with(FULL), pids=100).pids == 100
    assert pod_limits(pod_with(FULL)).pids is None


CONTAINERS = {  # container, resources of the pod -> shares, quota, memory
    "no resources": (resources(), None, (2, None, None)),
    "requests and limits": (resources("250m 10Mi", "500m 64Mi"), None, (256, 50000, 64 * Mi)),
    "a missing request is the limit": (resources("", "500m 64Mi"), None, (512, 50000, 64 * Mi)),
    "a request of zero is the least": (resources("0", "500m"), None, (2, 50000, None)),
    "a tiny limit is one millisecond": (resources("", "1m"), None, (2, 1000, None)),
    "limits of zero are none": (resources("100m", "0 0"), None, (102, None, None)),
    "pod-level limits if it has none": (resources("100m"), resources("", "2 128Mi"), (102, 200000, 128 * Mi)),
    "its own limits before pod-level ones": (
        resources("", "1 64Mi"), resources("", "2 128Mi"), (1024, 100000, 64 * Mi)),
    "pod-level requests do not count": (resources(), resources("1 64Mi"), (2, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("own, whole, expected", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_container_limits(
    own: core.ResourceRequirements,
    whole: core.ResourceRequirements | None,
    expected: tuple[int, int | None, int | None],
) -> None:
    given = pod_with(own, whole=whole)
    limits = container_limits(given.spec, given.spec.containers[0])
    assert (limits.cpu_shares, limits.cpu_quota, limits.memory) == expected
    assert limits.cpu_weight == container_weight_of(limits.cpu_shares)
    assert container_limits(given.spec, given.spec.containers[0], UNBOUNDED).cpu_quota is None


def test_a_container_has_no_swap_and_an_oom_kill_kills_all_its_processes() -> None:
    given = pod_with(resources("250m 10Mi", "500m 64Mi"))
    assert container_limits(given.spec, given.spec.containers[0], TUNED) == CgroupLimits(
        cpu_shares=256,
        cpu_weight=35,
        cpu_quota=2500,
        cpu_period=5000,
        memory=64 * Mi,
        pids=None,
        swap=False,
        oom_group=True,
    )


def test_a_pod_may_swap_and_an_oom_kill_kills_single_containers() -> None:
    bounded = CgroupLimits(cpu_shares=102, cpu_weight=4, cpu_quota=20000, cpu_period=100_000, memory=200 * Mi, pids=7)
    assert pod_limits(pod_with(HALF), pids=7) == bounded
    assert pod_limits(pod_with(resources()), TUNED, pids=7) == CgroupLimits(
        cpu_shares=2, cpu_weight=1, cpu_period=5000, pids=7
    )
    assert (bounded.swap, bounded.oom_group) == (True, False)


@pytest.mark.parametrize("shares", [0, 1, 2])
def test_a_cpu_weight_is_at_least_1(shares: int) -> None:
    assert container_weight_of(shares) == 1


@pytest.mark.parametrize("shares", [262144, 262145, 1_000_000])
def test_a_cpu_weight_is_at_most_10000(shares: int) -> None:
    assert (container_weight_of(shares), pod_weight_of(shares)) == (10000, 10000)


BURSTABLE_PODS = {  # pod -> quota, memory
    "a limit of zero is no limit": (pod_with(HALF, resources("100m", "0 0")), (None, None)),
    "a sidecar's limits do not count for app containers": (
        pod_with(resources("1m"), init=(sidecar("1m", "100m 1Mi"),)), (None, None)),
    "a sidecar of sidecars": (
        pod_with(HALF, init=(sidecar("1m", "100m"), sidecar("1m", "- 1Mi"), init())), (30000, None)),
    "an init container's limits count only for itself": (
        pod_with(HALF, init=(init("1m", "100m 1Mi"), init())), (None, None)),
    "pod-level cpu, no memory limit": (pod_with(resources("1m"), whole=resources("1m", "200m")), (20000, None)),
    "pod-level extended resources do not count": (
        pod_with(resources("1m"), whole=core.ResourceRequirements(limits={"example.com/a": "1"})), (None, None)),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), BURSTABLE_PODS.values(), ids=BURSTABLE_PODS.keys())
def test_limits_of_a_burstable_pod(given: core.Pod, expected: tuple[int | None, int | None]) -> None:
    limits = pod_limits(given)
    assert (limits.cpu_quota, limits.memory) == expected


# ---- files -----------------------------------------------------------------------------------

BOUND = CgroupLimits(512, 59, 50000, 100000, 64 * Mi, 100)
FILES = {
    "version 1, with limits": (BOUND, 1, {
        "cpu.shares": "512", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000",
        "memory.limit_in_bytes": "67108864", "pids.max": "100"}),
    "version 1, without limits: limits are reset": (CgroupLimits(2, 1), 1, {
        "cpu.shares": "2", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1",
        "memory.limit_in_bytes": "-1", "pids.max": "max"}),
    "version 1, a container does not swap": (CgroupLimits(2, 1, memory=Mi, swap=False, oom_group=True), 1, {
        "cpu.shares": "2", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1",
        "memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576", "pids.max": "max"}),
    "version 2, with limits": (BOUND, 2, {
        "cpu.weight": "59", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "100"}),
    "version 2, without limits: limits are reset": (CgroupLimits(2, 1), 2, {
        "cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "max"}),
    "version 2, a container has no swap and is killed as one": (CgroupLimits(2, 1, swap=False, oom_group=True), 2, {
        "cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "max",
        "memory.swap.max": "0", "memory.oom.group": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("limits, version, expected", FILES.values(), ids=FILES.keys())
def test_files_of_limits(limits: CgroupLimits, version: int, expected: dict[str, str]) -> None:
    assert files_of(limits, version) == expected


def test_files_of_a_share_alone() -> None:
    assert (share_files(0, 1), share_files(0, 2)) == ({"cpu.shares": "2"}, {"cpu.weight": "1"})
    assert (share_files(1000, 1), share_files(1000, 2)) == ({"cpu.shares": "1024"}, {"cpu.weight": "39"})
