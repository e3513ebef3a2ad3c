"""What systemd and the kernel are told of pods' slices: systemd only notes it down, and the files are plain ones."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from podkeeper.host.slices import Slices, open_slices
from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.rules.cgroup_limits import CpuPolicy
from podkeeper.rules.slice_limits import INFINITY, Property
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place
from tests.host.cgroup_tree import Tree, kernel_makes
from tests.host.pods import BEST_EFFORT, BURSTABLE, GUARANTEED, pod, uid_of

FILES = ("cpu.weight", "cpu.max", "memory.max", "pids.max")


class Notes:
    """A systemd that knows its units and nothing of cgroups."""

    version = 252

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.units: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.trouble = ""
        self.is_open = True

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        self._complain()
        if unit in self.units:
            return False
        self.units[unit] = {}
        await self.set_properties(unit, properties)
        return True

    async def start(self, unit: str) -> None:
        self._complain()

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self._complain()
        self.units.setdefault(unit, {}).update({name: value for name, (_, value) in properties})

    async def stop(self, unit: str) -> None:
        self._complain()
        if self.units.pop(unit, None) is not None:
            self.stopped.append(unit)

    async def is_active(self, unit: str) -> bool:
        return unit in self.units

    async def close(self) -> None:
        self.is_open = False

    def _complain(self) -> None:
        if self.trouble:
            raise TryLater(self.trouble)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def opened(tree: Tree, **more: Any) -> tuple[Slices[Place], Notes]:
    notes = Notes(tree)
    made = asyncio.run(open_slices(notes, cgroup, ("kubepods",), proc=str(tree.proc), pod_pids_limit=50, **more))
    return made, notes


def test_version_2_is_told_in_properties_and_in_files(tree: Tree) -> None:
    top = tree.version_2()
    slices, notes = opened(tree)
    unit = f"kubepods-pod{uid_of(GUARANTEED).replace('-', '_')}.slice"
    kernel_makes(top / "kubepods.slice" / unit, *FILES)
    parent = asyncio.run(slices.ensure(GUARANTEED))
    assert parent == f"/kubepods.slice/{unit}"
    told = notes.units[unit]
    assert [told[name] for name in ("CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "TasksMax")] == [
        *(20, 500_000, 64 << 20, 50),
    ]
    assert (told["Wants"], told["Description"]) == (("kubepods.slice",), "pod default/web (podkeeper)")
    texts = [(top / "kubepods.slice" / unit / file).read_text() for file in FILES]
    assert texts == ["20", "50000 100000", str(64 << 20), "50"]
    asyncio.run(slices.throttle(uid_of(GUARANTEED)))
    assert notes.units[unit]["CPUWeight"] == 1
    assert (top / "kubepods.slice" / unit / "cpu.weight").read_text() == "1"


def test_each_class_has_its_share(tree: Tree) -> None:
    tree.version_2()
    slices, notes = opened(tree)

    async def scenario() -> None:
        await slices.ensure(BURSTABLE)
        await slices.ensure(pod({"cpu": "1"}))
        assert notes.units["kubepods-burstable.slice"]["CPUWeight"] == 49
        await slices.remove(uid_of(BURSTABLE))
        assert notes.units["kubepods-burstable.slice"]["CPUWeight"] == 39

    asyncio.run(scenario())
    assert notes.units["kubepods-besteffort.slice"]["CPUWeight"] == 1
    assert "CPUWeight" not in notes.units["kubepods.slice"]


def test_quotas_are_enforced_as_the_node_is_configured(tree: Tree) -> None:
    tree.version_2()
    slices, notes = opened(tree, policy=CpuPolicy(enforce=False))
    unit = asyncio.run(slices.ensure(GUARANTEED)).rpartition("/")[2]
    assert notes.units[unit]["CPUQuotaPerSecUSec"] == INFINITY


def test_closing_stops_what_is_empty_and_hangs_up(tree: Tree) -> None:
    top = tree.version_1("memory")
    slices, notes = opened(tree)
    (top / "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podmine.slice").mkdir(parents=True)
    asyncio.run(slices.close())
    assert notes.stopped == ["kubepods-besteffort.slice"]
    assert not notes.is_open
    assert asyncio.run(slices.list_pods()) == {"mine"}


@pytest.mark.parametrize("uid", ["", "a/b", "a_b", "a b"])
def test_a_uid_that_no_slice_can_have_is_refused(tree: Tree, uid: str) -> None:
    tree.version_1("memory")
    slices, _ = opened(tree)
    with pytest.raises(TryLater, match="cannot make a slice for pod web: its UID"):
        asyncio.run(slices.ensure(pod(uid=uid)))


def test_trouble_is_for_later_and_a_removal_waits_it_out(tree: Tree) -> None:
    top = tree.version_1("memory")
    slices, notes = opened(tree)
    unit = top / "kubepods.slice/kubepods-podx.slice"
    unit.mkdir(parents=True)

    async def scenario() -> None:
        notes.trouble = "systemd says no"
        with pytest.raises(TryLater, match="systemd says no"):
            await slices.ensure(BEST_EFFORT)
        removal = asyncio.create_task(slices.remove(PodUID("x")))
        await asyncio.sleep(0.1)
        assert unit.is_dir()
        notes.trouble = ""
        await removal
        assert not unit.exists()

    asyncio.run(scenario())


def test_without_the_top_of_the_tree_there_are_no_slices(tree: Tree) -> None:
    with pytest.raises(BadInput, match=r"no cgroup file system is mounted.*run podkeeper as root"):
        opened(tree)
    top = tree.version_2(own="/scope")
    (top / "cgroup.procs").unlink()
    tree.cgroup(top / "scope", "memory pids")
    with pytest.raises(BadInput, match="only those below /scope can be had; run podkeeper as root, outside of any"):
        opened(tree)


def test_what_is_used_is_told(tree: Tree) -> None:
    tree.version_2()
    slices, _ = opened(tree)
    assert slices.describe() == "cgroup v2 (cpu, memory, pids); systemd 252 makes them; pods are below /kubepods.slice"
