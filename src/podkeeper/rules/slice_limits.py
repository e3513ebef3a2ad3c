"""What systemd is told of a cgroup: limits come in, properties of its unit go out, for cgroup versions 1 and 2.

    Limits -> ("CPUShares", ("t", 512)), ("MemoryLimit", ("t", 67108864)), ...      version 1
           -> ("CPUWeight", ("t", 20)), ("MemoryMax", ("t", 67108864)), ...         version 2

They are given in full, so that a limit that is no more is taken back. Systemd counts CPU in whole percent: a quota in
between is rounded up, and the kernel's files (`files_of` of the limits that `rounded` returns) must say the same, else
the one who writes last would win. The Go ancestor is opencontainers/cgroups/systemd.
"""

from dataclasses import replace
from typing import Final

from podkeeper.rules.cgroup_limits import Limits, pod_weight_of, shares_of

Property = tuple[str, tuple[str, bool | int | str | tuple[str | int, ...]]]
"""A name, and a value with its D-Bus type."""

INFINITY: Final = 2**64 - 1
PERIOD_SINCE: Final = 242  # the version of systemd that knows CPUQuotaPeriodUSec
_SECOND: Final = 1_000_000
_PERCENT: Final = 10_000  # of a CPU's second, in microseconds


def unit_properties(description: str, parent: str) -> tuple[Property, ...]:
    """What a new slice is told once: systemd does not let that be changed."""
    return (
        ("Description", ("s", description)),
        ("Wants", ("as", (parent,))),
        ("DefaultDependencies", ("b", False)),
    )


def accounting(version: int) -> tuple[Property, ...]:
    """What makes systemd give a slice each controller, whether it has a limit or not."""
    names = ("Memory", "CPU", "BlockIO" if version == 1 else "IO", "Tasks")
    return tuple((f"{name}Accounting", ("b", True)) for name in names)


def limit_properties(limits: Limits, version: int, systemd: int) -> tuple[Property, ...]:
    """The limits of a slice; `systemd` is that one's own version."""
    quota = INFINITY if limits.cpu_quota is None else _each_second(limits.cpu_quota, limits.cpu_period)
    period: tuple[Property, ...] = (("CPUQuotaPeriodUSec", ("t", limits.cpu_period)),)
    return (
        _share(limits.cpu_shares, limits.cpu_weight, version),
        *(period if systemd >= PERIOD_SINCE else ()),
        ("CPUQuotaPerSecUSec", ("t", quota)),
        ("MemoryLimit" if version == 1 else "MemoryMax", ("t", _or_infinity(limits.memory))),
        ("TasksMax", ("t", _or_infinity(limits.pids))),
    )


def share_properties(milli_cpu: int, version: int) -> tuple[Property, ...]:
    """Nothing but the share of CPU: of a class of pods, or (0) of a pod that shall have the least."""
    shares = shares_of(milli_cpu)
    return (_share(shares, pod_weight_of(shares), version),)


def rounded(limits: Limits) -> Limits:
    """The limits as systemd keeps them."""
    if limits.cpu_quota is None or (limits.cpu_quota * _SECOND // limits.cpu_period) % _PERCENT == 0:
        return limits
    quota = _each_second(limits.cpu_quota, limits.cpu_period) * limits.cpu_period // _SECOND
    return replace(limits, cpu_quota=quota)


def _share(shares: int, weight: int, version: int) -> Property:
    return ("CPUShares", ("t", shares)) if version == 1 else ("CPUWeight", ("t", weight))


def _each_second(quota: int, period: int) -> int:
    """CPU time in a second, up to the next percent."""
    return -(-(quota * _SECOND // period) // _PERCENT) * _PERCENT


def _or_infinity(number: int | None) -> int:
    return INFINITY if number is None else number
