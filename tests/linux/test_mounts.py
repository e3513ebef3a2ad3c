"""The mount table: parsing, visibility, and the mounts of this machine."""

import os
from pathlib import Path

import pytest

from podkeeper.linux import mounts
from podkeeper.linux.mounts import MountPoint
from podkeeper.linux.tree import open_directory, opened
from tests.volumes.harness import needs_mounts, temporary_root

INFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw - sysfs sysfs rw
24 27 0:6 / /dev rw shared:3 - devtmpfs devtmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 0:25 / /boot ro,nosuid - ext4 /dev/vdb rw
30 27 0:26 / /srv/with\040space rw - tmpfs tmpfs rw
31 27 0:27 / /home rw master:7 - nfs4 server:/home rw
32 27 0:28 / /run rw - tmpfs tmpfs rw
33 32 0:29 / /run/user/1 rw - tmpfs tmpfs rw
34 27 0:30 / /run rw - tmpfs other rw
35 34 0:31 / /run/netns/a rw - nsfs nsfs rw
36 27 0:32 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
""".strip()


def test_propagation_flags_and_escapes_are_parsed() -> None:
    found = {mount.id: mount for mount in mounts.parse(INFO)}
    assert found[27] == MountPoint(27, 1, "/", "ext4", shared=True, super_options=("rw",))
    assert found[28] == MountPoint(28, 27, "/boot", "ext4", read_only=True, super_options=("rw",))
    assert found[30].path == "/srv/with space"
    assert not found[31].shared


def test_a_covered_mount_is_not_visible() -> None:
    table = mounts.visible(mounts.parse(INFO))
    assert table["/run"].id == 34
    assert "/run/user/1" not in table
    assert next(iter(table)) == "/"


def test_a_mount_over_the_root_covers_it() -> None:
    info = "1 0 0:1 / / rw - rootfs rootfs rw\n2 1 0:2 / / rw - ext4 a rw\n3 2 0:3 / /proc rw - proc proc rw"
    assert {path: mount.id for path, mount in mounts.visible(mounts.parse(info)).items()} == {"/": 2, "/proc": 3}


def test_each_part_of_a_mountinfo_line_is_parsed() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw\n"
        "37 36 98:0 /sub\\040dir /a\\040b\\134\\303\\274 rw,relatime,ro - nfs4 server:/x rw,vers=4\n"
        "38 36 98:0 / /c rw,errors=remount-ro propagate_from:2 unbindable - tmpfs tmpfs ro\n"
    )
    assert mounts.parse(text) == [
        MountPoint(36, 35, "/mnt2", "ext3", shared=True, root="/mnt1", super_options=("rw",)),
        MountPoint(37, 36, "/a b\\ü", "nfs4", read_only=True, root="/sub dir", super_options=("rw", "vers=4")),
        MountPoint(38, 36, "/c", "tmpfs", super_options=("ro",)),
    ]


def test_this_machine_has_a_root_and_a_proc() -> None:
    table = mounts.visible(mounts.read())
    assert table["/"].path == "/"
    assert table["/proc"].file_system == "proc"


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
def test_the_innermost_directory_of_a_path(path: str, expected: str) -> None:
    assert mounts.innermost(path, ("/a", "/a/b", "/y")) == expected
    assert mounts.innermost(path, ("/", "/a/b", "/a")) == expected


def test_only_uncovered_mounts_are_visible() -> None:
    def mount(number: int, parent: int, path: str) -> MountPoint:
        return MountPoint(number, parent, path, "ext4")

    table = [
        mount(1, 1, "/"),  # its own parent
        mount(2, 1, "/a/b"),
        mount(3, 1, "/a"),  # covers 2
        mount(4, 3, "/a/c"),
        mount(5, 1, "/d"),
        mount(6, 5, "/d"),  # covers 5 entirely
        mount(7, 5, "/d/e"),
        mount(8, 6, "/d/f"),
        mount(9, 77, "/elsewhere"),  # its parent is not in the table
        mount(10, 1, "/g"),
        mount(11, 1, "/g"),  # covers 10
        mount(12, 11, "/g"),
        mount(13, 11, "/g"),  # covers 11 and 12
    ]
    found = {point: each.id for point, each in mounts.visible(table).items()}
    assert found == {"/": 1, "/a": 3, "/a/c": 4, "/d": 6, "/d/f": 8, "/g": 13}
    assert list(found) == sorted(found)
    assert mounts.visible([]) == {}


def test_a_mount_on_a_deleted_directory_is_unreachable() -> None:
    gone, there = mounts.parse("1 0 0:1 / /a//deleted rw - ext4 x rw\n2 0 0:1 / /a/deleted rw - ext4 x rw")
    assert (gone.is_reachable, there.is_reachable) == (False, True)


def test_paths_that_are_not_utf8_or_mix_escapes_and_letters_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "info").write_bytes(
        "1 0 0:1 / /日\\040本 rw - ext4 x rw\n".encode() + b"2 0 0:1 / /\xff rw - ext4 x rw\n"
    )
    assert [mount.path for mount in mounts.read(str(tmp_path / "info"))] == ["/日 本", os.fsdecode(b"/\xff")]


def test_the_file_system_of_a_path_is_that_of_its_innermost_mount() -> None:
    assert mounts.file_system_of("/proc/self") == "proc"
    assert mounts.file_system_of("/") == mounts.visible(mounts.read())["/"].file_system


def test_of_the_mounts_at_a_path_the_last_reachable_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        MountPoint(1, 0, "/", "ext4"),
        MountPoint(2, 1, "/nowhere/a", "tmpfs"),
        MountPoint(3, 2, "/nowhere/a", "overlay"),
        MountPoint(4, 1, "/nowhere/a//deleted", "nfs4"),
    ]
    monkeypatch.setattr(mounts, "read", lambda: table)
    assert mounts.mounts_below("/nowhere") == ["/nowhere/a", "/nowhere/a"]
    assert mounts.file_system_of("/nowhere/a/b") == "overlay"
    assert mounts.file_system_of("/nowhere") == "ext4"
    monkeypatch.setattr(mounts, "read", lambda: [table[0], MountPoint(5, 1, "/x//deleted", "nfs4")])
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert mounts.file_system_of("/x//deleted") == "ext4"


@needs_mounts
def test_of_two_mounts_on_one_directory_the_last_one_is_on_top() -> None:
    with temporary_root() as root:
        top = os.path.realpath(root / "top")
        os.mkdir(top)
        for options in ("size=1m", "size=2m"):
            with opened(open_directory(top)) as directory:
                mounts.mount_tmpfs(directory, options)
        assert mounts.mounts_below(str(Path(top).parent)) == [top, top]
        assert mounts.file_system_of(top) == "tmpfs"
        mounts.unmount(top)
        assert mounts.mounts_below(top) == [top]
        mounts.unmount(top)
        assert mounts.mounts_below(top) == []
