"""Removing and measuring trees that somebody hostile has filled."""

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.volumes.kernel import file_system_of, mount_tmpfs, mounts_below, unmount
from podkeeper.volumes.tree import DEEPEST, disk_usage, make_directory, open_directory, opened, remove_tree
from tests.volumes.bind import bind
from tests.volumes.volume_house import house, is_gone, needs_mounts


def test_a_tree_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
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


def test_a_link_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
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


def test_a_link_on_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious" / "volumes").mkdir(parents=True)
    os.symlink(tmp_path / "precious", tmp_path / "pod")
    with pytest.raises(OSError):
        remove_tree(str(tmp_path), "pod", "volumes")
    with pytest.raises(OSError):
        make_directory(str(tmp_path), "pod", "new")
    assert os.listdir(tmp_path / "precious") == ["volumes"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        open_directory(str(tmp_path), name)


def test_a_tree_deeper_than_files_can_be_held_open_goes_too(tmp_path: Path) -> None:
    with opened(make_directory(str(tmp_path), "victim")) as top:
        descriptor = os.dup(top)
        for _ in range(3 * DEEPEST + 5):
            os.mkdir("d", dir_fd=descriptor)
            with opened(descriptor):
                descriptor = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each level holds two: enough for as many levels as are held at a time, far from enough for all.
    most = max(map(int, os.listdir("/proc/self/fd"))) + 2 * DEEPEST + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        remove_tree(str(tmp_path), "victim")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_gone(str(tmp_path / "victim"))


def test_directories_that_are_swapped_for_links_meanwhile_lead_nowhere(tmp_path: Path) -> None:
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
            with suppress(OSError, TryLater):
                remove_tree(str(tmp_path), "victim")
    finally:
        done.set()
        attacker.join()
    assert set(os.listdir(precious)) == names


@needs_mounts
def test_what_lies_behind_a_mount_is_never_deleted() -> None:
    with house() as root:
        (root / "victim" / "deep" / "mount").mkdir(parents=True)
        with opened(open_directory(str(root / "victim" / "deep" / "mount"))) as directory:
            mount_tmpfs(directory, "size=1m")
        kept = root / "victim" / "deep" / "mount" / "kept"
        kept.write_text("x")
        assert file_system_of(str(kept)) == "tmpfs"
        with pytest.raises(TryLater, match="something is mounted there"):
            remove_tree(str(root), "victim")
        with pytest.raises(TryLater, match="something is mounted there"):
            remove_tree(str(root), "victim", "deep", "mount")
        assert kept.read_text() == "x"
        unmount(str(root / "victim" / "deep" / "mount"))
        remove_tree(str(root), "victim")
        assert is_gone(str(root / "victim"))


@needs_mounts
def test_a_bind_mount_of_the_same_file_system_is_a_mount_too() -> None:
    with house() as root:
        precious = root / "precious"
        (root / "victim" / "a b").mkdir(parents=True)
        precious.mkdir()
        (precious / "file").write_text("x")
        bind(precious, root / "victim" / "a b")
        assert mounts_below(os.path.realpath(root)) == [os.path.realpath(root / "victim" / "a b")]
        with pytest.raises(TryLater, match="something is mounted there"):
            remove_tree(str(root), "victim")
        assert (precious / "file").read_text() == "x"
        unmount(str(root / "victim" / "a b"))


@needs_mounts
def test_a_file_that_is_mounted_over_another_stays() -> None:
    with house() as root:
        (root / "victim").mkdir()
        (root / "victim" / "file").write_text("")
        (root / "precious").write_text("x")
        bind(root / "precious", root / "victim" / "file")
        with pytest.raises(OSError):
            remove_tree(str(root), "victim")
        assert (root / "precious").read_text() == "x"


def test_usage_counts_blocks_once_and_no_further_than_asked(tmp_path: Path) -> None:
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
    with house() as root:
        (root / "mount").mkdir()
        with opened(open_directory(str(root / "mount"))) as directory:
            mount_tmpfs(directory, "size=1m")
        (root / "mount" / "file").write_bytes(b"x" * 500_000)
        assert disk_usage(str(root), stop_above=1 << 40) < 100_000
