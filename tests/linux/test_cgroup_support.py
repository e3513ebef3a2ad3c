"""Detecting the usable cgroups of a machine, on plain files."""

import os
from pathlib import Path

import pytest

from podkeeper.linux.cgroup_support import AGENT_LEAF, vacate_base
from tests.linux.cgroup_tree import CgroupTree


@pytest.fixture
def tree(tmp_path: Path) -> CgroupTree:
    return CgroupTree(tmp_path)


# ---- detection ------------------------------------------------------------------------------


def test_a_missing_cgroup_file_system_is_reported(tree: CgroupTree) -> None:
    support = tree.detect()
    assert (support.version, support.reason) == (0, "no cgroup file system is mounted")
    assert "mount -t cgroup2" in support.describe()


def test_cgroup_v1_is_detected(tree: CgroupTree) -> None:
    for name in ("cpu", "cpuacct", "memory", "pids"):
        tree.version_1(name)
    support = tree.detect()
    assert (support.version, support.base, support.controllers) == (1, "/", ("cpu", "cpuacct", "memory", "pids"))
    assert support.describe() == "cgroup v1 (cpu, cpuacct, memory, pids)"


def test_cgroup_v2_is_detected(tree: CgroupTree) -> None:
    top = tree.version_2(controllers="cpuset cpu io memory hugetlb pids")
    support = tree.detect()
    assert (support.version, support.base, support.controllers) == (2, "/", ("cpu", "memory", "pids"))
    assert support.directories == (("unified", str(top)),)
    assert support.describe() == "cgroup v2 (cpu, memory, pids)"


def test_a_hybrid_machine_limits_in_version_1_and_kills_in_version_2(tree: CgroupTree) -> None:
    tree.version_1("memory")
    tree.version_1("pids")
    tree.version_2(controllers="hugetlb")
    support = tree.detect()
    assert (support.version, [name for name, _ in support.directories]) == (1, ["memory", "pids", "unified"])
    assert support.describe().startswith(
        "cgroup v1 and a v2 hierarchy for killing (memory, pids); limits of cpu are not"
    )


def test_the_version_with_more_controllers_wins(tree: CgroupTree) -> None:
    tree.version_1("pids")
    tree.version_2(controllers="cpu memory")
    support = tree.detect()
    assert (support.version, support.controllers) == (2, ("cpu", "memory"))


def test_a_version_2_hierarchy_without_controllers_is_useless(tree: CgroupTree) -> None:
    tree.version_2(controllers="hugetlb")
    support = tree.detect()
    assert (support.version, support.directories) == (0, ())
    assert "none of the controllers cpu, memory and pids is writable" in support.describe()


def test_a_hierarchy_that_is_not_writable_is_useless(tree: CgroupTree) -> None:
    top = tree.version_2(own="/user.slice")
    tree.cgroup(top / "user.slice", "memory pids")
    for directory in (top, top / "user.slice"):
        (directory / "cgroup.procs").unlink()  # root may write to every file that exists
    assert tree.detect().version == 0


def test_our_own_cgroup_is_the_base_if_the_top_is_not_writable(tree: CgroupTree) -> None:
    top = tree.version_2(own="/user.slice/run-1.scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "user.slice/run-1.scope", "memory pids", procs=f"{os.getpid()}\n")
    support = tree.detect()
    assert (support.version, support.base, support.controllers) == (2, "/user.slice/run-1.scope", ("memory", "pids"))
    assert support.directories == (("unified", str(own)),)
    assert "limits of cpu are not enforced" in support.describe()


# ---- vacating the base ------------------------------------------------------------------------------


def test_the_agent_leaves_a_base_cgroup_that_must_delegate(tree: CgroupTree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "scope", "memory pids", procs=f"{os.getpid()}\n")
    vacate_base(tree.detect(), str(tree.proc))
    assert (own / AGENT_LEAF / "cgroup.procs").read_text() == str(os.getpid())


def test_the_root_cgroup_and_a_delegating_base_are_not_vacated(tree: CgroupTree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").write_text(f"{os.getpid()}\n")
    vacate_base(tree.detect(), str(tree.proc))
    assert not (top / AGENT_LEAF).exists()
    (top / "cgroup.events").write_text("populated 1\n")
    (top / "cgroup.subtree_control").write_text("cpu memory pids\n")
    vacate_base(tree.detect(), str(tree.proc))
    assert not (top / AGENT_LEAF).exists()
