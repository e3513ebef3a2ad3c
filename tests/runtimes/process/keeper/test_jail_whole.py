"""The complete environment of a container: devices, mounts, process state."""

import os
import signal
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux import idmap, libc
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch
from podkeeper.runtimes.process.keeper.rootfs import overlay_directories
from tests.runtimes.process.jail_harness import (
    NOBODY,
    KeeperFailed,
    Machine,
    end,
    machines,
    run,
    start,
    state_directory,
)

OPTIONS = ("ro", "nosuid", "nodev", "noexec")


machine = machines("root", "user")
as_root = machines("root", parent="/tmp")

DEVICES = {
    "fd": "symbolic link 777 0:0 /proc/self/fd",
    "full": "character special file 666 1:7",
    "mqueue": "directory 1777 0:0",
    "null": "character special file 666 1:3",
    "ptmx": "symbolic link 777 0:0 pts/ptmx",
    "pts": "directory 755 0:0",
    "random": "character special file 666 1:8",
    "shm": "directory 1777 0:0",
    "stderr": "symbolic link 777 0:0 /proc/self/fd/2",
    "stdin": "symbolic link 777 0:0 /proc/self/fd/0",
    "stdout": "symbolic link 777 0:0 /proc/self/fd/1",
    "tty": "character special file 666 5:0",
    "urandom": "character special file 666 1:9",
    "zero": "character special file 666 1:5",
}
LIST_DEVICES = "cd /dev; stat -c '%n=%F %a %t:%T=%N' *"
STATE = "umask; pwd; cat /proc/self/status; ls /proc/self/fd; cut -d' ' -f6 /proc/self/stat"
MASKED = [path for path in MASKED_PATHS if os.path.exists(path)]
READ_MASKED = "; ".join(f"{'ls' if os.path.isdir(path) else 'cat'} {path}" for path in MASKED)
EVERYTHING = f"{STATE}; echo =; {LIST_DEVICES}; echo =; cat /proc/self/mountinfo; echo =; {READ_MASKED}"


def devices_in(output: str) -> dict[str, str]:
    """Return each device: its kind, mode and numbers, and the target of a link."""
    found = {}
    for line in output.strip().splitlines():
        name, about, quoted = line.split("=")
        _, _, target = quoted.partition(" -> ")
        found[name] = f"{about} {target.strip(chr(39))}".strip()
    return found


def mounts_in(output: str) -> dict[str, tuple[str, list[str], list[str]]]:
    """Return the mounts of a container: file system, protecting mount options, file system options."""
    found = {}
    for line in output.strip().splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, _, point, options, *_ = left.split(" ")
        kind, _, more = right.split(" ")
        with_keeper = [option for option in OPTIONS if option in options.split(",")]
        found[point] = kind, with_keeper, more.split(",")
    return found


def test_the_complete_environment_of_a_container(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        os.umask(0o077)
        os.dup2(os.open("/etc", os.O_RDONLY), 77, inheritable=True)
        return run(NamespaceJail(isolation=machine.isolation), machine.spec(EVERYTHING))

    code, output = machine.in_keeper(action)
    state, devices, points, masked = output.split("\n=\n")
    assert (code, masked) == (0, "")
    nothing_of_the_keeper(state)
    assert devices_in(devices) == DEVICES
    mounts_protect_the_host(mounts_in(points), machine)


def nothing_of_the_keeper(state: str) -> None:
    words = state.split()
    assert words[:2] == ["0022", "/"]
    status = dict(pairwise(words))
    names = ("SigBlk:", "SigIgn:", "SigCgt:", "CapInh:", "CapAmb:", "NoNewPrivs:")
    assert {name: int(status[name], 16) for name in names} == dict.fromkeys(names, 0)
    assert words[-5:] == ["0", "1", "2", "3", "1"]  # 3 is the directory that ls reads; then the session


def mounts_protect_the_host(found: dict[str, tuple[str, list[str], list[str]]], machine: Machine) -> None:
    sysfs = mounts_in(Path("/proc/self/mountinfo").read_text())["/sys"][1]
    expected = {
        "/proc": ("proc", ["nosuid", "nodev", "noexec"]),
        "/sys": ("sysfs", sorted({"ro", *sysfs}, key=OPTIONS.index)),
        "/dev": ("tmpfs", ["nosuid", "nodev", "noexec"]),
        "/dev/pts": ("devpts", ["nosuid", "noexec"]),
        "/dev/shm": ("tmpfs", ["nosuid", "nodev", "noexec"]),
        "/dev/mqueue": ("mqueue", ["nosuid", "nodev", "noexec"]),
        **{path: ("proc", list(OPTIONS)) for path in READ_ONLY_PATHS if os.path.exists(path)},
        **{path: ("tmpfs", ["ro", "nosuid", "nodev"]) for path in MASKED if os.path.isdir(path)},
    }
    assert {point: found[point][:2] for point in expected} == expected
    assert {"size=65536k", "mode=755"} <= set(found["/dev"][2])
    assert "size=65536k" in found["/dev/shm"][2]
    assert {"mode=620", "ptmxmode=666"} <= set(found["/dev/pts"][2])
    assert ("gid=5" in found["/dev/pts"][2]) is (machine.run_as == "root")
    layers = [point for point, (kind, _, _) in found.items() if kind == "overlay"]
    assert layers
    assert all("nodev" in found[point][1] for point in layers)
    assert all("ro" in found[point][1] for point in found if point.startswith("/sys/"))


def test_a_privileged_container_has_the_hosts_devices_and_nothing_is_masked(as_root: Machine) -> None:
    code, output = as_root.run(f"{LIST_DEVICES}; echo =; cat /proc/self/mountinfo", privileged=True)
    assert code == 0
    first, second = output.split("\n=\n")
    found, points = devices_in(first), mounts_in(second)
    assert {name: found[name] for name in DEVICES} == DEVICES
    host = {}
    for path in Path("/dev").iterdir():
        mode = path.lstat().st_mode
        if path.name not in {*DEVICES, "console"} and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            number = path.stat().st_rdev
            host[path.name] = f"{stat.S_IMODE(mode):o} {os.major(number):x}:{os.minor(number):x}"
    assert {name: about.split(" file ")[-1] for name, about in found.items() if name in host} == host
    assert "console" not in found
    assert set(points).isdisjoint({*MASKED_PATHS, *READ_ONLY_PATHS})
    assert "ro" not in points["/sys"][1] or os.statvfs("/sys").f_flag & os.ST_RDONLY
    assert points["/"][1] == []


def test_a_read_only_root_has_read_only_layers_and_writable_volumes(as_root: Machine) -> None:
    volume = as_root.make("volume")
    script = "cat /proc/self/mountinfo; touch /usr/x /etc/x /x 2>/dev/null; touch /mnt/v/x && echo written"
    _, output = as_root.run(script, read_only_root=True, binds=(Bind(volume, "/mnt/v"),))
    text, _, last = output.strip().rpartition("\n")
    found = mounts_in(text)
    layers = [point for point, (kind, _, _) in found.items() if kind == "overlay" or point == "/"]
    assert last == "written"
    assert all("ro" in found[point][1] for point in layers)
    assert ("ro" in found["/mnt/v"][1], os.listdir(volume)) == (False, ["x"])


@pytest.mark.parametrize("recursive", [False, True])
def test_mounts_below_a_read_only_volume_are_read_only_only_if_recursive(as_root: Machine, recursive: bool) -> None:
    volume = as_root.make("volume")
    os.mkdir(f"{volume}/below")

    def action() -> tuple[int, str]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("tmpfs", f"{volume}/below", "tmpfs", 0)
        bind = Bind(volume, "/mnt/v", read_only=True, recursive_read_only=recursive)
        spec = as_root.spec("touch /mnt/v/x 2>/dev/null && echo a; touch /mnt/v/below/x 2>/dev/null && echo b; true")
        return run(NamespaceJail(isolation=as_root.isolation), Launch(**{**fields_of(spec), "binds": (bind,)}))

    assert as_root.in_keeper(action) == (0, "" if recursive else "b\n")


def fields_of(spec: Launch) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in Launch.__dataclass_fields__}


def test_a_hidden_directory_is_empty_and_cannot_be_written(as_root: Machine) -> None:
    secret = as_root.make("secret")
    Path(secret, "file").write_text("x")
    script = f"ls -A {secret}; touch {secret}/x 2>/dev/null && echo written; true"
    assert as_root.run(script, hidden=(secret, "/no/such/directory")) == (0, "")


def test_overlay_directories_finds_the_files_of_a_launch(as_root: Machine) -> None:
    as_root.run("echo x > /usr/podkeeper-test")
    found = overlay_directories(f"{as_root.state}/c")
    assert {name.partition("-")[0] for name in found} == {"upper", "work"}
    assert overlay_directories(f"{as_root.state}/missing") == []
    others = as_root.make("d/other")
    assert overlay_directories(os.path.dirname(others)) == []


def test_mount_points_of_volumes_are_accessible_to_all_users(as_root: Machine) -> None:
    binds = (Bind(as_root.make("volume"), "/opt/a/b"), Bind(as_root.make("file", "x"), "/opt/c/d"))
    script = "stat -c '%a' /opt/a /opt/c; cat /opt/c/d; touch /opt/a/b/new"
    assert as_root.run(script, binds=binds) == (0, "755\n755\nx")
    assert os.listdir(f"{as_root.state}/volume") == ["new"]


# ---- users without namespaces ----------------------------------------------------------------


def plain(run_as: str, **changes: Any) -> tuple[int, str]:
    with state_directory(run_as) as state:
        place = Machine(run_as, state, Isolation())
        return place.run("id -u; id -g; id -G; grep CapBnd /proc/self/status", **changes)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_without_namespaces_root_can_use_any_user() -> None:
    code, output = plain("root", user=7, group=8, groups=(9, 10), capabilities_drop=("ALL",))
    assert (code, output.split()) == (0, ["7", "8", "8", "9", "10", "CapBnd:", "0" * 16])
    code, output = plain("root")
    assert output.split()[:3] == ["0", "0", "0"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a user": ({"user": 1}, f"cannot run as user 1: podkeeper may not use this user ID; {idmap.HELP}"),
    "a group": ({"group": 1}, f"cannot run with group 1: podkeeper may not use this group ID; {idmap.HELP}"),
    "more groups": ({"groups": (2,)}, f"cannot run with group 2: podkeeper may not use this group ID; {idmap.HELP}"),
    "privileged": (
        {"privileged": True},
        "cannot grant capabilities: podkeeper does not run as root, and the kernel refuses user namespaces",
    ),
    "capabilities": (
        {"capabilities_add": ("KILL",)},
        "cannot grant capabilities: podkeeper does not run as root, and the kernel refuses user namespaces",
    ),
    "no command": ({"argv": ()}, "no command specified"),
    "volumes": (
        {"binds": (Bind("/etc", "/a"), Bind("/etc", "/b", optional=True), Bind("/etc", "/c"))},
        "cannot mount /a, /c: the kernel refuses namespaces. Run podkeeper as root, "
        "or allow unprivileged user namespaces (see `podkeeper doctor`)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_without_namespaces_an_ordinary_user_is_refused(name: str) -> None:
    changes, text = REFUSED[name]
    with pytest.raises(KeeperFailed) as refused:
        plain("user", **changes)
    assert str(refused.value) == f"LaunchError: {text}"


def test_without_namespaces_an_ordinary_user_keeps_its_identity() -> None:
    me = NOBODY if os.geteuid() == 0 else os.geteuid()
    optional = Bind("/etc", "/b", optional=True)
    code, output = plain("user", user=me, group=me if me == NOBODY else os.getegid(), binds=(optional,))
    assert (code, output.split()[0]) == (0, str(me))


FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "a missing program": ({"argv": ("none",)}, 'exec: "none": executable file not found in $PATH'),
    "a file that is not a program": ({"argv": ("/etc/passwd",)}, 'exec: "/etc/passwd": permission denied'),
    "a missing cgroup": (
        {"cgroups": ("/no/x/cgroup.procs",)},
        "cannot join the cgroup /no/x: no such file or directory",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_process_that_cannot_exec_reports_the_error(as_root: Machine, name: str) -> None:
    changes, text = FAILING[name]
    with pytest.raises(KeeperFailed) as refused:
        as_root.run("true", **changes)
    assert str(refused.value) == f"LaunchError: {text}"


def test_a_container_is_killed_with_its_keeper_and_joins_its_cgroup(as_root: Machine) -> None:
    procs = as_root.make("cgroup.procs", "")

    def action() -> tuple[str, str]:
        jail = NamespaceJail(isolation=as_root.isolation)
        pid = start(jail, as_root.spec("sleep 600", cgroups=(procs,)))
        joined = Path(procs).read_text()
        namespaces = {os.readlink(f"/proc/{each}/ns/pid") for each in (pid, "self")}
        end(pid)
        return joined, str(len(namespaces))

    assert as_root.in_keeper(action) == ("0", "2")


def test_the_shared_memory_of_a_pod_ends_with_it(as_root: Machine) -> None:
    def action() -> list[Any]:
        found: list[Any] = []
        for name in ("a", "b"):
            jail = NamespaceJail(isolation=as_root.isolation, shm=True, hostname="web")
            found.append(run(jail, as_root.spec("ls /dev/shm; echo x > /dev/shm/file; hostname", name)))
            jail.close()
        return [*found, os.uname().nodename]

    assert as_root.in_keeper(action) == [(0, "web\n"), (0, "web\n"), "web"]


def test_a_container_can_have_its_own_hostname(as_root: Machine) -> None:
    spec = {"uts": "own", "hostname": "other"}
    assert as_root.run("hostname", {"hostname": "web"}, **spec) == (0, "other\n")
    assert as_root.run("hostname", {"hostname": "web"}, uts="own", name="b") == (0, "web\n")
    assert as_root.run("hostname", {"hostname": "web"}, hostname="other", name="d") == (0, "web\n")


def test_the_default_path_finds_programs_without_one(as_root: Machine) -> None:
    assert as_root.run("true", argv=("echo", "found"), env={}) == (0, "found\n")


def test_without_a_shared_pid_namespace_a_container_has_its_own(as_root: Machine) -> None:
    assert as_root.run("echo $$", pid="pod") == (0, "1\n")
    assert as_root.run("echo $$", {"host_pid": True}, pid="pod", name="b") != (0, "1\n")
    code, output = as_root.run("echo $$", {"share_pid": True}, pid="pod", name="d")
    assert (code, int(output) > 1) == (0, True)
    assert as_root.run("echo $$", {"share_pid": True}, pid="own", name="e") == (0, "1\n")


def test_without_pid_namespaces_a_pod_has_no_pause_process(as_root: Machine) -> None:
    def action() -> list[bool]:
        found = []
        for pid in (True, False):
            jail = NamespaceJail(isolation=replace(as_root.isolation, pid=pid), share_pid=True)
            found.append(jail.pause_pid > 0)
            jail.close()
        return found

    assert as_root.in_keeper(action) == [True, False]
