"""Removing and measuring trees that untrusted processes write to."""

import errno
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from podkeeper.linux.mounts import file_system_of, mount_tmpfs, mounts_below, unmount
from podkeeper.linux.tree import (
    MAX_OPEN_DEPTH,
    chmod_held,
    disk_usage,
    make_child,
    make_directory,
    open_anything,
    open_child,
    open_directory,
    opened,
    remove_tree,
)
from tests.volumes.bind import bind
from tests.volumes.harness import as_unprivileged_user, is_gone, needs_mounts, needs_root, temporary_root


def test_a_tree_is_removed_with_its_contents(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "a" / "b").mkdir(parents=True)
    (victim / "a" / "b" / "file").write_text("x")
    os.mkfifo(victim / "a" / "pipe")
    (victim / "locked").mkdir()
    (victim / "locked" / "inside").mkdir()
    (victim / "locked").chmod(0)
    remove_tree(str(tmp_path), "victim")
    assert is_gone(str(victim))
    remove_tree(str(tmp_path), "victim")
    remove_tree(str(tmp_path), "never", "there")


def test_two_removals_of_one_tree_at_once_both_succeed(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def remove() -> None:
        try:
            remove_tree(str(tmp_path), "victim")
        except BaseException as error:
            errors.append(error)

    for _ in range(30):
        for number in range(20):
            (tmp_path / "victim" / f"d{number}" / "deep").mkdir(parents=True)
            (tmp_path / "victim" / f"d{number}" / "file").write_text("x")
        removals = [threading.Thread(target=remove) for _ in range(2)]
        for removal in removals:
            removal.start()
        for removal in removals:
            removal.join()
        assert errors == []
        assert is_gone(str(tmp_path / "victim"))


def test_a_link_is_removed_and_its_target_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    victim = tmp_path / "victim"
    victim.mkdir()
    os.symlink(precious, victim / "absolute")
    os.symlink("../precious", victim / "relative")
    os.symlink("../precious/file", victim / "to a file")
    os.symlink(victim, victim / "round")
    remove_tree(str(tmp_path), "victim")
    os.symlink(precious, victim)
    remove_tree(str(tmp_path), "victim")
    assert is_gone(str(victim))
    assert (precious / "file").read_text() == "x"


def test_a_link_in_the_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious" / "volumes").mkdir(parents=True)
    os.symlink(tmp_path / "precious", tmp_path / "pod")
    with pytest.raises(OSError):
        remove_tree(str(tmp_path), "pod", "volumes")
    with pytest.raises(OSError):
        make_directory(str(tmp_path), "pod", "new")
    assert os.listdir(tmp_path / "precious") == ["volumes"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_name_that_is_not_a_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        open_directory(str(tmp_path), name)


def test_a_tree_deeper_than_the_limit_of_open_files_is_removed(tmp_path: Path) -> None:
    with opened(make_directory(str(tmp_path), "victim")) as top:
        descriptor = os.dup(top)
        for _ in range(3 * MAX_OPEN_DEPTH + 5):
            os.mkdir("d", dir_fd=descriptor)
            with opened(descriptor):
                descriptor = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each level needs two descriptors: enough for the levels that are open at a time, not for all levels.
    most = max(map(int, os.listdir("/proc/self/fd"))) + 2 * MAX_OPEN_DEPTH + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        remove_tree(str(tmp_path), "victim")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_gone(str(tmp_path / "victim"))


def test_directories_replaced_by_links_during_the_removal_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    names = {f"file{number}" for number in range(20)}
    for name in names:
        (precious / name).write_text("x")
    victim = tmp_path / "victim"
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                os.mkdir(victim / "d")
            with suppress(OSError):
                os.rename(victim / "d", victim / "e")
            with suppress(OSError):
                os.symlink(precious, victim / "d")
            with suppress(OSError):
                os.unlink(victim / "d")

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(200):
            victim.mkdir(exist_ok=True)
            with suppress(OSError):
                remove_tree(str(tmp_path), "victim")
    finally:
        done.set()
        attacker.join()
    assert set(os.listdir(precious)) == names


@needs_mounts
def test_files_behind_a_mount_are_never_deleted() -> None:
    with temporary_root() as root:
        (root / "victim" / "deep" / "mount").mkdir(parents=True)
        with opened(open_directory(str(root / "victim" / "deep" / "mount"))) as directory:
            mount_tmpfs(directory, "size=1m")
        kept = root / "victim" / "deep" / "mount" / "kept"
        kept.write_text("x")
        assert file_system_of(str(kept)) == "tmpfs"
        with pytest.raises(OSError, match="a file system is mounted here; unmount it first"):
            remove_tree(str(root), "victim")
        with pytest.raises(OSError, match="a file system is mounted here; unmount it first"):
            remove_tree(str(root), "victim", "deep", "mount")
        assert kept.read_text() == "x"
        unmount(str(root / "victim" / "deep" / "mount"))
        remove_tree(str(root), "victim")
        assert is_gone(str(root / "victim"))


@needs_mounts
def test_a_bind_mount_of_the_same_file_system_is_a_mount_too() -> None:
    with temporary_root() as root:
        precious = root / "precious"
        (root / "victim" / "a b").mkdir(parents=True)
        precious.mkdir()
        (precious / "file").write_text("x")
        bind(precious, root / "victim" / "a b")
        assert mounts_below(os.path.realpath(root)) == [os.path.realpath(root / "victim" / "a b")]
        with pytest.raises(OSError, match="a file system is mounted here; unmount it first"):
            remove_tree(str(root), "victim")
        assert (precious / "file").read_text() == "x"
        unmount(str(root / "victim" / "a b"))


@needs_mounts
def test_a_file_mounted_over_another_stays() -> None:
    with temporary_root() as root:
        (root / "victim").mkdir()
        (root / "victim" / "file").write_text("")
        (root / "precious").write_text("x")
        bind(root / "precious", root / "victim" / "file")
        with pytest.raises(OSError):
            remove_tree(str(root), "victim")
        assert (root / "precious").read_text() == "x"


def test_usage_counts_hard_links_once_and_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a" / "file", tmp_path / "again")
    with open(tmp_path / "hole", "wb") as hole:
        hole.truncate(1 << 30)
    os.symlink("/", tmp_path / "everything")
    used = disk_usage(str(tmp_path), stop_above=1 << 40)
    assert 100_000 <= used < 150_000
    assert 50_000 < disk_usage(str(tmp_path), stop_above=50_000) <= used


@needs_mounts
def test_usage_stops_at_a_mount() -> None:
    with temporary_root() as root:
        (root / "mount").mkdir()
        with opened(open_directory(str(root / "mount"))) as directory:
            mount_tmpfs(directory, "size=1m")
        (root / "mount" / "file").write_bytes(b"x" * 500_000)
        assert disk_usage(str(root), stop_above=1 << 40) < 100_000


# Descriptors, modes and exact numbers.


@contextmanager
def no_descriptor_is_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    os.symlink("a", tmp_path / "link")
    here = str(tmp_path)
    with no_descriptor_is_left():
        with opened(open_directory(here, "a", "b", "c")), opened(make_directory(here, "a", "b", "new")):
            pass
        with pytest.raises(NotADirectoryError):
            open_directory(here, "a", "file")
        with pytest.raises(OSError):
            make_directory(here, "link", "new")
        with opened(open_directory(here)) as top, opened(open_anything(top, "link")) as held:
            assert stat.S_ISLNK(os.fstat(held).st_mode)
        disk_usage(here, stop_above=1 << 40)
        disk_usage(here, stop_above=0)
        remove_tree(here, "a", "file")
        remove_tree(here, "a", "never")
        remove_tree(here, "never", "there")
        remove_tree(here, "a")
    assert os.listdir(tmp_path) == ["link"]


@needs_mounts
def test_no_descriptor_is_left_open_if_a_mount_stops_the_removal() -> None:
    with temporary_root() as root:
        (root / "victim" / "mount").mkdir(parents=True)
        with opened(open_directory(str(root / "victim" / "mount"))) as directory:
            mount_tmpfs(directory, "size=1m")
        with no_descriptor_is_left(), pytest.raises(OSError):
            remove_tree(str(root), "victim")
        unmount(str(root / "victim" / "mount"))


def test_only_the_named_entry_is_removed(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/x", "y"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    remove_tree(str(tmp_path), "a", "b")
    remove_tree(str(tmp_path), "file")
    remove_tree(str(tmp_path), "pipe")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/x", "y"]
    with pytest.raises(FileNotFoundError):
        open_directory(str(tmp_path), "a", "b")


@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_new_directory_has_the_requested_mode_and_an_existing_one_keeps_its_mode(tmp_path: Path, umask: int) -> None:
    (tmp_path / "old").mkdir(mode=0o701)
    (tmp_path / "old").chmod(0o701)
    before = os.umask(umask)
    try:
        os.close(make_directory(str(tmp_path), "old", "usual"))
        os.close(make_directory(str(tmp_path), "old", "open", "deep", mode=0o777))
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o7777 for path in tmp_path.rglob("*")}
    assert modes == {"old": 0o701, "old/usual": 0o750, "old/open": 0o777, "old/open/deep": 0o777}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_every_function_refuses_a_name_that_is_not_a_file_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with opened(open_directory(str(tmp_path / "a"))) as directory:
        for way in (open_child, open_anything, lambda at, name: make_child(at, name, 0o700)):
            with pytest.raises(OSError) as raised:
                way(directory, name)
            assert (raised.value.errno, raised.value.filename) == (errno.EINVAL, name)


def blocks_below(directory: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in directory.rglob("*"))


def test_usage_is_the_sum_of_all_blocks_below(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"d{number}" / "deep").mkdir(parents=True)
        (tmp_path / f"d{number}" / "deep" / "own").write_bytes(b"x" * 5000)
    expected = blocks_below(tmp_path)
    assert disk_usage(str(tmp_path), stop_above=1 << 40) == expected
    shared = tmp_path / "d0" / "shared"
    shared.write_bytes(b"x" * 9000)
    expected += os.lstat(shared).st_blocks * 512
    for number in range(1, 4):
        os.link(shared, tmp_path / f"d{number}" / "shared")
    os.link(tmp_path / "d3" / "deep" / "own", tmp_path / "d3" / "twin")  # a file with just two names
    assert disk_usage(str(tmp_path), stop_above=1 << 40) == expected


def test_usage_is_counted_until_it_exceeds_the_limit(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"f{number}").write_bytes(b"x" * 4096)
    one = os.lstat(tmp_path / "f0").st_blocks * 512
    limits = [0, one - 1, one, 2 * one - 1, 2 * one, 3 * one, 4 * one, 5 * one]
    assert [disk_usage(str(tmp_path), stop_above=limit) // one for limit in limits] == [1, 1, 2, 2, 3, 4, 4, 4]


def test_usage_is_counted_down_to_the_maximum_depth(tmp_path: Path) -> None:
    with opened(open_directory(str(tmp_path))) as top:
        descriptor, expected = os.dup(top), 0
        for depth in range(260):
            os.mkdir("d", dir_fd=descriptor)
            with opened(descriptor):
                with open(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor), "wb") as file:
                    file.write(b"x" * 4096)
                if depth <= 256:
                    expected += sum(os.lstat(name, dir_fd=descriptor).st_blocks * 512 for name in ("d", "f"))
                descriptor = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
    assert disk_usage(str(tmp_path), stop_above=1 << 40) == expected
    remove_tree(str(tmp_path), "d")


def test_usage_of_a_missing_directory_or_a_link_is_an_error(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "link")
    for name in ("gone", "link"):
        with pytest.raises(OSError):
            disk_usage(str(tmp_path / name), stop_above=1)


def test_the_mode_of_an_open_file_can_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with opened(open_directory(str(tmp_path))) as top, opened(open_anything(top, "file")) as held:
        chmod_held(held, 0o604)
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o604


@needs_root
def test_an_ordinary_user_removes_its_directories_with_any_mode() -> None:
    def work() -> list[str]:
        with temporary_root() as root:
            for mode in (0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600, 0o700):
                directory = root / "victim" / f"m{mode:o}"
                (directory / "inside").mkdir(parents=True)
                (directory / "file").write_text("x")
                directory.chmod(mode)
            remove_tree(str(root), "victim")
            return os.listdir(root)

    assert as_unprivileged_user(work) == []


@needs_root
def test_a_directory_of_another_user_is_an_error() -> None:
    with temporary_root() as root:
        root.chmod(0o755)
        (root / "victim" / "locked").mkdir(parents=True)
        (root / "victim" / "locked" / "file").write_text("x")
        (root / "victim" / "locked").chmod(0o700)

        def work() -> str:
            try:
                remove_tree(str(root), "victim")
            except PermissionError:
                return "refused"
            return "removed"

        assert as_unprivileged_user(work) == "refused"
        assert (root / "victim" / "locked" / "file").read_text() == "x"
        assert (root / "victim" / "locked").stat().st_mode & 0o7777 == 0o700


def test_a_deep_tree_is_not_moved_out_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / Path("victim", *["d"] * (MAX_OPEN_DEPTH + 3))).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    remove_tree(str(tmp_path), "victim")
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "elsewhere")) == (["elsewhere"], [])
