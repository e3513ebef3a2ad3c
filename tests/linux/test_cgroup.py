"""Cgroup directories: on plain files that look like the kernel's, and on real cgroups."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podkeeper.linux import cgroup
from podkeeper.linux.cgroup import Cgroup, Hierarchy
from tests.host.own_cgroups import HERE, needs, needs_cgroups, own_cgroups, process_in

TIMEOUT_SECONDS = 10.0


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not check():
        assert time.monotonic() < deadline, "timed out"
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


def test_a_cgroup_is_found_in_the_hierarchies_that_have_it(tmp_path: Path) -> None:
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
    group = cgroup.find("/kubepods/pod1", mounts)
    directories = (("cpu", f"{tmp_path}/cpu/kubepods/pod1"), ("memory", f"{tmp_path}/memory/kubepods/pod1"))
    assert group == Cgroup(1, directories)
    assert (cgroup.find("/kubepods/pod2", mounts), cgroup.find("", mounts)) == (None, None)
    (tmp_path / "unified/kubepods/pod1").mkdir(parents=True)
    hybrid = cgroup.find("/kubepods/pod1", mounts)
    assert hybrid is not None
    assert (hybrid.version, dict(hybrid.directories)["unified"]) == (1, f"{tmp_path}/unified/kubepods/pod1")


def test_a_unified_hierarchy_alone_is_version_2(tmp_path: Path) -> None:
    (tmp_path / "a b" / "pod1").mkdir(parents=True)
    mounts = mountinfo(tmp_path, f"cgroup2 rw {tmp_path}/a\\040b")
    assert cgroup.find("/pod1", mounts) == Cgroup(2, (("unified", f"{tmp_path}/a b/pod1"),))


def test_controllers_in_one_hierarchy_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "both/pod1").mkdir(parents=True)
    group = cgroup.find("/pod1", mountinfo(tmp_path, f"cgroup rw,cpu,cpuacct {tmp_path}/both"))
    assert group is not None
    assert (len(group.directories), cgroup.procs_files(group)) == (2, (f"{tmp_path}/both/pod1/cgroup.procs",))


def test_of_two_mounts_the_shorter_path_is_used(tmp_path: Path) -> None:
    for name in ("far/away", "near"):
        (tmp_path / name / "pod1").mkdir(parents=True)
    mounts = mountinfo(tmp_path, f"cgroup2 rw {tmp_path}/far/away", f"cgroup2 rw {tmp_path}/near")
    assert cgroup.find("pod1", mounts) == Cgroup(2, (("unified", f"{tmp_path}/near/pod1"),))


def test_a_cgroup_survives_json() -> None:
    group = Cgroup(1, (("cpu", "/c/x"), ("memory", "/m/x")))
    assert Cgroup.from_json(group.to_json()) == group
    assert cgroup.descendant(group, "a", "b").paths == ("/c/x/a/b", "/m/x/a/b")


# ---- plain files: settings -------------------------------------------------------------------


def test_settings_go_to_the_directory_of_their_controller(tmp_path: Path) -> None:
    cpu = files_in(tmp_path / "cpu", cpu__shares="1024\n")
    memory = files_in(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n")
    group = Cgroup(1, (("cpu", str(cpu)), ("memory", str(memory))))
    settings = {"cpu.shares": "2", "memory.limit_in_bytes": "4096", "memory.memsw.limit_in_bytes": "1", "pids.max": "3"}
    cgroup.make(group, settings)
    assert (cpu / "cpu.shares").read_text() == "2"
    assert (memory / "memory.limit_in_bytes").read_text() == "4096"
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == ["cpu.shares", "memory.limit_in_bytes"]


def test_a_cgroup_that_exists_in_one_hierarchy_is_created_in_the_others(tmp_path: Path) -> None:
    group = Cgroup(1, (("cpu", str(tmp_path / "cpu")), ("memory", str(tmp_path / "memory"))))
    (tmp_path / "cpu").mkdir()
    cgroup.make(group, {})
    assert (tmp_path / "memory").is_dir()


def test_version_2_has_all_settings_in_one_directory(tmp_path: Path) -> None:
    directory = files_in(tmp_path / "x", cpu__max="max 100000\n", memory__max="max\n")
    cgroup.write(
        Cgroup(2, (("unified", str(directory)),)), {"cpu.max": "1000 100000", "memory.max": "1", "pids.max": "1"}
    )
    assert ((directory / "cpu.max").read_text(), (directory / "memory.max").read_text()) == ("1000 100000", "1")
    assert not (directory / "pids.max").exists()


def test_a_failed_setting_is_reported_with_file_and_text(tmp_path: Path) -> None:
    (tmp_path / "cpu.shares").mkdir()
    with pytest.raises(OSError, match=r"writing '2'.*cpu\.shares"):
        cgroup.write(Cgroup(1, (("cpu", str(tmp_path)),)), {"cpu.shares": "2"})


def test_missing_controllers_are_delegated(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__controllers="cpuset cpu io memory pids\n", cgroup__subtree_control="cpu\n")
    group = Cgroup(2, (("unified", str(directory)),))
    cgroup.delegate(group)
    assert (directory / "cgroup.subtree_control").read_text() == "+memory +pids"
    files_in(directory, cgroup__subtree_control="cpu memory pids\n")
    cgroup.delegate(group)
    assert (directory / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


# ---- plain files: measuring -----------------------------------------------------------------


def test_oom_kills_of_version_1(tmp_path: Path) -> None:
    memory = files_in(tmp_path / "memory", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroup.oom_kills(Cgroup(1, (("memory", str(memory)),))) == 3


def test_oom_kills_of_version_2(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 1\n"
    directory = files_in(tmp_path, memory__events=events)
    assert cgroup.oom_kills(Cgroup(2, (("unified", str(directory)),))) == 2


def test_without_a_memory_controller_no_oom_kill_is_counted(tmp_path: Path) -> None:
    for group in (Cgroup(1, (("cpu", str(tmp_path)),)), Cgroup(2, (("unified", str(tmp_path)),))):
        assert cgroup.oom_kills(group) == 0


def test_processes_of_all_hierarchies_and_descendants_are_listed(tmp_path: Path) -> None:
    cpu = files_in(tmp_path / "cpu", cgroup__procs="11\n12\n")
    files_in(cpu / "lower", cgroup__procs="13\n")
    pids = files_in(tmp_path / "pids", cgroup__procs="12\n0\n")  # 0: a process that we cannot see
    group = Cgroup(1, (("cpu", str(cpu)), ("pids", str(pids))))
    assert cgroup.processes(group) == {11, 12, 13}
    assert cgroup.children(group) == {"lower"}


# ---- plain files: killing and removing -------------------------------------------------------


def test_killing_uses_cgroup_kill(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__procs="", cgroup__kill="", pids__max="max\n")
    assert cgroup.kill_all(Cgroup(2, (("unified", str(directory)),)), 0)
    assert ((directory / "cgroup.kill").read_text(), (directory / "pids.max").read_text()) == ("1", "0")


def test_our_own_process_is_never_killed(tmp_path: Path) -> None:
    directory = files_in(tmp_path, cgroup__procs=f"{os.getpid()}\n")
    assert cgroup.kill_all(Cgroup(2, (("unified", str(directory)),)), 0)


def test_killing_times_out_and_reports_remaining_processes(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        directory = files_in(tmp_path, cgroup__procs=f"{process.pid}\n")  # a plain file: it stays there
        began = time.monotonic()
        assert not cgroup.kill_all(Cgroup(2, (("unified", str(directory)),)), 0.05)
        assert time.monotonic() - began < 20
        assert process.wait(TIMEOUT_SECONDS) == -9


def test_descendants_are_removed_first_and_a_missing_cgroup_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cpu/x/a/b").mkdir(parents=True)
    (tmp_path / "pids/x").mkdir(parents=True)
    group = Cgroup(1, tuple((name, f"{tmp_path}/{name}/x") for name in ("cpu", "memory", "pids")))
    assert cgroup.exists(group)
    cgroup.remove(group)
    assert not cgroup.exists(group)
    cgroup.remove(group)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["cpu", "pids"]


def test_a_cgroup_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    directory = files_in(tmp_path / "x", not_the_kernels="")
    with pytest.raises(OSError, match="not empty"):
        cgroup.remove(Cgroup(2, (("unified", str(directory)),)), 0.01)


# ---- plain files: details --------------------------------------------------------------------


def test_hierarchies_are_listed_with_their_roots_shortest_path_first(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "25 1 0:22 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n"
        "26 1 0:23 /x\\040y\\011z\\134 /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids\n"
        "27 1 0:24 / /sys/fs/cgroup/a\\012b rw - cgroup2 cgroup2 rw\n"
        "28 1 0:25 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
        "29 1 0:26 /up /sys/fs/cgroup/my\\040own rw - cgroup cgroup rw,name=x\n"
        "30 1 0:27 / / rw - ext4 /dev/vda rw\n"
    )
    assert cgroup.hierarchies(str(info)) == (
        Hierarchy("unified", "/sys/fs/cgroup/a\nb", "/"),
        Hierarchy("pids", "/sys/fs/cgroup/pids", "/x y\tz\\"),
        Hierarchy("cpu", "/sys/fs/cgroup/cpu,cpuacct", "/"),
        Hierarchy("cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/"),
    )
    assert cgroup.other_hierarchies(str(info)) == (
        Hierarchy("/sys/fs/cgroup/freezer", "/sys/fs/cgroup/freezer", "/"),
        Hierarchy("/sys/fs/cgroup/my own", "/sys/fs/cgroup/my own", "/up"),
    )


def test_a_cgroup_has_its_directories() -> None:
    assert cgroup.cgroup_at({}) is None
    assert cgroup.cgroup_at({"unified": "/u"}) == Cgroup(2, (("unified", "/u"),))
    both = cgroup.cgroup_at({"cpu": "/c", "unified": "/u"})
    assert both == Cgroup(1, (("cpu", "/c"), ("unified", "/u")))
    assert both is not None
    assert (both.directory_of("cpu"), both.directory_of("memory"), both.paths) == ("/c", "", ("/c", "/u"))
    assert both.to_json() == {"version": 1, "directories": {"cpu": "/c", "unified": "/u"}}
    alone = Cgroup(2, (("unified", "/u"),))
    assert (alone.directory_of("memory"), cgroup.descendant(alone, "a", "b")) == (
        "/u",
        Cgroup(2, (("unified", "/u/a/b"),)),
    )


def test_only_available_and_missing_controllers_are_delegated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    for group in (Cgroup(1, (("unified", str(tmp_path)),)), Cgroup(2, (("cpu", str(tmp_path)),))):
        cgroup.delegate(group)
        assert (tmp_path / "cgroup.subtree_control").read_text() == ""
    cgroup.delegate(Cgroup(2, (("unified", str(tmp_path)),)))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_oom_kills_are_zero_without_a_count(tmp_path: Path) -> None:
    second, first = Cgroup(2, (("unified", str(tmp_path)),)), Cgroup(1, (("memory", str(tmp_path)),))
    assert (cgroup.oom_kills(second), cgroup.oom_kills(first)) == (0, 0)
    (tmp_path / "memory.events").write_text("oom 9\nodd\noom_kill 3\noom_kill_more 7\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (cgroup.oom_kills(second), cgroup.oom_kills(first)) == (3, 2)
    (tmp_path / "memory.events").write_text("oom_kill x\n")
    assert cgroup.oom_kills(second) == 0


def test_children_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("a/x/deep", "b/y", "b/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").write_text("")
    (tmp_path / "a/link").symlink_to(tmp_path)
    group = Cgroup(1, (("cpu", f"{tmp_path}/a"), ("memory", f"{tmp_path}/b"), ("pids", f"{tmp_path}/c")))
    assert cgroup.children(group) == {"x", "y"}
    assert cgroup.exists(group)
    assert not cgroup.exists(Cgroup(1, (("pids", f"{tmp_path}/c"),)))


def test_processes_include_descendants_and_exclude_pid_zero(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "cgroup.procs").write_text("0\n12\n")
    (tmp_path / "x" / "cgroup.procs").write_text("34\n12\n")
    assert cgroup.processes(Cgroup(2, (("unified", str(tmp_path)),))) == {12, 34}
    assert cgroup.processes(Cgroup(2, (("unified", f"{tmp_path}/none"),))) == frozenset()
    (tmp_path / "cgroup.procs").unlink()
    (tmp_path / "cgroup.procs").mkdir()  # cannot be read, as that of a threaded cgroup
    assert cgroup.processes(Cgroup(2, (("unified", str(tmp_path)),))) == {12, 34}


def test_killing_forbids_forks(tmp_path: Path) -> None:
    for name in ("pids.max", "cgroup.kill", "cgroup.procs"):
        (tmp_path / name).write_text("")
    assert cgroup.kill_all(Cgroup(2, (("unified", str(tmp_path)),)), 0)
    assert ((tmp_path / "pids.max").read_text(), (tmp_path / "cgroup.kill").read_text()) == ("0", "1")


# ---- real cgroups ---------------------------------------------------------------------------


@pytest.fixture
def parent() -> Iterator[Cgroup]:
    """A real cgroup for this test."""
    with own_cgroups() as (_, root):
        yield root


def limited(parent: Cgroup, name: str, version_1: dict[str, str], version_2: dict[str, str]) -> Cgroup:
    group = cgroup.descendant(parent, name)
    cgroup.make(group, version_2 if group.version == 2 else version_1)
    return group


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
def test_a_fork_bomb_stops_at_its_limit_and_is_killed_entirely(parent: Cgroup) -> None:
    group = limited(parent, "bomb", {"pids.max": "12"}, {"pids.max": "12"})
    with process_in(group, FORK_UNTIL_REFUSED) as bomb:
        assert bomb.stdout is not None
        assert int(bomb.stdout.readline()) == 11
        assert len(cgroup.processes(group)) == 12
        assert cgroup.kill_all(group)
        assert bomb.wait(TIMEOUT_SECONDS) == -9
    cgroup.remove(group)
    assert not cgroup.exists(group)


EAT_MEMORY = "food = []\nwhile len(food) < 512: food.append(b'x' * (1 << 20))"


@needs("memory")
def test_an_oom_killed_process_is_counted(parent: Cgroup) -> None:
    limit = str(24 << 20)
    swapless = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    group = limited(parent, "hungry", swapless, {"memory.max": limit, "memory.swap.max": "0"})
    assert cgroup.oom_kills(group) == 0
    with process_in(group, EAT_MEMORY) as eater:
        assert eater.wait(TIMEOUT_SECONDS) == -9
    assert cgroup.oom_kills(group) == 1
    cgroup.remove(group)


@needs("memory")
def test_a_limit_can_be_raised_lowered_and_removed(parent: Cgroup) -> None:
    group = cgroup.descendant(parent, "moved")
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    for limit in ("16777216", "67108864", "33554432", "-1"):
        settings = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
        cgroup.make(group, {"memory.max": "max" if limit == "-1" else limit} if group.version == 2 else settings)
        value = Path(group.directory_of("memory"), name).read_text().strip()
        assert value == limit if limit != "-1" else value == "max" or int(value) > 1 << 60


# Each child forks the next one and exits, so a list of processes is outdated when it is read.
RUN_AWAY = """
import os, sys
sys.stdout.write("off\\n"); sys.stdout.flush()
while True:
    if os.fork():
        os._exit(0)
"""


def parts_of(group: Cgroup) -> Iterator[tuple[str, Cgroup]]:
    """The same cgroup with only one way to kill: pids.max, or cgroup.kill."""
    directories = dict(group.directories)
    unified = directories.pop("unified", None)
    if "pids" in directories:
        yield "pids.max", Cgroup(1, tuple(directories.items()))
    if unified is not None and os.path.exists(f"{unified}/cgroup.kill"):
        yield "cgroup.kill", Cgroup(2, (("unified", unified),))


@needs_cgroups
def test_a_process_that_forks_constantly_is_killed(parent: Cgroup) -> None:
    ways = list(parts_of(cgroup.descendant(parent, "runaway")))
    if not ways:
        pytest.skip(f"neither pids.max nor cgroup.kill: {HERE.describe()}")
    for way, part in ways:
        cgroup.make(cgroup.descendant(parent, "runaway"), {"pids.max": "max"})
        with process_in(part, RUN_AWAY) as runner:
            assert runner.stdout is not None
            runner.stdout.readline()
            runner.wait(TIMEOUT_SECONDS)
            assert cgroup.kill_all(part), way
            assert cgroup.processes(part) == frozenset(), way
            assert runner.stdout.read() == b"", way  # no process holds the pipe
        cgroup.remove(cgroup.descendant(parent, "runaway"))


@needs_cgroups
def test_a_cgroup_in_use_is_not_removed(parent: Cgroup) -> None:
    group = cgroup.descendant(parent, "used")
    cgroup.make(group, {})
    with process_in(group, "import time\nfor i in range(10**6): pass\nprint(1, flush=True)\ntime.sleep(60)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OSError, match="busy"):
            cgroup.remove(group, 0.01)
        assert cgroup.processes(group) == {process.pid}
        assert cgroup.kill_all(group)
    cgroup.remove(group)
    eventually(lambda: not cgroup.exists(group))
