"""Cgroup limits of pods and containers, and the values of the kernel's files.

    resources -> CgroupLimits -> {"cpu.shares": "512", "memory.limit_in_bytes": "67108864", ...}     version 1
                              -> {"cpu.weight": "59", "memory.max": "67108864", ...}                 version 2

As in the kubelet, requests become shares and limits become a quota of at least one millisecond per period. Without
resources, a cgroup gets the smallest share and no limit. A pod's cgroup has a limit only if every container has one.

The version 2 weights of pods and containers differ. For pods, the weight grows linearly with the shares, as in the
kubelet. For containers, it follows a curve through both defaults (1024 shares, weight 100), as in current runtimes. The
result always contains all files, so that a removed limit is reset.

Kubelet counterparts: pkg/kubelet/cm/helpers_linux.go and kuberuntime_container_linux.go.
"""

import math
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of
from podkeeper.rules.resources import Amounts, amounts_of, container_total, limits_of, may_be_pod_level, pod_requests

# The kernel's limits for cpu.shares, as in the kubelet.
MIN_SHARES: Final = 2
MAX_SHARES: Final = 262144
SHARES_PER_CPU: Final = 1024
# The kubelet's default of cpuCFSQuotaPeriod.
PERIOD_MICROSECONDS: Final = 100_000
# The kernel rejects a smaller quota.
MIN_QUOTA_MICROSECONDS: Final = 1000


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits of one cgroup. None means no limit."""

    cpu_shares: int
    cpu_weight: int
    cpu_quota: int | None = None  # microseconds of CPU time in each period
    cpu_period: int = PERIOD_MICROSECONDS
    memory: int | None = None  # bytes
    pids: int | None = None
    swap: bool = True  # False: no swap
    oom_group: bool = False  # an OOM kill kills all its processes (version 2 only)


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """The node's settings for enforcing CPU limits."""

    enforce: bool = True  # cpuCFSQuota
    period: int = PERIOD_MICROSECONDS  # cpuCFSQuotaPeriod


DEFAULT_POLICY: Final = CpuPolicy()


# ---- formulas --------------------------------------------------------------------------------


def shares_of(milli_cpu: int) -> int:
    """Return the CPU shares for a request in thousandths of a CPU."""
    return min(max(milli_cpu * SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES)


def quota_of(milli_cpu: int, period: int = PERIOD_MICROSECONDS) -> int | None:
    """Return the CPU time per period for a limit in thousandths of a CPU. None: no limit."""
    # As in the kubelet, a limit of 0 means no limit.
    return None if milli_cpu == 0 else max(milli_cpu * period // 1000, MIN_QUOTA_MICROSECONDS)


def pod_weight_of(shares: int) -> int:
    """Return the version 2 weight of a pod's cgroup, or of a QoS class: linear in the shares."""
    return 10000 if shares >= MAX_SHARES else 1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)


def container_weight_of(shares: int) -> int:
    """Return the version 2 weight of a container's cgroup: a curve through minimum, default and maximum."""
    if shares <= MIN_SHARES:
        return 1
    if shares >= MAX_SHARES:
        return 10000
    doublings = math.log2(shares)
    return math.ceil(10 ** ((doublings * doublings + 125 * doublings) / 612 - 7 / 34))


# ---- limits ----------------------------------------------------------------------------------


def container_limits(
    spec: core.PodSpec, container: core.Container | core.EphemeralContainer, policy: CpuPolicy = DEFAULT_POLICY
) -> CgroupLimits:
    """Return a container's limits: its own, else the pod-level ones. A missing request equals the limit."""
    resources = container.resources
    requests, limits = amounts_of(resources.requests), amounts_of(resources.limits)
    pod_level = _pod_level_limits(spec)
    cpu_limit, memory_limit = (limits.get(name) or pod_level.get(name, ZERO) for name in ("cpu", "memory"))
    shares = shares_of(requests.get("cpu", cpu_limit).milli_value)
    return CgroupLimits(
        cpu_shares=shares,
        cpu_weight=container_weight_of(shares),
        cpu_quota=quota_of(cpu_limit.milli_value, policy.period) if policy.enforce else None,
        cpu_period=policy.period,
        memory=memory_limit.value or None,
        swap=False,
        # As in the kubelet: the kernel then kills the whole container instead of one of its processes.
        oom_group=True,
    )


def pod_limits(pod: core.Pod, policy: CpuPolicy = DEFAULT_POLICY, pids: int | None = None) -> CgroupLimits:
    """Return a pod's limits. `pids` is the node's limit for each pod."""
    qos = qos_of(pod)
    if qos == BEST_EFFORT:
        return CgroupLimits(MIN_SHARES, pod_weight_of(MIN_SHARES), cpu_period=policy.period, pids=pids)
    limits = _pod_limits(pod.spec)
    limited = ("cpu", "memory") if qos != BURSTABLE else _limited_by_all(pod.spec)
    shares = shares_of(pod_cpu_request(pod))
    return CgroupLimits(
        cpu_shares=shares,
        cpu_weight=pod_weight_of(shares),
        cpu_quota=quota_of(_milli(limits, "cpu"), policy.period) if "cpu" in limited and policy.enforce else None,
        cpu_period=policy.period,
        memory=(limits.get("memory", ZERO).value or None) if "memory" in limited else None,
        pids=pids,
    )


def pod_cpu_request(pod: core.Pod) -> int:
    """Return a pod's CPU request in thousandths of a CPU."""
    return _milli(pod_requests(pod.spec), "cpu")


def _milli(amounts: Amounts, name: str) -> int:
    return amounts.get(name, ZERO).milli_value


def _pod_limits(spec: core.PodSpec) -> dict[str, Quantity]:
    """Return the sum of the containers' limits. The overhead is added to resources that have a limit."""
    limits = container_total(spec, limits_of)
    limits |= _pod_level_limits(spec)
    for name, amount in amounts_of(spec.overhead).items():
        if limits.get(name):
            limits[name] += amount
    return limits


def _limited_by_all(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the resources that the pod or all its containers limit. A sidecar's limits count for later ones."""
    every = [_limited_resources(container) for container in spec.containers]
    sidecars: frozenset[str] = frozenset()
    for container in spec.init_containers or ():
        every.append(_limited_resources(container) | sidecars)
        sidecars = every[-1] if is_sidecar(container) else sidecars
    pod_level = _pod_level_limits(spec)
    return tuple(name for name in ("cpu", "memory") if pod_level.get(name) or all(name in limited for limited in every))


def _limited_resources(container: core.Container) -> frozenset[str]:
    return frozenset(name for name, amount in limits_of(container).items() if amount)


def _pod_level_limits(spec: core.PodSpec) -> dict[str, Quantity]:
    amounts = amounts_of(spec.resources.limits) if spec.resources is not None else {}
    return {name: amount for name, amount in amounts.items() if may_be_pod_level(name)}


# ---- files -----------------------------------------------------------------------------------


def files_of(limits: CgroupLimits, version: int) -> dict[str, str]:
    """Return the value for each file of a cgroup."""
    if version == 2:
        files = {
            "cpu.weight": str(limits.cpu_weight),
            "cpu.max": f"{_or_max(limits.cpu_quota)} {limits.cpu_period}",
            "memory.max": _or_max(limits.memory),
            "pids.max": _or_max(limits.pids),
        }
        if not limits.swap:
            files["memory.swap.max"] = "0"
        if limits.oom_group:
            files["memory.oom.group"] = "1"
        return files
    memory = "-1" if limits.memory is None else str(limits.memory)
    files = {
        "cpu.shares": str(limits.cpu_shares),
        "cpu.cfs_period_us": str(limits.cpu_period),
        "cpu.cfs_quota_us": "-1" if limits.cpu_quota is None else str(limits.cpu_quota),
        "memory.limit_in_bytes": memory,
        "pids.max": _or_max(limits.pids),
    }
    if not limits.swap:
        # In version 1, this limit covers memory and swap together.
        files["memory.memsw.limit_in_bytes"] = memory
    return files


def share_files(milli_cpu: int, version: int) -> dict[str, str]:
    """Return the files for the CPU share alone: of a QoS class, or (0) of a pod with the smallest share."""
    shares = shares_of(milli_cpu)
    return {"cpu.weight": str(pod_weight_of(shares))} if version == 2 else {"cpu.shares": str(shares)}


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)
