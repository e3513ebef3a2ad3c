"""All that a container sees and is, at once: its devices, its mounts with their options, its process."""

import os
import signal
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper import idmap, libc
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.jail import Jail
from podkeeper.runtimes.process.keeper.launch import MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch
from podkeeper.runtimes.process.keeper.view import made_in
from tests.runtimes.process.jailing import NOBODY, Broken, World, end, run, start, state_directory, worlds

OPTIONS = ("ro", "nosuid", "nodev", "noexec")


here = worlds("root", "user")
as_root = worlds("root", place="/tmp")

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
    """Each device: its kind, mode and numbers, and where it leads if it is a link."""
    found = {}
    for line in output.strip().splitlines():
        name, about, quoted = line.split("=")
        _, _, target = quoted.partition(" -> ")
        found[name] = f"{about} {target.strip(chr(39))}".strip()
    return found


def mounts_in(output: str) -> dict[str, tuple[str, list[str], list[str]]]:
    """The mounts of a container: kind, options of the mount that protect something, and those of the file system."""
    found = {}
    for line in output.strip().splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, _, point, options, *_ = left.split(" ")
        kind, _, more = right.split(" ")
        kept = [option for option in OPTIONS if option in options.split(",")]
        found[point] = kind, kept, more.split(",")
    return found


def test_all_that_a_container_sees_and_is(here: World) -> None:
    def action() -> tuple[int, str]:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        os.umask(0o077)
        os.dup2(os.open("/etc", os.O_RDONLY), 77, inheritable=True)
        return run(Jail(isolation=here.isolation), here.spec(EVERYTHING))

    code, output = here.keep(action)
    state, devices, points, masked = output.split("\n=\n")
    assert (code, masked) == (0, "")
    nothing_of_the_keeper(state)
    assert devices_in(devices) == DEVICES
    mounts_protect_the_host(mounts_in(points), here)


def nothing_of_the_keeper(state: str) -> None:
    words = state.split()
    assert words[:2] == ["0022", "/"]
    status = dict(pairwise(words))
    names = ("SigBlk:", "SigIgn:", "SigCgt:", "CapInh:", "CapAmb:", "NoNewPrivs:")
    assert {name: int(status[name], 16) for name in names} == dict.fromkeys(names, 0)
    assert words[-5:] == ["0", "1", "2", "3", "1"]  # the directory that ls reads is 3; then the session


def mounts_protect_the_host(found: dict[str, tuple[str, list[str], list[str]]], here: World) -> None:
    sysfs = mounts_in(Path("/proc/self/mountinfo").read_text())["/sys"][1]
    expected = {
        "/proc": ("proc", ["nosuid", "nodev", "noexec"]),
        "/sys": ("sysfs", sorted({"ro", *sysfs}, key=OPTIONS.index)),
        "/dev": ("tmpfs", ["nosuid", "noexec"]),
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
    assert ("gid=5" in found["/dev/pts"][2]) is (here.who == "root")
    layers = [point for point, (kind, _, _) in found.items() if kind == "overlay"]
    assert layers
    assert all("nodev" in found[point][1] for point in layers)
    assert all("ro" in found[point][1] for point in found if point.startswith("/sys/"))


def test_a_privileged_container_has_the_hosts_devices_and_nothing_is_masked(as_root: World) -> None:
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


def test_a_read_only_root_has_read_only_layers_and_writable_volumes(as_root: World) -> None:
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
def test_a_read_only_volume_covers_what_is_mounted_below_only_if_it_says_so(as_root: World, recursive: bool) -> None:
    volume = as_root.make("volume")
    os.mkdir(f"{volume}/below")

    def action() -> tuple[int, str]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("tmpfs", f"{volume}/below", "tmpfs", 0)
        bind = Bind(volume, "/mnt/v", read_only=True, recursive_read_only=recursive)
        spec = as_root.spec("touch /mnt/v/x 2>/dev/null && echo a; touch /mnt/v/below/x 2>/dev/null && echo b; true")
        return run(Jail(isolation=as_root.isolation), Launch(**{**fields_of(spec), "binds": (bind,)}))

    assert as_root.keep(action) == (0, "" if recursive else "b\n")


def fields_of(spec: Launch) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in Launch.__dataclass_fields__}


def test_a_hidden_directory_is_empty_and_cannot_be_written(as_root: World) -> None:
    secret = as_root.make("secret")
    Path(secret, "file").write_text("x")
    script = f"ls -A {secret}; touch {secret}/x 2>/dev/null && echo written; true"
    assert as_root.run(script, hidden=(secret, "/no/such/directory")) == (0, "")


def test_what_a_launch_leaves_on_disk_is_known_by_its_names(as_root: World) -> None:
    as_root.run("echo x > /usr/podkeeper-test")
    found = made_in(f"{as_root.state}/c")
    assert {name.partition("-")[0] for name in found} == {"upper", "work"}
    assert made_in(f"{as_root.state}/missing") == []
    others = as_root.make("d/other")
    assert made_in(os.path.dirname(others)) == []


def test_what_is_made_for_volumes_can_be_entered_by_all(as_root: World) -> None:
    binds = (Bind(as_root.make("volume"), "/opt/a/b"), Bind(as_root.make("file", "x"), "/opt/c/d"))
    script = "stat -c '%a' /opt/a /opt/c; cat /opt/c/d; touch /opt/a/b/new"
    assert as_root.run(script, binds=binds) == (0, "755\n755\nx")
    assert os.listdir(f"{as_root.state}/volume") == ["new"]


# ---- identities, without namespaces ----------------------------------------------------------


def plain(who: str, **changes: Any) -> tuple[int, str]:
    with state_directory(who) as state:
        place = World(who, state, Isolation())
        return place.run("id -u; id -g; id -G; grep CapBnd /proc/self/status", **changes)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_without_namespaces_root_can_still_be_anybody() -> None:
    code, output = plain("root", user=7, group=8, groups=(9, 10), capabilities_drop=("ALL",))
    assert (code, output.split()) == (0, ["7", "8", "8", "9", "10", "CapBnd:", "0" * 16])
    code, output = plain("root")
    assert output.split()[:3] == ["0", "0", "0"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a user": ({"user": 1}, f"cannot run as user 1: it is not among podkeeper's user ids; {idmap.HELP}"),
    "a group": ({"group": 1}, f"cannot run with group 1: it is not among podkeeper's group ids; {idmap.HELP}"),
    "more groups": ({"groups": (2,)}, f"cannot run with group 2: it is not among podkeeper's group ids; {idmap.HELP}"),
    "privileged": (
        {"privileged": True},
        "cannot give capabilities: podkeeper does not run as root, and user namespaces are refused",
    ),
    "capabilities": (
        {"capabilities_add": ("KILL",)},
        "cannot give capabilities: podkeeper does not run as root, and user namespaces are refused",
    ),
    "no command": ({"argv": ()}, "no command specified"),
    "volumes": (
        {"binds": (Bind("/etc", "/a"), Bind("/etc", "/b", optional=True), Bind("/etc", "/c"))},
        "cannot mount /a, /c: namespaces are refused on this machine. Run podkeeper as root, "
        "or allow unprivileged user namespaces (`podkeeper doctor` tells how)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_without_namespaces_an_ordinary_user_is_refused(name: str) -> None:
    changes, text = REFUSED[name]
    with pytest.raises(Broken) as refused:
        plain("user", **changes)
    assert str(refused.value) == f"LaunchError: {text}"


def test_without_namespaces_an_ordinary_user_stays_who_it_is() -> None:
    me = NOBODY if os.geteuid() == 0 else os.geteuid()
    optional = Bind("/etc", "/b", optional=True)
    code, output = plain("user", user=me, group=me if me == NOBODY else os.getegid(), binds=(optional,))
    assert (code, output.split()[0]) == (0, str(me))


FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "a program that is not there": ({"argv": ("none",)}, 'exec: "none": executable file not found in $PATH'),
    "a program that is none": ({"argv": ("/etc/passwd",)}, 'exec: "/etc/passwd": permission denied'),
    "a cgroup that is gone": (
        {"cgroups": ("/no/x/cgroup.procs",)},
        "cannot join the cgroup /no/x: no such file or directory",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_process_that_does_not_come_to_its_program_says_why(as_root: World, name: str) -> None:
    changes, text = FAILING[name]
    with pytest.raises(Broken) as refused:
        as_root.run("true", **changes)
    assert str(refused.value) == f"LaunchError: {text}"


def test_a_container_dies_with_its_keeper_and_joins_its_cgroup(as_root: World) -> None:
    procs = as_root.make("cgroup.procs", "")

    def action() -> tuple[str, str]:
        jail = Jail(isolation=as_root.isolation)
        pid = start(jail, as_root.spec("sleep 600", cgroups=(procs,)))
        joined = Path(procs).read_text()
        namespaces = {os.readlink(f"/proc/{each}/ns/pid") for each in (pid, "self")}
        end(pid)
        return joined, str(len(namespaces))

    assert as_root.keep(action) == ("0", "2")


def test_a_pod_shares_memory_that_ends_with_it(as_root: World) -> None:
    shm = f"{as_root.state}/shm"

    def action() -> list[Any]:
        os.mkdir(shm, 0o700)  # one that is there already will do
        jail = Jail(isolation=as_root.isolation, shm=shm, hostname="web")
        mode = os.stat(shm).st_mode & 0o7777
        first = run(jail, as_root.spec("echo x > /dev/shm/file; hostname", "a"))
        second = run(jail, as_root.spec("cat /dev/shm/file", "b"))
        jail.close()
        return [mode, first, second, os.path.exists(shm), os.uname().nodename]

    assert as_root.keep(action) == [0o1777, (0, "web\n"), (0, "x\n"), False, "web"]


def test_a_container_can_have_a_hostname_of_its_own(as_root: World) -> None:
    spec = {"uts": "own", "hostname": "other"}
    assert as_root.run("hostname", {"hostname": "web"}, **spec) == (0, "other\n")
    assert as_root.run("hostname", {"hostname": "web"}, uts="own", name="b") == (0, "web\n")
    assert as_root.run("hostname", {"hostname": "web"}, hostname="other", name="d") == (0, "web\n")


def test_the_default_path_finds_programs_without_one(as_root: World) -> None:
    assert as_root.run("true", argv=("echo", "found"), env={}) == (0, "found\n")


def test_where_the_pod_shares_no_processes_a_container_has_its_own(as_root: World) -> None:
    assert as_root.run("echo $$", pid="pod") == (0, "1\n")
    assert as_root.run("echo $$", {"host_pid": True}, pid="pod", name="b") != (0, "1\n")
    code, output = as_root.run("echo $$", {"share_pid": True}, pid="pod", name="d")
    assert (code, int(output) > 1) == (0, True)
    assert as_root.run("echo $$", {"share_pid": True}, pid="own", name="e") == (0, "1\n")


def test_where_the_machine_refuses_pid_namespaces_a_pod_has_none_to_share(as_root: World) -> None:
    def action() -> list[bool]:
        found = []
        for pid in (True, False):
            jail = Jail(isolation=replace(as_root.isolation, pid=pid), share_pid=True)
            found.append(jail.anchor > 0)
            jail.close()
        return found

    assert as_root.keep(action) == [True, False]
