"""Properties and files of pod slices, with a recording systemd and plain files."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from podkeeper.host.slices import Slices, open_slices
from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.cgroup.limits import CpuPolicy
from podkeeper.rules.cgroup.slice_limits import INFINITY, Property
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod_with
from tests.linux.cgroup_tree import CgroupTree, kernel_makes

FILES = ("cpu.weight", "cpu.max", "memory.max", "pids.max")


class RecordingSystemd:
    """Records units and properties, without cgroups."""

    version = 252

    def __init__(self, tree: CgroupTree) -> None:
        self.tree = tree
        self.units: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.error = ""
        self.is_open = True

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        self._raise_error()
        if unit in self.units:
            return False
        self.units[unit] = {}
        await self.set_properties(unit, properties)
        return True

    async def start(self, unit: str) -> None:
        self._raise_error()

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self._raise_error()
        self.units.setdefault(unit, {}).update({name: value for name, (_, value) in properties})

    async def stop(self, unit: str) -> None:
        self._raise_error()
        if self.units.pop(unit, None) is not None:
            self.stopped.append(unit)

    async def is_active(self, unit: str) -> bool:
        return unit in self.units

    async def close(self) -> None:
        self.is_open = False

    def _raise_error(self) -> None:
        if self.error:
            raise TryLater(self.error)


@pytest.fixture
def tree(tmp_path: Path) -> CgroupTree:
    return CgroupTree(tmp_path)


def opened(tree: CgroupTree, **more: Any) -> tuple[Slices, RecordingSystemd]:
    systemd = RecordingSystemd(tree)
    made = asyncio.run(open_slices(systemd, ("kubepods",), proc=str(tree.proc), pod_pids_limit=50, **more))
    return made, systemd


def test_version_2_limits_are_properties_and_files(tree: CgroupTree) -> None:
    top = tree.version_2()
    slices, systemd = opened(tree)
    unit = f"kubepods-pod{uid_of(GUARANTEED).replace('-', '_')}.slice"
    kernel_makes(top / "kubepods.slice" / unit, *FILES)
    parent = asyncio.run(slices.ensure(GUARANTEED))
    assert parent == f"/kubepods.slice/{unit}"
    properties = systemd.units[unit]
    assert [properties[name] for name in ("CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "TasksMax")] == [
        *(20, 500_000, 64 << 20, 50),
    ]
    assert (properties["Wants"], properties["Description"]) == (("kubepods.slice",), "pod default/web (podkeeper)")
    texts = [(top / "kubepods.slice" / unit / file).read_text() for file in FILES]
    assert texts == ["20", "50000 100000", str(64 << 20), "50"]
    asyncio.run(slices.throttle(uid_of(GUARANTEED)))
    assert systemd.units[unit]["CPUWeight"] == 1
    assert (top / "kubepods.slice" / unit / "cpu.weight").read_text() == "1"


def test_each_qos_class_has_its_shares(tree: CgroupTree) -> None:
    tree.version_2()
    slices, systemd = opened(tree)

    async def scenario() -> None:
        await slices.ensure(BURSTABLE)
        await slices.ensure(pod_with({"cpu": "1"}))
        assert systemd.units["kubepods-burstable.slice"]["CPUWeight"] == 49
        await slices.remove(uid_of(BURSTABLE))
        assert systemd.units["kubepods-burstable.slice"]["CPUWeight"] == 39

    asyncio.run(scenario())
    assert systemd.units["kubepods-besteffort.slice"]["CPUWeight"] == 1
    assert "CPUWeight" not in systemd.units["kubepods.slice"]


def test_quotas_follow_the_configuration_of_the_node(tree: CgroupTree) -> None:
    tree.version_2()
    slices, systemd = opened(tree, policy=CpuPolicy(enforce=False))
    unit = asyncio.run(slices.ensure(GUARANTEED)).rpartition("/")[2]
    assert systemd.units[unit]["CPUQuotaPerSecUSec"] == INFINITY


def test_closing_stops_empty_slices_and_closes_the_connection(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    slices, systemd = opened(tree)
    (top / "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podmine.slice").mkdir(parents=True)
    asyncio.run(slices.close())
    assert systemd.stopped == ["kubepods-besteffort.slice"]
    assert not systemd.is_open
    assert asyncio.run(slices.list_pods()) == {"mine"}


@pytest.mark.parametrize("uid", ["", "a/b", "a_b", "a b"])
def test_a_uid_that_cannot_name_a_slice_is_refused(tree: CgroupTree, uid: str) -> None:
    tree.version_1("memory")
    slices, _ = opened(tree)
    with pytest.raises(TryLater, match="cannot create a slice for pod web: its UID"):
        asyncio.run(slices.ensure(pod_with(uid=uid)))


def test_errors_are_retried_and_a_removal_waits(tree: CgroupTree) -> None:
    top = tree.version_1("memory")
    slices, systemd = opened(tree)
    unit = top / "kubepods.slice/kubepods-podx.slice"
    unit.mkdir(parents=True)

    async def scenario() -> None:
        systemd.error = "systemd failed"
        with pytest.raises(TryLater, match="systemd failed"):
            await slices.ensure(BEST_EFFORT)
        removal = asyncio.create_task(slices.remove(PodUID("x")))
        await asyncio.sleep(0.1)
        assert unit.is_dir()
        systemd.error = ""
        await removal
        assert not unit.exists()

    asyncio.run(scenario())


def test_slices_need_the_top_of_the_hierarchy(tree: CgroupTree) -> None:
    with pytest.raises(BadInput, match=r"no cgroup file system is mounted.*run podkeeper as root"):
        opened(tree)
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    tree.cgroup(top / "scope", "memory pids")
    with pytest.raises(BadInput, match="only cgroups below /scope are writable; run podkeeper as root, outside of any"):
        opened(tree)


def test_the_description_names_systemd_and_the_root(tree: CgroupTree) -> None:
    tree.version_2()
    slices, _ = opened(tree)
    assert (
        slices.describe() == "cgroup v2 (cpu, memory, pids); systemd 252 creates them; pods are below /kubepods.slice"
    )
