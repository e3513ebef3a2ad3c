"""Pod cgroups: on plain files that look like the kernel's, and on real cgroups."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from podkeeper.host.cgroups import HostCgroups, NoCgroups, open_cgroups, own_root
from podkeeper.linux import cgroup
from podkeeper.linux.cgroup_support import AGENT_LEAF
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from tests.host.own_cgroups import HERE, as_unprivileged_user, needs, needs_cgroups, own_cgroups, process_in
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod_with
from tests.linux.cgroup_tree import CgroupTree, kernel_makes


@pytest.fixture
def tree(tmp_path: Path) -> CgroupTree:
    return CgroupTree(tmp_path)


def test_processes_of_other_programs_are_not_moved(tree: CgroupTree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "scope", "memory pids", procs=f"{os.getpid()}\n1\n")
    cgroups = open_cgroups(proc=str(tree.proc))
    assert isinstance(cgroups, NoCgroups)
    assert "1 processes of other programs" in cgroups.describe()
    assert not (own / AGENT_LEAF).exists()


# ---- no cgroups ------------------------------------------------------------------------------


def test_without_cgroups_pods_run_with_one_warning(tree: CgroupTree, caplog: pytest.LogCaptureFixture) -> None:
    cgroups = open_cgroups(proc=str(tree.proc))
    assert isinstance(cgroups, NoCgroups)

    async def scenario() -> None:
        assert [await cgroups.ensure(one) for one in (BURSTABLE, GUARANTEED)] == ["", ""]
        await cgroups.throttle(uid_of(BURSTABLE))
        await cgroups.remove(uid_of(BURSTABLE))
        assert await cgroups.list_pods() == frozenset()
        await cgroups.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) == 1
    assert cgroups.describe().startswith("no cgroups: no cgroup file system is mounted; mount them")


def test_each_state_directory_has_its_own_root_name() -> None:
    assert own_root("/var/lib/one") == own_root("/var/lib/one") != own_root("/var/lib/two")
    assert "/" not in own_root("/var/lib/one")


# ---- plain files: the layout -----------------------------------------------------------------


def opened(tree: CgroupTree, *, of_containers: bool = False) -> HostCgroups:
    cgroups = open_cgroups(pod_pids_limit=50, of_containers=of_containers, proc=str(tree.proc))
    assert isinstance(cgroups, HostCgroups), cgroups.describe()
    return cgroups


def test_pods_are_below_the_root_by_qos_class(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)

    async def scenario() -> list[str]:
        return [await cgroups.ensure(one) for one in (GUARANTEED, BURSTABLE, BEST_EFFORT)]

    parents = asyncio.run(scenario())
    assert parents == [
        f"/kubepods/pod{uid_of(GUARANTEED)}",
        f"/kubepods/burstable/pod{uid_of(BURSTABLE)}",
        f"/kubepods/besteffort/pod{uid_of(BEST_EFFORT)}",
    ]
    assert all((top / parent.lstrip("/")).is_dir() for parent in parents)
    assert asyncio.run(cgroups.list_pods()) == {uid_of(GUARANTEED), uid_of(BURSTABLE), uid_of(BEST_EFFORT)}
    assert cgroups.describe().endswith("; pods are below /kubepods")


def test_limits_and_shares_are_written_on_version_1(tree: CgroupTree) -> None:
    cpu, memory, pids = tree.version_1("cpu"), tree.version_1("memory"), tree.version_1("pids")
    name = f"pod{uid_of(BURSTABLE)}"
    for branch in ("burstable", "besteffort", f"burstable/{name}"):
        kernel_makes(cpu / "kubepods" / branch, "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        kernel_makes(memory / "kubepods" / branch, "memory.limit_in_bytes")
        kernel_makes(pids / "kubepods" / branch, "pids.max")
    cgroups = opened(tree)
    asyncio.run(cgroups.ensure(BURSTABLE))
    assert (cpu / "kubepods/besteffort/cpu.shares").read_text() == "2"
    assert (cpu / "kubepods/burstable/cpu.shares").read_text() == "256"
    pod_directory = f"kubepods/burstable/{name}"
    assert (cpu / pod_directory / "cpu.shares").read_text() == "256"
    assert (cpu / pod_directory / "cpu.cfs_quota_us").read_text() == "-1"
    assert (memory / pod_directory / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (pids / pod_directory / "pids.max").read_text() == "50"
    asyncio.run(cgroups.ensure(pod_with({"cpu": "1"})))
    assert (cpu / "kubepods/burstable/cpu.shares").read_text() == "1280"
    asyncio.run(cgroups.ensure(pod_with({"cpu": "500m"}, uid=uid_of(BURSTABLE))))
    assert (memory / pod_directory / "memory.limit_in_bytes").read_text() == "-1"
    assert (cpu / "kubepods/burstable/cpu.shares").read_text() == "1536"
    asyncio.run(cgroups.throttle(uid_of(BURSTABLE)))
    assert (cpu / pod_directory / "cpu.shares").read_text() == "2"


def test_limits_are_written_and_controllers_delegated_on_version_2(tree: CgroupTree) -> None:
    top = tree.version_2()
    name = f"kubepods/pod{uid_of(GUARANTEED)}"
    for path in ("kubepods", "kubepods/burstable", "kubepods/besteffort", name):
        tree.cgroup(top / path, "cpu memory pids")
        kernel_makes(top / path, "cpu.weight", "cpu.max", "memory.max", "pids.max")
    asyncio.run(opened(tree).ensure(GUARANTEED))
    assert (top / "kubepods/besteffort/cpu.weight").read_text() == "1"
    texts = [(top / name / file).read_text() for file in ("cpu.weight", "cpu.max", "memory.max", "pids.max")]
    assert texts == ["20", "50000 100000", str(64 << 20), "50"]
    for path in (".", "kubepods", "kubepods/burstable", "kubepods/besteffort", name):
        assert (top / path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_only_directories_named_like_pods_are_ours(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)
    for name in ("kubepods/burstable/system", "kubepods/pod", "kubepods/burstable/podmine", "podelsewhere"):
        (top / name).mkdir()
    assert asyncio.run(cgroups.list_pods()) == {"mine"}
    for uid in ("", "elsewhere", "../../podelsewhere", "system"):
        asyncio.run(cgroups.remove(PodUID(uid)))
    assert all((top / name).is_dir() for name in ("podelsewhere", "kubepods/burstable/system", "kubepods/pod"))
    asyncio.run(cgroups.close())
    assert (top / "kubepods").is_dir()


def test_a_cgroup_in_only_one_hierarchy_is_listed_and_removed(tree: CgroupTree) -> None:
    tree.version_1("memory")
    top = tree.version_1("pids")
    cgroups = opened(tree)
    (top / "kubepods/besteffort/podleft/container").mkdir(parents=True)
    assert asyncio.run(cgroups.list_pods()) == {"left"}
    asyncio.run(cgroups.remove(PodUID("left")))
    assert not (top / "kubepods/besteffort/podleft").exists()


def test_cgroups_of_a_runtime_in_hierarchies_that_we_do_not_use_are_listed_and_removed(tree: CgroupTree) -> None:
    ours = tree.version_1("memory")
    others = [tree.version_1("blkio"), tree.version_1("name=systemd")]
    cgroups = opened(tree, of_containers=True)
    parent = asyncio.run(cgroups.ensure(BURSTABLE)).lstrip("/")
    assert not any((top / "kubepods").exists() for top in others)  # only the runtime creates it
    for top in others:
        (top / parent / "container").mkdir(parents=True)
    asyncio.run(cgroups.remove(uid_of(BURSTABLE)))
    assert not any((top / parent).exists() for top in (ours, *others))
    (others[0] / "kubepods/besteffort/podleft").mkdir(parents=True)
    assert asyncio.run(cgroups.list_pods()) == {"left"}
    asyncio.run(cgroups.remove(PodUID("left")))
    asyncio.run(cgroups.close())
    assert not any((top / "kubepods").exists() for top in (ours, *others))


def test_other_hierarchies_are_ignored_without_a_container_runtime(tree: CgroupTree) -> None:
    tree.version_1("memory")
    other = tree.version_1("blkio")
    (other / "kubepods/podtheirs").mkdir(parents=True)
    cgroups = opened(tree)
    asyncio.run(cgroups.remove(PodUID("theirs")))
    assert asyncio.run(cgroups.list_pods()) == frozenset()
    asyncio.run(cgroups.close())
    assert (other / "kubepods/podtheirs").is_dir()


def test_a_removed_root_is_created_again(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)
    asyncio.run(cgroups.close())
    assert not (top / "kubepods").exists()
    parent = asyncio.run(cgroups.ensure(BURSTABLE))
    assert (top / parent.lstrip("/")).is_dir()


@pytest.mark.parametrize("uid", ["", "a/../../b", "nul\0"])
def test_a_uid_that_is_not_a_file_name_is_refused(tree: CgroupTree, uid: str) -> None:
    tree.version_1("memory")
    with pytest.raises(TryLater, match="cannot create a cgroup for pod web"):
        asyncio.run(opened(tree).ensure(pod_with(uid=uid)))


def test_an_os_error_is_retried(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)
    (top / f"kubepods/burstable/pod{uid_of(BURSTABLE)}/memory.limit_in_bytes").mkdir(parents=True)
    with pytest.raises(TryLater, match=r"cannot create the cgroup of pod .*memory\.limit_in_bytes"):
        asyncio.run(cgroups.ensure(BURSTABLE))


# ---- real cgroups -----------------------------------------------------------------------------


@needs_cgroups
def test_removing_a_pod_kills_its_processes() -> None:
    with own_cgroups() as (cgroups, _):
        parent = asyncio.run(cgroups.ensure(BURSTABLE))
        group = cgroup.find(parent)
        assert group is not None
        container = cgroup.descendant(group, "container")
        cgroup.make(container, {})
        with process_in(container, "import time; print(1, flush=True); time.sleep(60)") as process:
            assert process.stdout is not None
            process.stdout.readline()
            asyncio.run(cgroups.remove(uid_of(BURSTABLE)))
            assert process.wait(10) == -9
        assert cgroup.find(parent) is None
        assert asyncio.run(cgroups.list_pods()) == frozenset()


@needs("cpu", "memory")
def test_the_kernel_has_the_limits_of_a_pod() -> None:
    with own_cgroups() as (cgroups, root):
        group = cgroup.find(asyncio.run(cgroups.ensure(GUARANTEED)))
        assert group is not None

        def value_of(name: str) -> str:
            return Path(group.directory_of(name.partition(".")[0]), name).read_text().strip()

        if root.version == 2:
            assert [value_of(name) for name in ("cpu.weight", "cpu.max")] == ["20", "50000 100000"]
        else:
            assert [value_of(name) for name in ("cpu.shares", "cpu.cfs_quota_us")] == ["512", "50000"]
        assert value_of("memory.max" if root.version == 2 else "memory.limit_in_bytes") == str(64 << 20)
        asyncio.run(cgroups.throttle(uid_of(GUARANTEED)))
        assert value_of("cpu.weight" if root.version == 2 else "cpu.shares") == ("1" if root.version == 2 else "2")


@needs_cgroups
def test_closing_removes_the_root_only_without_pods() -> None:
    with own_cgroups() as (cgroups, root):
        asyncio.run(cgroups.ensure(BEST_EFFORT))
        asyncio.run(cgroups.close())
        assert asyncio.run(cgroups.list_pods()) == {uid_of(BEST_EFFORT)}
        asyncio.run(cgroups.remove(uid_of(BEST_EFFORT)))
        asyncio.run(cgroups.close())
        assert not cgroup.exists(root)


@needs_cgroups
def test_many_pods_are_created_and_removed_at_once() -> None:
    pods = [pod_with({"cpu": "100m"}) for _ in range(20)]

    async def scenario(cgroups: HostCgroups) -> None:
        parents = await asyncio.gather(*(cgroups.ensure(one) for one in pods))
        assert len(set(parents)) == 20
        assert await cgroups.list_pods() == {uid_of(one) for one in pods}
        await asyncio.gather(*(cgroups.remove(uid_of(one)) for one in pods))
        assert await cgroups.list_pods() == frozenset()

    with own_cgroups() as (cgroups, root):
        asyncio.run(scenario(cgroups))
        if root.version == 1 and "cpu" in HERE.controllers:
            shares = Path(root.directory_of("cpu"), "burstable", "cpu.shares").read_text()
            assert shares.strip() == "2"


@needs_cgroups
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_can_only_use_a_delegated_cgroup() -> None:
    assert as_unprivileged_user(lambda: open_cgroups("mine").describe()).startswith("no cgroups: ")
    if HERE.version != 1:
        pytest.skip("delegation is only tested on version 1")
    with own_cgroups() as (_, root):
        for path in root.paths:
            for entry in (path, f"{path}/cgroup.procs"):
                os.chown(entry, 65534, 65534)

        def in_it() -> str:
            cgroups = open_cgroups("mine")
            parent = asyncio.run(cgroups.ensure(BURSTABLE))
            asyncio.run(cgroups.remove(uid_of(BURSTABLE)))
            asyncio.run(cgroups.close())
            return parent

        answer = as_unprivileged_user(in_it, joining=root)
        name = os.path.basename(root.paths[0])
        assert answer == f"/{name}/mine/burstable/pod{uid_of(BURSTABLE)}"
        assert cgroup.children(root) == {"burstable", "besteffort"}
