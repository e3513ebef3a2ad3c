"""Small parts of keepers, each in the test's own process: mount tables, capabilities, ids, files, last words, libc."""

import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper import capabilities, cgroup, child, files, idmap, killing, libc, mounts, subpath
from podkeeper.runtimes.process.keeper.cgroup import Hierarchy, Place
from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.giving import give
from podkeeper.runtimes.process.keeper.idmap import HELP, MORE_HELP
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch, LaunchError
from podkeeper.runtimes.process.keeper.mounts import COPY, EMPTY, LINK, READ, Layer, Mount
from podkeeper.runtimes.process.keeper.termination import last_words
from tests.runtimes.process.jailing import Broken, in_keeper

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and become another user")


# ---- the host's mounts -----------------------------------------------------------------------


def test_each_part_of_a_mountinfo_line_is_read() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw\n"
        "37 36 98:0 / /a\\040b\\134\\303\\274 rw,relatime,ro - nfs4 server:/x rw\n"
        "38 36 98:0 / /c rw,errors=remount-ro propagate_from:2 unbindable - tmpfs tmpfs ro\n"
    )
    assert mounts.parse(text) == [
        Mount(36, 35, "/mnt2", "ext3", read_only=False, shared=True),
        Mount(37, 36, "/a b\\ü", "nfs4", read_only=True, shared=False),
        Mount(38, 36, "/c", "tmpfs", read_only=False, shared=False),
    ]


def test_this_machine_has_a_root_and_a_proc() -> None:
    table = mounts.visible(mounts.read())
    assert table["/"].point == "/"
    assert table["/proc"].kind == "proc"


@pytest.mark.parametrize(
    ("path", "top", "expected"),
    [
        ("/a", "/", True),
        ("/", "/", True),
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/", "/a", False),
    ],
)
def test_a_path_is_below_itself_and_its_directories(path: str, top: str, expected: bool) -> None:
    assert mounts.is_below(path, top) is expected


@pytest.mark.parametrize(
    ("path", "expected"), [("/a/b/c", "/a/b"), ("/a/bc", "/a"), ("/a", "/a"), ("/x", "/"), ("/", "/")]
)
def test_the_innermost_place_holds_a_path(path: str, expected: str) -> None:
    assert mounts.holder(path, ("/a", "/a/b", "/y")) == expected
    assert mounts.holder(path, ("/", "/a/b", "/a")) == expected


def test_only_what_no_other_mount_covers_is_visible() -> None:
    def mount(number: int, parent: int, point: str) -> Mount:
        return Mount(number, parent, point, "ext4")

    table = [
        mount(1, 1, "/"),  # its own parent
        mount(2, 1, "/a/b"),
        mount(3, 1, "/a"),  # covers 2
        mount(4, 3, "/a/c"),
        mount(5, 1, "/d"),
        mount(6, 5, "/d"),  # covers 5 entirely
        mount(7, 5, "/d/e"),
        mount(8, 6, "/d/f"),
        mount(9, 77, "/elsewhere"),  # of a parent that we do not see
        mount(10, 1, "/g"),
        mount(11, 1, "/g"),  # the later one counts
    ]
    found = {point: each.id for point, each in mounts.visible(table).items()}
    assert found == {"/": 1, "/a": 3, "/a/c": 4, "/d": 6, "/d/f": 8, "/g": 11}
    assert list(found) == sorted(found)
    assert mounts.visible([]) == {}


WAYS = {
    "/etc": ("ext4", False, COPY),
    "/usr": ("ext4", True, READ),
    "/opt": ("nfs4", False, READ),
    "/home": ("fuse.sshfs", False, READ),
    "/var": ("tmpfs", False, COPY),
    "/srv": ("overlay", False, None),
    "/mnt": ("autofs", False, None),
    "/proc/fs": ("ext4", False, None),
    "/sys/fs": ("ext4", False, None),
    "/dev/shm": ("tmpfs", False, None),
    "/run/netns": ("tmpfs", False, None),
    "/var/lib/docker/x": ("ext4", False, None),
    "/var/lib/kubelet": ("ext4", False, None),
    "/etc/hostname": ("ext4", False, READ),
    "/no/such/place": ("ext4", False, READ),
    "/tmp": ("ext4", False, None),  # hidden below
}


def test_how_each_file_system_is_shown_where_overlays_lie_over_all() -> None:
    table = {"/": Mount(1, 0, "/", "overlay", read_only=True)}
    for point, (kind, read_only, _) in WAYS.items():
        table[point] = Mount(2, 1, point, kind, read_only)
    expected = [Layer("/", COPY), *(Layer(point, how) for point, (_, _, how) in WAYS.items() if how is not None)]
    assert mounts.whole(table, hidden=("/tmp",)) == expected


@contextmanager
def tree() -> Iterator[str]:
    """A directory outside of the places that are scratch."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-tree-", dir=os.path.expanduser("~")) as home:
        yield home


def layers_below(home: str, found: list[Layer]) -> dict[str, tuple[str, int, str]]:
    return {
        layer.path.removeprefix(home): (layer.how, layer.mode, layer.link)
        for layer in found
        if layer.path.startswith(f"{home}/") or layer.path == home
    }


def make(home: str) -> None:
    for name in ("full/deep", "void", "mounted", "secret"):
        os.makedirs(f"{home}/{name}")
    os.chmod(f"{home}/void", 0o1770)
    os.chmod(home, 0o751)
    Path(home, "file").write_text("x")
    Path(home, "full/file").write_text("x")
    Path(home, "secret/file").write_text("x")
    os.symlink("full", f"{home}/link")


def table_with(home: str, kind: str = "tmpfs", *, read_only: bool = False) -> dict[str, Mount]:
    point = f"{home}/mounted"
    return {"/": Mount(1, 0, "/", "ext4"), point: Mount(2, 1, point, kind, read_only)}


def test_a_directory_with_a_mount_below_is_taken_apart() -> None:
    with tree() as home:
        make(home)
        found = mounts.split(table_with(home), hidden=(f"{home}/secret",))
        assert layers_below(home, found) == {
            "": (EMPTY, 0o751, ""),
            "/file": (READ, 0o755, ""),
            "/full": (COPY, 0, ""),
            "/link": (LINK, 0o755, "full"),
            "/mounted": (EMPTY, 0o755, ""),  # nothing in it: cheaper than an overlay
            "/secret": (EMPTY, 0o755, ""),
            "/void": (EMPTY, 0o1770, ""),
        }
        Path(home, "mounted/file").write_text("x")
        for kind, read_only, how in (("tmpfs", False, COPY), ("nfs4", False, READ), ("tmpfs", True, READ)):
            found = mounts.split(table_with(home, kind, read_only=read_only))
            assert layers_below(home, found)["/mounted"] == (how, 0, "")
        assert layers_below(home, mounts.split(table_with(home, "nsfs")))["/mounted"] == (EMPTY, 0o755, "")


def test_without_overlays_the_host_is_only_read_and_tmp_is_new() -> None:
    with tree() as home:
        make(home)
        found = mounts.split({"/": Mount(1, 0, "/", "ext4")}, overlay=False, cuts={home, *map(str, Path(home).parents)})
        assert layers_below(home, found) == {
            "": (EMPTY, 0o751, ""),
            "/file": (READ, 0o755, ""),
            "/full": (READ, 0, ""),
            "/link": (LINK, 0o755, "full"),
            "/mounted": (EMPTY, 0o755, ""),
            "/secret": (READ, 0, ""),
            "/void": (EMPTY, 0o1770, ""),
        }
        by_path = {layer.path: layer for layer in found}
        assert by_path["/tmp"] == Layer("/tmp", EMPTY, 0o1777)
        for own in ("/proc", "/sys", "/dev"):
            assert by_path[own] == Layer(own, EMPTY)
        assert found[0].path == "/"
        assert found[0].how == EMPTY


def test_what_is_mounted_with_others_below_it_keeps_its_way() -> None:
    with tree() as home:
        make(home)
        point, inner = home, f"{home}/mounted"
        table = {
            "/": Mount(1, 0, "/", "ext4"),
            point: Mount(2, 1, point, "nfs4"),
            inner: Mount(3, 2, inner, "tmpfs"),
        }
        found = layers_below(home, mounts.split(table))
        assert (found["/full"], found["/secret"]) == ((READ, 0, ""), (READ, 0, ""))


# ---- cgroups ---------------------------------------------------------------------------------


def test_hierarchies_are_listed_with_their_roots_the_shortest_first(tmp_path: Path) -> None:
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


def test_a_place_is_made_of_its_directories() -> None:
    assert cgroup.place_at({}) is None
    assert cgroup.place_at({"unified": "/u"}) == Place(2, (("unified", "/u"),))
    both = cgroup.place_at({"cpu": "/c", "unified": "/u"})
    assert both == Place(1, (("cpu", "/c"), ("unified", "/u")))
    assert both is not None
    assert (both.directory_of("cpu"), both.directory_of("memory"), both.paths) == ("/c", "", ("/c", "/u"))
    assert both.to_json() == {"version": 1, "directories": {"cpu": "/c", "unified": "/u"}}
    alone = Place(2, (("unified", "/u"),))
    assert (alone.directory_of("memory"), cgroup.lower(alone, "a", "b")) == ("/u", Place(2, (("unified", "/u/a/b"),)))


def test_only_what_is_on_offer_and_missing_is_handed_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    for place in (Place(1, (("unified", str(tmp_path)),)), Place(2, (("cpu", str(tmp_path)),))):
        cgroup.delegate(place)
        assert (tmp_path / "cgroup.subtree_control").read_text() == ""
    cgroup.delegate(Place(2, (("unified", str(tmp_path)),)))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_counts_are_read_where_there_are_any(tmp_path: Path) -> None:
    second, first = Place(2, (("unified", str(tmp_path)),)), Place(1, (("memory", str(tmp_path)),))
    assert (cgroup.oom_kills(second), cgroup.oom_kills(first)) == (0, 0)
    (tmp_path / "memory.events").write_text("oom 9\nodd\noom_kill 3\noom_kill_more 7\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (cgroup.oom_kills(second), cgroup.oom_kills(first)) == (3, 2)
    (tmp_path / "memory.events").write_text("oom_kill x\n")
    assert cgroup.oom_kills(second) == 0


def test_the_cgroups_below_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("a/x/deep", "b/y", "b/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").write_text("")
    (tmp_path / "a/link").symlink_to(tmp_path)
    place = Place(1, (("cpu", f"{tmp_path}/a"), ("memory", f"{tmp_path}/b"), ("pids", f"{tmp_path}/c")))
    assert cgroup.children(place) == {"x", "y"}
    assert cgroup.exists(place)
    assert not cgroup.exists(Place(1, (("pids", f"{tmp_path}/c"),)))


def test_processes_are_gathered_from_below_and_strange_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "cgroup.procs").write_text("0\n12\n")
    (tmp_path / "x" / "cgroup.procs").write_text("34\n12\n")
    assert cgroup.processes(Place(2, (("unified", str(tmp_path)),))) == {12, 34}
    assert cgroup.processes(Place(2, (("unified", f"{tmp_path}/none"),))) == frozenset()
    (tmp_path / "cgroup.procs").unlink()
    (tmp_path / "cgroup.procs").mkdir()  # cannot be read, as that of a threaded cgroup
    assert cgroup.processes(Place(2, (("unified", str(tmp_path)),))) == {12, 34}


def test_killing_stops_forks_first(tmp_path: Path) -> None:
    for name in ("pids.max", "cgroup.kill", "cgroup.procs"):
        (tmp_path / name).write_text("")
    assert cgroup.kill_all(Place(2, (("unified", str(tmp_path)),)), 0)
    assert ((tmp_path / "pids.max").read_text(), (tmp_path / "cgroup.kill").read_text()) == ("0", "1")


# ---- capabilities ----------------------------------------------------------------------------


DEFAULT = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
CAPABILITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool, set[int]]] = {
    "as containerd has it": ((), (), False, DEFAULT),
    "one more, in either spelling": (("NET_ADMIN", "cap_sys_time"), (), False, DEFAULT | {12, 25}),
    "one less": ((), ("KILL", "CAP_MKNOD"), False, DEFAULT - {5, 27}),
    "dropping goes after adding": (("NET_ADMIN",), ("NET_ADMIN",), False, DEFAULT),
    "none but those added": (("BPF",), ("ALL",), False, {39}),
    "all but one": (("ALL",), ("SYS_ADMIN",), False, set(range(64)) - {21}),
    "all and none": (("ALL",), ("ALL",), False, set()),
    "what nobody knows need not be dropped": ((), ("NONSENSE",), False, DEFAULT),
    "privileged": ((), ("KILL",), True, set(range(64))),
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_what_a_container_may_do(name: str) -> None:
    add, drop, privileged, expected = CAPABILITIES[name]
    assert capabilities.allowed(add, drop, privileged) == expected


def test_capabilities_have_the_numbers_of_the_kernel() -> None:
    numbers = {"CHOWN": 0, "KILL": 5, "NET_ADMIN": 12, "SYS_ADMIN": 21, "SETFCAP": 31, "SYSLOG": 34}
    numbers |= {"CHECKPOINT_RESTORE": 40, "AUDIT_READ": 37, "LEASE": 28, "SYS_RESOURCE": 24, "IPC_OWNER": 15}
    for name, number in numbers.items():
        assert capabilities.allowed((name,), ("ALL",), False) == {number}
    with pytest.raises(LaunchError, match=r'^cannot add the capability "A": there is none of that name$'):
        capabilities.allowed(("KILL", "B", "A"), (), False)


@needs_root
def test_what_is_given_up_is_gone_for_good() -> None:
    def action() -> list[int]:
        capabilities.bound(frozenset({0, 5}))
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        return [number for number in range(last + 1) if libc.prctl(libc.PR_CAPBSET_READ, number)]

    assert in_keeper(action) == [0, 5]


# ---- ids -------------------------------------------------------------------------------------


def test_the_primary_group_is_that_of_the_hosts_users() -> None:
    entries = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    for entry in entries[:5]:
        assert idmap.primary_group(int(entry[2])) == int(entry[3])
    assert idmap.primary_group(4_000_000) == 0


@needs_root
def test_without_the_two_programs_there_are_no_ids_to_hand_out(tmp_path: Path) -> None:
    def action() -> Any:
        os.environ["PATH"] = str(tmp_path)
        return idmap.subordinate_ids()

    assert in_keeper(action) == (idmap.NO_IDS, idmap.NO_IDS)


@pytest.mark.parametrize("statuses", [(1, 0), (0, 1)])
def test_ids_that_one_of_the_two_programs_does_not_map_are_refused(tmp_path: Path, statuses: tuple[int, int]) -> None:
    for name, status in zip(("newuidmap", "newgidmap"), statuses, strict=True):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)

    def action() -> None:
        os.environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
        idmap.enter_user_namespace((100000, 65536), (200000, 65536))

    with pytest.raises(Broken, match="newuidmap or newgidmap refused"):
        in_keeper(action)


SUBORDINATE: dict[str, tuple[str, str, Any]] = {
    "the longest range, by name or number": (
        "root:100:5\n0:1000:70\nother:5:999\nbroken\nroot:1:2:3\n",
        "root:7:8\n",
        ((1000, 70), (7, 8)),
    ),
    "no groups": ("root:100:5\n", "other:7:8\n", (idmap.NO_IDS, idmap.NO_IDS)),
    "an empty range": ("root:100:0\n", "root:7:8\n", (idmap.NO_IDS, idmap.NO_IDS)),
}


@needs_root
@pytest.mark.parametrize("name", SUBORDINATE)
def test_the_ids_that_may_be_handed_out_are_those_of_the_two_files(tmp_path: Path, name: str) -> None:
    users, groups, expected = SUBORDINATE[name]
    if not (os.path.isfile("/etc/subuid") and os.path.isfile("/etc/subgid")):
        pytest.skip("needs /etc/subuid and /etc/subgid, to put others over them")
    for file, content in (("subuid", users), ("subgid", groups), ("newuidmap", ""), ("newgidmap", "")):
        (tmp_path / file).write_text(content)
        (tmp_path / file).chmod(0o755)

    def action() -> Any:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        for file in ("subuid", "subgid"):
            libc.mount(f"{tmp_path}/{file}", f"/etc/{file}", None, libc.MS_BIND)
        os.environ["PATH"] = f"/nowhere:{tmp_path}"
        return idmap.subordinate_ids()

    assert in_keeper(action) == expected


@pytest.mark.parametrize(
    ("isolation", "group", "advice"),
    [
        (None, 0, HELP),
        (Isolation("full"), 1, HELP),
        (Isolation("user"), 1, HELP),
        (Isolation("user", gids=(100_000, 10)), 11, MORE_HELP),
    ],
)
def test_a_group_that_cannot_be_given_comes_with_advice(isolation: Isolation | None, group: int, advice: str) -> None:
    with pytest.raises(LaunchError) as refused:
        give("/nowhere", group, isolation)
    text = f"cannot give files to group {group}: it is not among podkeeper's group ids; {advice}"
    assert str(refused.value) == text


def test_an_ordinary_user_gives_to_its_own_group_links_and_all() -> None:
    with tempfile.TemporaryDirectory(prefix="podkeeper-give-") as home:
        os.makedirs(f"{home}/a/b")
        Path(home, "a/file").write_text("")
        os.symlink("/etc/passwd", f"{home}/a/link")
        names = ("", "/a", "/a/b", "/a/file", "/a/link")
        if os.geteuid() == 0:
            for name in names:
                os.chown(home + name, 65534, 1, follow_symlinks=False)

        def action() -> None:
            give(home, 0, Isolation("user"))

        in_keeper(action, "user")
        group = 65534 if os.geteuid() == 0 else os.getegid()
        assert {name: os.lstat(home + name).st_gid for name in names} == dict.fromkeys(names, group)
        assert os.stat("/etc/passwd").st_gid != 65534


# ---- files and processes ---------------------------------------------------------------------


def test_a_json_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    assert files.read_json(path) is None
    files.write_json(path, {"a": 1, "b": [1, "ü"]})
    assert Path(path).read_text() == '{"a":1,"b":[1,"\\u00fc"]}'
    assert files.read_json(path) == {"a": 1, "b": [1, "ü"]}
    assert os.listdir(tmp_path) == ["x.json"]
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1, "b": [1, "ü"]}
    for torn in (b"", b'{"a"', b"[1]", b"null", b'{"a":"\xff'):
        Path(path).write_bytes(torn)
        assert files.read_json(path) is None


def test_a_process_is_named_by_its_start() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert files.start_ticks(os.getpid()) == int(fields[19]) > 0
    assert files.start_ticks(2**22 + 1) == 0
    assert files.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_signals_to_those_who_are_gone_are_lost() -> None:
    for act in (killing.send, killing.send_group):
        act(2**22 + 1, signal.SIGKILL)
    killing.kill_session(2**22 + 1)
    assert killing.children(2**22 + 1) == ()


def test_children_are_found() -> None:
    def action() -> bool:
        pids = [os.posix_spawnp("sleep", ("sleep", "600"), os.environ) for _ in range(2)]
        found = killing.children(os.getpid())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return sorted(found) == sorted(pids)

    assert in_keeper(action)


def test_demolition_takes_several_and_deletes_files_and_links_too(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_text("")
    (tmp_path / "alone").write_text("")
    (tmp_path / "kept").write_text("")
    demolish(str(tmp_path / "a"), str(tmp_path / "alone"), str(tmp_path / "missing/x"), str(tmp_path / "missing"))
    assert os.listdir(tmp_path) == ["kept"]


# ---- a part of a volume ----------------------------------------------------------------------


@contextmanager
def opened(volume: Path, sub_path: str) -> Iterator[str]:
    """What a subpath leads to. No file but that may stay open."""
    before = len(os.listdir("/proc/self/fd"))
    descriptor = subpath.open_subpath(str(volume), sub_path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    try:
        yield os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("sub_path", "leads_to"),
    [
        ("", ""),
        (".", ""),
        ("a", "/a"),
        ("a/./b//", "/a/b"),
        ("a/../a", "/a"),
        ("a/b/file", "/a/b/file"),
        ("link", "/a/b"),
        ("a/up", "/a"),
        ("link/..", "/a"),
        ("new/deep", "/new/deep"),
    ],
)
def test_a_subpath_leads_to_its_place_in_the_volume(tmp_path: Path, sub_path: str, leads_to: str) -> None:
    volume = tmp_path / "volume"
    (volume / "a/b").mkdir(parents=True)
    (volume / "a/b/file").write_text("")
    (volume / "link").symlink_to("a/b")
    (volume / "a/up").symlink_to("../a")
    os.chmod(volume, 0o2775)
    with opened(volume, sub_path) as found:
        assert found == f"{volume}{leads_to}"
    if sub_path == "new/deep":
        modes = [stat.S_IMODE((volume / name).stat().st_mode) for name in ("new", "new/deep")]
        assert modes == [0o2775, 0o2775]


@pytest.mark.parametrize("sub_path", ["/a", "..", "a/../..", "out", "absolute", "loop", "a/out"])
def test_a_subpath_that_leads_out_is_refused_and_leaves_nothing_open(tmp_path: Path, sub_path: str) -> None:
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    (volume / "out").symlink_to("../x")
    (volume / "a/out").symlink_to("../../x")
    (volume / "absolute").symlink_to("/etc")
    (volume / "loop").symlink_to("loop")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LaunchError) as refused:
        subpath.open_subpath(str(volume), sub_path)
    assert str(refused.value) == f'subpath "{sub_path}" not within volume path "{volume}"'
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("links", "fine"), [(40, True), (41, False)])
def test_forty_links_are_followed_and_no_more(tmp_path: Path, links: int, fine: bool) -> None:
    (tmp_path / "0").mkdir()
    for number in range(links):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    if fine:
        with opened(tmp_path, str(links)) as found:
            assert found == f"{tmp_path}/0"
    else:
        with pytest.raises(LaunchError):
            subpath.open_subpath(str(tmp_path), str(links))


# ---- last words ------------------------------------------------------------------------------


def line(content: bytes, tag: bytes = b"F") -> bytes:
    return b"2026-01-01T00:00:00.000000000Z stdout " + tag + b" " + content + b"\n"


WORDS: dict[str, tuple[bytes | None, bytes | None, bool, str]] = {
    "the file": (b"bye", b"", True, "bye"),
    "its last 4096 bytes": (b"x" + b"y" * 4096, None, False, "y" * 4096),
    "no file": (None, line(b"logged"), True, "logged\n"),
    "an empty file": (b"", line(b"logged"), True, "logged\n"),
    "the log is not asked": (b"", line(b"logged"), False, ""),
    "pieces are put together": (b"", line(b"a", b"P") + line(b"b"), True, "ab\n"),
    "the last 80 lines": (
        b"",
        b"".join(line(b"%d" % n) for n in range(90)),
        True,
        "".join(f"{n}\n" for n in range(10, 90)),
    ),
    "the last 2048 bytes": (b"", line(b"x" * 3000), True, "x" * 2047 + "\n"),
    "a line whose beginning is cut off": (b"", line(b"x" * 65530) + line(b"end"), True, "end\n"),
    "a line that is not ended": (b"", line(b"whole") + b"2026 stdout F half", True, "whole\n"),
    "nonsense in the log": (b"", b"nonsense\n", True, "\n"),
    "what is no text": (b"\xff", None, False, "\ufffd"),
    "no log": (b"", None, True, "Error on reading termination message from logs: No such file or directory"),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_last_words_of_a_container(tmp_path: Path, name: str) -> None:
    file, log, ask_log, expected = WORDS[name]
    for path, content in (("termination", file), ("log", log)):
        if content is not None:
            (tmp_path / path).write_bytes(content)
    assert last_words(str(tmp_path / "termination"), str(tmp_path / "log"), ask_log=ask_log) == expected


def test_last_words_follow_no_link_and_wait_for_no_pipe(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    (tmp_path / "link").symlink_to(secret)
    text = "Error on reading termination log"
    assert last_words(str(tmp_path / "link"), "", ask_log=True).startswith(f"{text} {tmp_path}/link: ")
    os.mkfifo(tmp_path / "pipe")
    assert last_words(str(tmp_path / "pipe"), "", ask_log=False).startswith(f"{text} {tmp_path}/pipe: ")
    assert last_words(str(tmp_path / "none"), "", ask_log=True) == ""


# ---- launches and programs -------------------------------------------------------------------


def test_a_launch_has_these_defaults() -> None:
    made = Launch.from_json({"argv": ["a"], "env": {}, "invented": 1})
    assert made == Launch(argv=("a",), env={})
    assert (made.pid, made.ipc, made.uts, made.user, made.group) == ("own", "pod", "pod", None, None)
    assert (made.masked, made.read_only_paths) == (MASKED_PATHS, READ_ONLY_PATHS)
    assert {"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/timer_list"} <= set(MASKED_PATHS)
    assert set(READ_ONLY_PATHS) == {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
    switches = ("privileged", "no_new_privileges", "read_only_root", "tty", "most_processes", "beside")
    assert not any(getattr(made, name) for name in switches)
    bind = Bind("/a", "/b")
    assert (bind.read_only, bind.recursive_read_only, bind.optional, bind.propagation) == (False, False, False, "")
    whole = Launch(argv=("a",), env={"B": "1"}, binds=(bind, Bind("/c", "/d", True, "Bidirectional")), groups=(1, 2))
    assert Launch.from_json(whole.to_json()) == whole


def test_a_program_is_looked_up_as_go_does(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "tool").write_text("")
        (directory / "plain").write_text("")
    (first / "dir").mkdir()
    (second / "tool").chmod(0o755)
    (second / "dir").write_text("")
    (second / "dir").chmod(0o755)
    search = f"{first}:{second}"
    assert child.look_up("tool", search) == f"{second}/tool"
    assert child.look_up("dir", search) == f"{second}/dir"
    assert child.look_up(f"{second}/tool", "") == f"{second}/tool"
    refusals: dict[str, str] = {
        "none": 'exec: "none": executable file not found in $PATH',
        "plain": 'exec: "plain": executable file not found in $PATH',
        "": 'exec: "": executable file not found in $PATH',
        f"{first}/none": f'exec: "{first}/none": stat {first}/none: no such file or directory',
        f"{first}/dir": f'exec: "{first}/dir": is a directory',
        f"{first}/plain": f'exec: "{first}/plain": permission denied',
    }
    for name, text in refusals.items():
        with pytest.raises(LaunchError) as refused:
            child.look_up(name, search)
        assert str(refused.value) == text


def test_an_empty_part_of_the_path_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert child.look_up("tool", "/nowhere:") == "./tool"


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError(2, "x"), "no such file or directory"), (OSError("Odd"), "odd"), (OSError(""), "")],
)
def test_errors_are_worded_as_go_words_them(error: OSError, text: str) -> None:
    assert child.words(error) == text


# ---- the kernel's numbers --------------------------------------------------------------------


def test_constants_have_the_values_of_the_kernels_headers() -> None:
    expected = {
        "MS_RDONLY": 0x1,
        "MS_NOSUID": 0x2,
        "MS_NODEV": 0x4,
        "MS_NOEXEC": 0x8,
        "MS_REMOUNT": 0x20,
        "MS_BIND": 0x1000,
        "MS_REC": 0x4000,
        "MS_PRIVATE": 0x40000,
        "MS_SLAVE": 0x80000,
        "MS_SHARED": 0x100000,
        "MNT_DETACH": 0x2,
        "MOUNT_ATTR_RDONLY": 0x1,
        "CLONE_PARENT": 0x8000,
        "CLONE_NEWNS": 0x20000,
        "CLONE_NEWUTS": 0x4000000,
        "CLONE_NEWIPC": 0x8000000,
        "CLONE_NEWUSER": 0x10000000,
        "CLONE_NEWPID": 0x20000000,
        "PR_SET_PDEATHSIG": 1,
        "PR_SET_DUMPABLE": 4,
        "PR_CAPBSET_READ": 23,
        "PR_CAPBSET_DROP": 24,
        "PR_SET_CHILD_SUBREAPER": 36,
        "PR_SET_NO_NEW_PRIVS": 38,
    }
    assert {name: getattr(libc, name) for name in expected} == expected


FAILING: dict[str, Callable[[], object]] = {
    "/nowhere": lambda: libc.mount("none", "/nowhere", "tmpfs", 0),
    "/nowhere/else": lambda: libc.unmount("/nowhere/else"),
    "/no/root": lambda: libc.pivot_root("/no/root", "/"),
    "setns": lambda: libc.setns(-1, 0),
    "prctl": lambda: libc.prctl(-1),
    "/no/attributes": lambda: libc.set_attributes("/no/attributes", 1, recursive=False),
    "/no/tree": lambda: libc.open_tree("/no/tree"),
    "/no/target": lambda: libc.attach_tree(-1, "/no/target"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_call_that_fails_names_what_it_was_about(name: str) -> None:
    with pytest.raises(OSError, match=r"^\[Errno ") as refused:
        FAILING[name]()
    assert refused.value.filename == name
    assert refused.value.strerror == os.strerror(refused.value.errno or 0)


def test_files_are_closed_from_a_number_on() -> None:
    def action() -> list[bool]:
        for number in (100, 200):
            os.dup2(0, number)
        found = []
        for first in (200, 100):
            libc.close_at_exec(first)
            found += [os.get_inheritable(100), os.get_inheritable(200)]
        libc.close_from(150)
        return [*found, os.path.exists("/proc/self/fd/100"), os.path.exists("/proc/self/fd/200")]

    assert in_keeper(action) == [True, False, False, False, True, False]


@needs_root
def test_a_hostname_is_that_of_its_namespace() -> None:
    def action() -> str:
        libc.unshare(libc.CLONE_NEWUTS)
        libc.set_hostname("web-0")
        return os.uname().nodename

    before = os.uname().nodename
    assert in_keeper(action) == "web-0"
    assert os.uname().nodename == before


def test_signals_do_again_what_they_do_by_default() -> None:
    def action() -> str:
        for number in (signal.SIGUSR1, signal.SIGPIPE, signal.SIGRTMAX):
            signal.signal(number, signal.SIG_IGN)
        libc.default_signals()
        status = Path("/proc/self/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))

    assert int(in_keeper(action), 16) == 0


# ---- what a machine allows -------------------------------------------------------------------


def test_findings_travel_as_json() -> None:
    found = Isolation("user", True, "split", ",userxattr", "memory", (1, 2), (3, 4), True, ("careful",))
    assert found.to_json() == {
        "namespaces": "user",
        "pid": True,
        "overlay": "split",
        "overlay_options": ",userxattr",
        "upper": "memory",
        "uids": (1, 2),
        "gids": (3, 4),
        "counts": True,
        "warnings": ("careful",),
    }
    assert Isolation.from_json({**found.to_json(), "uids": [1, 2], "gids": [3, 4], "warnings": ["careful"]}) == found
    assert Isolation() == Isolation("none", False, "", "", "disk", (0, 0), (0, 0), False, ())
