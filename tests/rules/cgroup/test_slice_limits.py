"""Cgroup limits as systemd properties, for both cgroup versions. The quotas are those of libcontainer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.cgroup.limits import CgroupLimits, files_of
from podkeeper.rules.cgroup.slice_limits import (
    INFINITY,
    accounting,
    limit_properties,
    rounded,
    share_properties,
    unit_properties,
)

FULL = CgroupLimits(512, 20, cpu_quota=50_000, memory=64 << 20, pids=77)
NONE = CgroupLimits(2, 1)

PROPERTIES: dict[str, tuple[CgroupLimits, int, int, dict[str, int]]] = {
    "version 1": (FULL, 1, 252, {
        "CPUShares": 512, "CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": 500_000,
        "MemoryLimit": 64 << 20, "TasksMax": 77}),
    "version 2": (FULL, 2, 252, {
        "CPUWeight": 20, "CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": 500_000,
        "MemoryMax": 64 << 20, "TasksMax": 77}),
    "no limit is infinity": (NONE, 2, 252, {
        "CPUWeight": 1, "CPUQuotaPeriodUSec": 100_000, "CPUQuotaPerSecUSec": INFINITY,
        "MemoryMax": INFINITY, "TasksMax": INFINITY}),
    "an old systemd has no period property": (NONE, 1, 241, {
        "CPUShares": 2, "CPUQuotaPerSecUSec": INFINITY, "MemoryLimit": INFINITY, "TasksMax": INFINITY}),
}  # fmt: skip


@pytest.mark.parametrize("limits, version, systemd, expected", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_limit_properties(limits: CgroupLimits, version: int, systemd: int, expected: dict[str, int]) -> None:
    properties = limit_properties(limits, version, systemd)
    assert {name: value for name, (_, value) in properties} == expected
    assert {kind for _, (kind, _) in properties} == {"t"}


QUOTAS: dict[str, tuple[int, int, int, int]] = {  # quota and period, what it is rounded to, and each second
    "half a CPU": (50_000, 100_000, 50_000, 500_000),
    "an eighth is no whole percent": (12_500, 100_000, 13_000, 130_000),
    "the least": (1_000, 100_000, 1_000, 10_000),
    "a little more than the least": (1_001, 100_000, 2_000, 20_000),
    "another period": (6_000, 40_000, 6_000, 150_000),
    "many CPUs": (1_234_567, 100_000, 1_235_000, 12_350_000),
}


@pytest.mark.parametrize("quota, period, expected, each_second", QUOTAS.values(), ids=QUOTAS.keys())
def test_systemd_counts_in_whole_percent(quota: int, period: int, expected: int, each_second: int) -> None:
    limits = CgroupLimits(2, 1, cpu_quota=quota, cpu_period=period)
    assert rounded(limits).cpu_quota == expected
    assert dict(limit_properties(limits, 1, 252))["CPUQuotaPerSecUSec"] == ("t", each_second)


@given(st.integers(1_000, 10_000_000), st.sampled_from([1_000, 5_000, 10_000, 50_000, 100_000, 1_000_000]))
def test_files_and_properties_have_the_same_quota(quota: int, period: int) -> None:
    limits = CgroupLimits(2, 1, cpu_quota=quota, cpu_period=period)
    kept = rounded(limits)
    properties = dict(limit_properties(kept, 2, 252))["CPUQuotaPerSecUSec"][1]
    written = int(files_of(kept, 2)["cpu.max"].split()[0])
    assert written * 1_000_000 // period == properties
    assert quota <= written < quota + period // 100 + 1
    assert rounded(kept) == kept
    assert limit_properties(kept, 2, 252) == limit_properties(limits, 2, 252)


def test_no_quota_needs_no_rounding() -> None:
    assert rounded(NONE) is NONE


def test_the_share_of_a_class() -> None:
    assert share_properties(2000, 1) == (("CPUShares", ("t", 2048)),)
    assert share_properties(2000, 2) == (("CPUWeight", ("t", 79)),)
    assert share_properties(0, 1) == (("CPUShares", ("t", 2)),)
    assert share_properties(0, 2) == (("CPUWeight", ("t", 1)),)


def test_every_controller_is_enabled() -> None:
    for version, blocks in ((1, "BlockIO"), (2, "IO")):
        names = ("Memory", "CPU", blocks, "Tasks")
        assert accounting(version) == tuple((f"{name}Accounting", ("b", True)) for name in names)


def test_a_slice_wants_the_one_it_is_in_and_nothing_else() -> None:
    properties = dict(unit_properties("pod a/b", "kubepods.slice"))
    assert properties["Wants"] == ("as", ("kubepods.slice",))
    assert properties["DefaultDependencies"] == ("b", False)
