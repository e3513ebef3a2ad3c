"""Pod cgroups: what a machine offers, on trees of plain files; and the machine's own, below a root of the test's."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from podkeeper.host.cgroup_survey import OWN_LEAF, settle
from podkeeper.host.cgroups import HostCgroups, NoCgroups, open_cgroups, own_root
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place
from tests.host.cgroup_tree import Tree, kernel_makes
from tests.host.own_cgroups import HERE, as_nobody, needs, needs_cgroups, own_cgroups, process_in
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod, uid_of


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# ---- what a machine offers -------------------------------------------------------------------


def test_nothing_mounted(tree: Tree) -> None:
    offer = tree.survey()
    assert (offer.version, offer.reason) == (0, "no cgroup file system is mounted")
    assert "mount -t cgroup2" in offer.describe()


def test_version_1(tree: Tree) -> None:
    for name in ("cpu", "cpuacct", "memory", "pids"):
        tree.version_1(name)
    offer = tree.survey()
    assert (offer.version, offer.base, offer.controllers) == (1, "/", ("cpu", "cpuacct", "memory", "pids"))
    assert offer.describe() == "cgroup v1 (cpu, cpuacct, memory, pids)"


def test_version_2(tree: Tree) -> None:
    top = tree.version_2(controllers="cpuset cpu io memory hugetlb pids")
    offer = tree.survey()
    assert (offer.version, offer.base, offer.controllers) == (2, "/", ("cpu", "memory", "pids"))
    assert offer.directories == (("unified", str(top)),)
    assert offer.describe() == "cgroup v2 (cpu, memory, pids)"


def test_a_hybrid_machine_limits_in_version_1_and_kills_in_version_2(tree: Tree) -> None:
    tree.version_1("memory")
    tree.version_1("pids")
    tree.version_2(controllers="hugetlb")
    offer = tree.survey()
    assert (offer.version, [name for name, _ in offer.directories]) == (1, ["memory", "pids", "unified"])
    assert offer.describe().startswith("cgroup v1 and a v2 tree for killing (memory, pids); limits of cpu are not")


def test_the_version_with_more_controllers_wins(tree: Tree) -> None:
    tree.version_1("pids")
    tree.version_2(controllers="cpu memory")
    offer = tree.survey()
    assert (offer.version, offer.controllers) == (2, ("cpu", "memory"))


def test_a_version_2_tree_alone_without_controllers_is_no_use(tree: Tree) -> None:
    tree.version_2(controllers="hugetlb")
    offer = tree.survey()
    assert (offer.version, offer.directories) == (0, ())
    assert "nothing that limits cpu, memory or pids is writable" in offer.describe()


def test_a_tree_in_which_nothing_is_writable_is_none(tree: Tree) -> None:
    top = tree.version_2(own="/user.slice")
    tree.cgroup(top / "user.slice", "memory pids")
    for directory in (top, top / "user.slice"):
        (directory / "cgroup.procs").unlink()  # root may write to everything but what is not there
    assert tree.survey().version == 0


def test_the_cgroup_that_we_are_in_serves_where_the_top_does_not(tree: Tree) -> None:
    top = tree.version_2(own="/user.slice/run-1.scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "user.slice/run-1.scope", "memory pids", procs=f"{os.getpid()}\n")
    offer = tree.survey()
    assert (offer.version, offer.base, offer.controllers) == (2, "/user.slice/run-1.scope", ("memory", "pids"))
    assert offer.directories == (("unified", str(own)),)
    assert "limits of cpu are not enforced" in offer.describe()


# ---- settling --------------------------------------------------------------------------------


def test_we_leave_a_cgroup_that_hands_limits_down(tree: Tree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "scope", "memory pids", procs=f"{os.getpid()}\n")
    settle(tree.survey(), str(tree.proc))
    assert (own / OWN_LEAF / "cgroup.procs").read_text() == str(os.getpid())


def test_the_very_top_and_what_hands_down_already_need_no_settling(tree: Tree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").write_text(f"{os.getpid()}\n")
    settle(tree.survey(), str(tree.proc))
    assert not (top / OWN_LEAF).exists()
    (top / "cgroup.events").write_text("populated 1\n")
    (top / "cgroup.subtree_control").write_text("cpu memory pids\n")
    settle(tree.survey(), str(tree.proc))
    assert not (top / OWN_LEAF).exists()


def test_strangers_are_not_moved(tree: Tree) -> None:
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    own = tree.cgroup(top / "scope", "memory pids", procs=f"{os.getpid()}\n1\n")
    cgroups = tree.open()
    assert isinstance(cgroups, NoCgroups)
    assert "1 processes that are not ours" in cgroups.describe()
    assert not (own / OWN_LEAF).exists()


# ---- no cgroups ------------------------------------------------------------------------------


def test_without_cgroups_pods_run_and_it_is_said_once(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    cgroups = tree.open()
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


def test_each_state_directory_has_a_root_name_of_its_own() -> None:
    assert own_root("/var/lib/one") == own_root("/var/lib/one") != own_root("/var/lib/two")
    assert "/" not in own_root("/var/lib/one")


# ---- plain files: the layout -----------------------------------------------------------------


def opened(tree: Tree, *, of_containers: bool = False) -> HostCgroups[Place]:
    cgroups = tree.open(pod_pids_limit=50, of_containers=of_containers)
    assert isinstance(cgroups, HostCgroups), cgroups.describe()
    return cgroups


def test_pods_stand_below_the_root_by_their_class(tree: Tree) -> None:
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


def test_version_1_is_told_the_limits_and_the_share_of_each_class(tree: Tree) -> None:
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
    asyncio.run(cgroups.ensure(pod({"cpu": "1"})))
    assert (cpu / "kubepods/burstable/cpu.shares").read_text() == "1280"
    asyncio.run(cgroups.ensure(pod({"cpu": "500m"}, uid=uid_of(BURSTABLE))))
    assert (memory / pod_directory / "memory.limit_in_bytes").read_text() == "-1"
    assert (cpu / "kubepods/burstable/cpu.shares").read_text() == "1536"
    asyncio.run(cgroups.throttle(uid_of(BURSTABLE)))
    assert (cpu / pod_directory / "cpu.shares").read_text() == "2"


def test_version_2_is_told_the_limits_and_hands_controllers_down(tree: Tree) -> None:
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


def test_only_what_is_named_as_a_pod_is_ours(tree: Tree) -> None:
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


def test_what_is_left_in_one_hierarchy_only_is_listed_and_removed(tree: Tree) -> None:
    tree.version_1("memory")
    top = tree.version_1("pids")
    cgroups = opened(tree)
    (top / "kubepods/besteffort/podleft/container").mkdir(parents=True)
    assert asyncio.run(cgroups.list_pods()) == {"left"}
    asyncio.run(cgroups.remove(PodUID("left")))
    assert not (top / "kubepods/besteffort/podleft").exists()


def test_what_a_container_runtime_leaves_in_hierarchies_of_no_use_to_us_is_listed_and_removed(tree: Tree) -> None:
    ours = tree.version_1("memory")
    others = [tree.version_1("blkio"), tree.version_1("name=systemd")]
    cgroups = opened(tree, of_containers=True)
    parent = asyncio.run(cgroups.ensure(BURSTABLE)).lstrip("/")
    assert not any((top / "kubepods").exists() for top in others)  # whoever has a use for it makes it
    for top in others:
        (top / parent / "container").mkdir(parents=True)
    asyncio.run(cgroups.remove(uid_of(BURSTABLE)))
    assert not any((top / parent).exists() for top in (ours, *others))
    (others[0] / "kubepods/besteffort/podleft").mkdir(parents=True)
    assert asyncio.run(cgroups.list_pods()) == {"left"}
    asyncio.run(cgroups.remove(PodUID("left")))
    asyncio.run(cgroups.close())
    assert not any((top / "kubepods").exists() for top in (ours, *others))


def test_hierarchies_of_no_use_to_us_are_left_alone_where_no_runtime_uses_them(tree: Tree) -> None:
    tree.version_1("memory")
    other = tree.version_1("blkio")
    (other / "kubepods/podtheirs").mkdir(parents=True)
    cgroups = opened(tree)
    asyncio.run(cgroups.remove(PodUID("theirs")))
    assert asyncio.run(cgroups.list_pods()) == frozenset()
    asyncio.run(cgroups.close())
    assert (other / "kubepods/podtheirs").is_dir()


def test_a_root_that_was_tidied_away_is_made_again(tree: Tree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)
    asyncio.run(cgroups.close())
    assert not (top / "kubepods").exists()
    parent = asyncio.run(cgroups.ensure(BURSTABLE))
    assert (top / parent.lstrip("/")).is_dir()


@pytest.mark.parametrize("uid", ["", "a/../../b", "nul\0"])
def test_a_uid_that_is_no_file_name_is_refused(tree: Tree, uid: str) -> None:
    tree.version_1("memory")
    with pytest.raises(TryLater, match="cannot make a cgroup for pod web"):
        asyncio.run(opened(tree).ensure(pod(uid=uid)))


def test_trouble_is_for_later(tree: Tree) -> None:
    top = tree.version_1("memory")
    cgroups = opened(tree)
    (top / f"kubepods/burstable/pod{uid_of(BURSTABLE)}/memory.limit_in_bytes").mkdir(parents=True)
    with pytest.raises(TryLater, match=r"cannot make the cgroup of pod .*memory\.limit_in_bytes"):
        asyncio.run(cgroups.ensure(BURSTABLE))


# ---- the machine's own -----------------------------------------------------------------------


@needs_cgroups
def test_removing_a_pod_kills_what_is_left_in_it() -> None:
    with own_cgroups() as (cgroups, _):
        parent = asyncio.run(cgroups.ensure(BURSTABLE))
        place = cgroup.find(parent)
        assert place is not None
        container = cgroup.lower(place, "container")
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
        place = cgroup.find(asyncio.run(cgroups.ensure(GUARANTEED)))
        assert place is not None

        def told(name: str) -> str:
            return Path(place.directory_of(name.partition(".")[0]), name).read_text().strip()

        if root.version == 2:
            assert [told(name) for name in ("cpu.weight", "cpu.max")] == ["20", "50000 100000"]
        else:
            assert [told(name) for name in ("cpu.shares", "cpu.cfs_quota_us")] == ["512", "50000"]
        assert told("memory.max" if root.version == 2 else "memory.limit_in_bytes") == str(64 << 20)
        asyncio.run(cgroups.throttle(uid_of(GUARANTEED)))
        assert told("cpu.weight" if root.version == 2 else "cpu.shares") == ("1" if root.version == 2 else "2")


@needs_cgroups
def test_closing_removes_the_root_only_when_no_pod_is_left() -> None:
    with own_cgroups() as (cgroups, root):
        asyncio.run(cgroups.ensure(BEST_EFFORT))
        asyncio.run(cgroups.close())
        assert asyncio.run(cgroups.list_pods()) == {uid_of(BEST_EFFORT)}
        asyncio.run(cgroups.remove(uid_of(BEST_EFFORT)))
        asyncio.run(cgroups.close())
        assert not cgroup.exists(root)


@needs_cgroups
def test_many_pods_at_once_come_and_go() -> None:
    pods = [pod({"cpu": "100m"}) for _ in range(20)]

    async def scenario(cgroups: HostCgroups[Place]) -> None:
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
def test_an_ordinary_user_gets_nothing_but_what_was_handed_over() -> None:
    assert as_nobody(lambda: open_cgroups(cgroup, "mine").describe()).startswith("no cgroups: ")
    if HERE.version != 1:
        pytest.skip("handing over is tried on version 1 trees only")
    with own_cgroups() as (_, root):
        for path in root.paths:
            for entry in (path, f"{path}/cgroup.procs"):
                os.chown(entry, 65534, 65534)

        def in_it() -> str:
            cgroups = open_cgroups(cgroup, "mine")
            parent = asyncio.run(cgroups.ensure(BURSTABLE))
            asyncio.run(cgroups.remove(uid_of(BURSTABLE)))
            asyncio.run(cgroups.close())
            return parent

        answer = as_nobody(in_it, joining=root)
        name = os.path.basename(root.paths[0])
        assert answer == f"/{name}/mine/burstable/pod{uid_of(BURSTABLE)}"
        assert cgroup.children(root) == {"burstable", "besteffort"}
