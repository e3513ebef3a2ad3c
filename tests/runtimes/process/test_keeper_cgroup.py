"""Cgroup directories as keepers handle them: on plain files that look like the kernel's, and on the kernel's."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place, Use
from tests.host.own_cgroups import HERE, needs, needs_cgroups, own_cgroups, process_in

PATIENCE_SECONDS = 10.0


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def mountinfo(directory: Path, *mounts: str) -> str:
    """A mountinfo file: each mount is `kind options mount-point [root]`."""
    lines = ["22 1 0:21 / / rw - ext4 /dev/vda rw"]
    for number, mount in enumerate(mounts):
        kind, options, point, *root = mount.split(" ")
        lines.append(f"{30 + number} 22 0:{number} {root[0] if root else '/'} {point} rw shared:1 - {kind} x {options}")
    file = directory / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def files_in(directory: Path, **texts: str) -> Path:
    """A directory with files; `__` stands for a dot."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


# ---- finding ---------------------------------------------------------------------------------


def test_a_cgroup_is_found_where_its_directory_is(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name / "kubepods/pod1").mkdir(parents=True)
    for name in ("pids", "unified"):
        (tmp_path / name).mkdir()
    mounts = mountinfo(
        tmp_path,
        f"cgroup rw,cpu {tmp_path}/cpu",
        f"cgroup rw,memory {tmp_path}/memory",
        f"cgroup rw,pids {tmp_path}/pids",
        f"cgroup rw,name=systemd {tmp_path}/memory",
        f"cgroup2 rw {tmp_path}/unified",
    )
    place = cgroup.find("/kubepods/pod1", mounts)
    directories = (("cpu", f"{tmp_path}/cpu/kubepods/pod1"), ("memory", f"{tmp_path}/memory/kubepods/pod1"))
    assert place == Place(1, directories)
    assert (cgroup.find("/kubepods/pod2", mounts), cgroup.find("", mounts)) == (None, None)
    (tmp_path / "unified/kubepods/pod1").mkdir(parents=True)
    hybrid = cgroup.find("/kubepods/pod1", mounts)
    assert hybrid is not None
    assert (hybrid.version, dict(hybrid.directories)["unified"]) == (1, f"{tmp_path}/unified/kubepods/pod1")


def test_alone_the_unified_tree_is_version_2(tmp_path: Path) -> None:
    (tmp_path / "a b" / "pod1").mkdir(parents=True)
    mounts = mountinfo(tmp_path, f"cgroup2 rw {tmp_path}/a\\040b")
    assert cgroup.find("/pod1", mounts) == Place(2, (("unified", f"{tmp_path}/a b/pod1"),))


def test_controllers_in_one_hierarchy_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "both/pod1").mkdir(parents=True)
    place = cgroup.find("/pod1", mountinfo(tmp_path, f"cgroup rw,cpu,cpuacct {tmp_path}/both"))
    assert place is not None
    assert (len(place.directories), cgroup.procs_files(place)) == (2, (f"{tmp_path}/both/pod1/cgroup.procs",))


def test_of_two_mounts_the_shorter_path_counts(tmp_path: Path) -> None:
    for name in ("far/away", "near"):
        (tmp_path / name / "pod1").mkdir(parents=True)
    mounts = mountinfo(tmp_path, f"cgroup2 rw {tmp_path}/far/away", f"cgroup2 rw {tmp_path}/near")
    assert cgroup.find("pod1", mounts) == Place(2, (("unified", f"{tmp_path}/near/pod1"),))


def test_a_place_travels_as_json() -> None:
    place = Place(1, (("cpu", "/c/x"), ("memory", "/m/x")))
    assert Place.from_json(place.to_json()) == place
    assert cgroup.lower(place, "a", "b").paths == ("/c/x/a/b", "/m/x/a/b")


def test_the_module_needs_nothing_else_of_podkeeper() -> None:
    program = (
        "import sys, podkeeper.runtimes.process.keeper.cgroup; "
        "print(sorted(name for name in sys.modules if name.startswith('podkeeper.') and 'process' not in name))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['podkeeper.runtimes']"


# ---- plain files: settings -------------------------------------------------------------------


def test_settings_go_to_the_directory_of_their_controller(tmp_path: Path) -> None:
    cpu = files_in(tmp_path / "cpu", cpu__shares="1024\n")
    memory = files_in(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n")
    place = Place(1, (("cpu", str(cpu)), ("memory", str(memory))))
    settings = {"cpu.shares": "2", "memory.limit_in_bytes": "4096", "memory.memsw.limit_in_bytes": "1", "pids.max": "3"}
    cgroup.make(place, settings)
    assert (cpu / "cpu.shares").read_text() == "2"
    assert (memory / "memory.limit_in_bytes").read_text() == "4096"
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == ["cpu.shares", "memory.limit_in_bytes"]


def test_a_cgroup_that_is_there_in_one_hierarchy_is_made_in_the_others(tmp_path: Path) -> None:
    place = Place(1, (("cpu", str(tmp_path / "cpu")), ("memory", str(tmp_path / "memory"))))
    (tmp_path / "cpu").mkdir()
    cgroup.make(place, {})
    assert (tmp_path / "memory").is_dir()


def test_version_2_keeps_all_settings_in_one_directory(tmp_path: Path) -> None:
    directory = files_in(tmp_path / "x", cpu__max="max 100000\n", memory__max="max\n")
    cgroup.write(
        Place(2, (("unified", str(directory)),)), {"cpu.max": "1000 100000", "memory.max": "1", "pids.max": "1"}
    )
    assert ((directory / "cpu.max").read_text(), (directory / "memory.max").read_text()) == ("1000 100000", "1")
    assert not (directory / "pids.max").exists()


def test_a_setting_that_fails_is_told_with_file_and_text(tmp_path: Path) -> None:
    (tmp_path / "cpu.shares").mkdir()
    with pytest.raises(OSError, match=r"writing '2'.*cpu\.shares"):
        cgroup.write(Place(1, (("cpu", str(tmp_path)),)), {"cpu.shares": "2"})


def test_controllers_are_handed_down_where_they_are_not_yet(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__controllers="cpuset cpu io memory pids\n", cgroup__subtree_control="cpu\n")
    place = Place(2, (("unified", str(directory)),))
    cgroup.delegate(place)
    assert (directory / "cgroup.subtree_control").read_text() == "+memory +pids"
    files_in(directory, cgroup__subtree_control="cpu memory pids\n")
    cgroup.delegate(place)
    assert (directory / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


# ---- plain files: watching -------------------------------------------------------------------


def test_version_1_tells_its_use(tmp_path: Path) -> None:
    memory = files_in(
        tmp_path / "memory",
        memory__usage_in_bytes="1000\n",
        memory__stat="cache 5\ninactive_file 1\ntotal_inactive_file 300\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    )
    cpuacct = files_in(tmp_path / "cpuacct", cpuacct__usage="77\n")
    pids = files_in(tmp_path / "pids", pids__current="4\n")
    place = Place(1, (("memory", str(memory)), ("cpuacct", str(cpuacct)), ("pids", str(pids))))
    assert (cgroup.use(place), cgroup.oom_kills(place)) == (Use(1000, 700, 77, 4), 3)


def test_version_2_tells_its_use(tmp_path: Path) -> None:
    directory = files_in(
        tmp_path,
        memory__current="1000\n",
        memory__stat="anon 5\ninactive_file 300\n",
        memory__events="low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 1\n",
        cpu__stat="usage_usec 77\nuser_usec 70\n",
        pids__current="4\n",
    )
    place = Place(2, (("unified", str(directory)),))
    assert (cgroup.use(place), cgroup.oom_kills(place)) == (Use(1000, 700, 77000, 4), 2)


def test_what_no_controller_tells_is_not_known(tmp_path: Path) -> None:
    for place in (Place(1, (("cpu", str(tmp_path)),)), Place(2, (("unified", str(tmp_path)),))):
        assert (cgroup.use(place), cgroup.oom_kills(place)) == (Use(None, None, None, None), 0)


def test_processes_of_all_directories_and_below_are_seen(tmp_path: Path) -> None:
    cpu = files_in(tmp_path / "cpu", cgroup__procs="11\n12\n")
    files_in(cpu / "lower", cgroup__procs="13\n")
    pids = files_in(tmp_path / "pids", cgroup__procs="12\n0\n")  # 0: a process that we cannot see
    place = Place(1, (("cpu", str(cpu)), ("pids", str(pids))))
    assert cgroup.processes(place) == {11, 12, 13}
    assert cgroup.children(place) == {"lower"}


# ---- plain files: emptying and removing ------------------------------------------------------


def test_killing_uses_what_the_kernel_has_for_it(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__procs="", cgroup__kill="", pids__max="max\n")
    assert cgroup.kill_all(Place(2, (("unified", str(directory)),)), 0)
    assert ((directory / "cgroup.kill").read_text(), (directory / "pids.max").read_text()) == ("1", "0")


def test_we_never_kill_ourselves(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__procs=f"{os.getpid()}\n")
    assert cgroup.kill_all(Place(2, (("unified", str(directory)),)), 0)


def test_a_process_that_stays_is_told_and_not_waited_for_for_ever(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        directory = files_in(tmp_path, cgroup__procs=f"{process.pid}\n")  # a plain file: it stays there
        began = time.monotonic()
        assert not cgroup.kill_all(Place(2, (("unified", str(directory)),)), 0.05)
        assert time.monotonic() - began < 20
        assert process.wait(PATIENCE_SECONDS) == -9


def test_removing_goes_bottom_up_and_the_missing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cpu/x/a/b").mkdir(parents=True)
    (tmp_path / "pids/x").mkdir(parents=True)
    place = Place(1, tuple((name, f"{tmp_path}/{name}/x") for name in ("cpu", "memory", "pids")))
    assert cgroup.exists(place)
    cgroup.remove(place)
    assert not cgroup.exists(place)
    cgroup.remove(place)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["cpu", "pids"]


def test_what_does_not_go_is_told(tmp_path: Path) -> None:
    directory = files_in(tmp_path / "x", not_the_kernels="")
    with pytest.raises(OSError, match="not empty"):
        cgroup.remove(Place(2, (("unified", str(directory)),)), 0.01)


# ---- the kernel's ----------------------------------------------------------------------------


@pytest.fixture
def parent() -> Iterator[Place]:
    """A cgroup of this test's own; containers may be made below it."""
    with own_cgroups() as (_, root):
        yield root


def bounded(parent: Place, name: str, version_1: dict[str, str], version_2: dict[str, str]) -> Place:
    place = cgroup.lower(parent, name)
    cgroup.make(place, version_2 if place.version == 2 else version_1)
    return place


FORK_UNTIL_REFUSED = """
import os, sys, time
forks = 0
while forks < 200:
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    forks += 1
print(forks, flush=True)
time.sleep(60)
"""


@needs("pids")
def test_a_fork_bomb_ends_at_its_bound_and_is_killed_whole(parent: Place) -> None:
    place = bounded(parent, "bomb", {"pids.max": "12"}, {"pids.max": "12"})
    with process_in(place, FORK_UNTIL_REFUSED) as bomb:
        assert bomb.stdout is not None
        assert int(bomb.stdout.readline()) == 11
        assert (len(cgroup.processes(place)), cgroup.use(place).processes) == (12, 12)
        assert cgroup.kill_all(place)
        assert bomb.wait(PATIENCE_SECONDS) == -9
    cgroup.remove(place)
    assert not cgroup.exists(place)


EAT_MEMORY = "food = []\nwhile len(food) < 512: food.append(b'x' * (1 << 20))"


@needs("memory")
def test_a_process_killed_for_want_of_memory_is_counted(parent: Place) -> None:
    limit = str(24 << 20)
    swapless = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    place = bounded(parent, "hungry", swapless, {"memory.max": limit, "memory.swap.max": "0"})
    assert cgroup.oom_kills(place) == 0
    with process_in(place, EAT_MEMORY) as eater:
        assert eater.wait(PATIENCE_SECONDS) == -9
    assert cgroup.oom_kills(place) == 1
    cgroup.remove(place)


@needs("memory")
def test_a_limit_may_be_moved_both_ways_and_taken_back(parent: Place) -> None:
    place = cgroup.lower(parent, "moved")
    name = "memory.max" if place.version == 2 else "memory.limit_in_bytes"
    for limit in ("16777216", "67108864", "33554432", "-1"):
        settings = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
        cgroup.make(place, {"memory.max": "max" if limit == "-1" else limit} if place.version == 2 else settings)
        told = Path(place.directory_of("memory"), name).read_text().strip()
        assert told == limit if limit != "-1" else told == "max" or int(told) > 1 << 60


# Each child makes the next and ends: a list of processes is old when it is read.
RUN_AWAY = """
import os, sys
sys.stdout.write("off\\n"); sys.stdout.flush()
while True:
    if os.fork():
        os._exit(0)
"""


def parts_of(place: Place) -> Iterator[tuple[str, Place]]:
    """The same cgroup seen in one way only: without the kernel's help in killing, and with it."""
    directories = dict(place.directories)
    unified = directories.pop("unified", None)
    if "pids" in directories:
        yield "the bound of processes", Place(1, tuple(directories.items()))
    if unified is not None and os.path.exists(f"{unified}/cgroup.kill"):
        yield "cgroup.kill", Place(2, (("unified", unified),))


@needs_cgroups
def test_a_process_that_forks_away_is_killed(parent: Place) -> None:
    ways = list(parts_of(cgroup.lower(parent, "runaway")))
    if not ways:
        pytest.skip(f"neither a bound of processes nor cgroup.kill: {HERE.describe()}")
    for way, part in ways:
        cgroup.make(cgroup.lower(parent, "runaway"), {"pids.max": "max"})
        with process_in(part, RUN_AWAY) as runner:
            assert runner.stdout is not None
            runner.stdout.readline()
            runner.wait(PATIENCE_SECONDS)
            assert cgroup.kill_all(part), way
            assert cgroup.processes(part) == frozenset(), way
            assert runner.stdout.read() == b"", way  # nobody holds the pipe: all are gone
        cgroup.remove(cgroup.lower(parent, "runaway"))


@needs_cgroups
def test_a_cgroup_in_use_is_not_removed_and_use_is_told(parent: Place) -> None:
    place = cgroup.lower(parent, "used")
    cgroup.make(place, {})
    with process_in(place, "import time\nfor i in range(10**6): pass\nprint(1, flush=True)\ntime.sleep(60)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OSError, match="busy"):
            cgroup.remove(place, 0.01)
        assert cgroup.processes(place) == {process.pid}
        use = cgroup.use(place)
        if "memory" in HERE.controllers:
            assert 0 < (use.working_set_bytes or 0) <= (use.memory_bytes or 0)
        if place.version == 2 or "cpuacct" in dict(place.directories):
            assert (use.cpu_nanoseconds or 0) > 0
        assert cgroup.kill_all(place)
    cgroup.remove(place)
    eventually(lambda: not cgroup.exists(place))
