"""Cgroup limits as properties of systemd units, for cgroup versions 1 and 2.

    CgroupLimits -> ("CPUShares", ("t", 512)), ("MemoryLimit", ("t", 67108864)), ...      version 1
                 -> ("CPUWeight", ("t", 20)), ("MemoryMax", ("t", 67108864)), ...         version 2

The result always contains all properties, so that a removed limit is reset. Systemd counts CPU in whole percent and
rounds a quota up. The kernel's files (`files_of` of the `rounded` limits) must have the same value, otherwise the last
writer would win.

Kubelet counterpart: opencontainers/cgroups/systemd.
"""

from dataclasses import replace
from typing import Final

from podkeeper.rules.cgroup.limits import CgroupLimits, pod_weight_of, shares_of

Property = tuple[str, tuple[str, bool | int | str | tuple[str | int, ...]]]
"""A name, and a value with its D-Bus type."""

INFINITY: Final = 2**64 - 1
PERIOD_SINCE: Final = 242  # the first systemd version with CPUQuotaPeriodUSec
_SECOND: Final = 1_000_000
_PERCENT: Final = 10_000  # of a CPU's second, in microseconds


def unit_properties(description: str, parent: str) -> tuple[Property, ...]:
    """Return the properties of a new slice that systemd does not allow to change later."""
    return (
        ("Description", ("s", description)),
        ("Wants", ("as", (parent,))),
        ("DefaultDependencies", ("b", False)),
    )


def accounting(version: int) -> tuple[Property, ...]:
    """Return the properties that enable each controller of a slice, even without a limit."""
    names = ("Memory", "CPU", "BlockIO" if version == 1 else "IO", "Tasks")
    return tuple((f"{name}Accounting", ("b", True)) for name in names)


def limit_properties(limits: CgroupLimits, version: int, systemd: int) -> tuple[Property, ...]:
    """Return the limits of a slice. `systemd` is systemd's version."""
    quota = INFINITY if limits.cpu_quota is None else _quota_per_second(limits.cpu_quota, limits.cpu_period)
    period: tuple[Property, ...] = (("CPUQuotaPeriodUSec", ("t", limits.cpu_period)),)
    return (
        _share(limits.cpu_shares, limits.cpu_weight, version),
        *(period if systemd >= PERIOD_SINCE else ()),
        ("CPUQuotaPerSecUSec", ("t", quota)),
        ("MemoryLimit" if version == 1 else "MemoryMax", ("t", _or_infinity(limits.memory))),
        ("TasksMax", ("t", _or_infinity(limits.pids))),
    )


def share_properties(milli_cpu: int, version: int) -> tuple[Property, ...]:
    """Return the CPU share alone: of a QoS class, or (0) of a pod with the smallest share."""
    shares = shares_of(milli_cpu)
    return (_share(shares, pod_weight_of(shares), version),)


def rounded(limits: CgroupLimits) -> CgroupLimits:
    """Return the limits as systemd rounds them."""
    if limits.cpu_quota is None or (limits.cpu_quota * _SECOND // limits.cpu_period) % _PERCENT == 0:
        return limits
    quota = _quota_per_second(limits.cpu_quota, limits.cpu_period) * limits.cpu_period // _SECOND
    return replace(limits, cpu_quota=quota)


def _share(shares: int, weight: int, version: int) -> Property:
    return ("CPUShares", ("t", shares)) if version == 1 else ("CPUWeight", ("t", weight))


def _quota_per_second(quota: int, period: int) -> int:
    """Return the CPU time per second, rounded up to a whole percent."""
    return -(-(quota * _SECOND // period) // _PERCENT) * _PERCENT


def _or_infinity(number: int | None) -> int:
    return INFINITY if number is None else number
