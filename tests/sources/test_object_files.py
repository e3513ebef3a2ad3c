"""Files that only the agent's user can read: modes, crashes, directories of other users."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from podkeeper.sources.object_files import ObjectFiles

A, B = ObjectFiles.name_of("Secret default/a"), ObjectFiles.name_of("Secret default/b")


def opened(directory: Path) -> ObjectFiles:
    files = ObjectFiles(directory)
    files.open()
    return files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_write_read_replace_and_remove(tmp_path: Path) -> None:
    files, name = opened(tmp_path / "objects"), ObjectFiles.name_of("Secret default/" + "long" * 100)
    assert files.read(name) is None
    files.write(name, b"one")
    files.write(name, b"two")
    assert files.read(name) == b"two"
    assert ObjectFiles(tmp_path / "objects").open() == {name}
    files.remove(name)
    files.remove(name)
    assert files.read(name) is None
    assert os.listdir(tmp_path / "objects") == []


def test_only_the_agents_user_can_read_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = opened(tmp_path / "objects")
        files.write(A, b"secret")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "objects"), mode(tmp_path / "objects" / A)) == (0o700, 0o600)


def test_the_mode_of_an_existing_directory_is_restricted(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir(mode=0o755)
    opened(tmp_path / "objects")
    assert mode(tmp_path / "objects") == 0o700


def test_unfinished_files_are_removed_and_the_old_content_is_kept(tmp_path: Path) -> None:
    files = opened(tmp_path / "objects")
    files.write(A, b"whole")
    (tmp_path / "objects" / f"{A}.new").write_bytes(b"hal")
    (tmp_path / "objects" / f"{B}.new").write_bytes(b"f")
    again = ObjectFiles(tmp_path / "objects")
    assert again.open() == {A}
    assert again.read(A) == b"whole"
    assert os.listdir(tmp_path / "objects") == [A]


def test_a_link_instead_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "objects").symlink_to("elsewhere")
    files = ObjectFiles(tmp_path / "objects")
    with pytest.raises(OSError, match="objects"):
        files.open()
    with pytest.raises(OSError, match="objects"):
        files.write(A, b"secret")
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_a_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    os.chown(tmp_path / "objects", 65534, 65534)
    with pytest.raises(OSError, match="belongs to user 65534"):
        ObjectFiles(tmp_path / "objects").open()


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    files = opened(tmp_path / "objects")
    files.write(A, b"old")
    (tmp_path / "objects" / f"{A}.new").mkdir()  # nothing can be written there
    with pytest.raises(OSError, match="directory"):
        files.write(A, b"new")
    assert files.read(A) == b"old"


def test_other_files_in_the_directory_are_ignored(tmp_path: Path) -> None:
    opened(tmp_path / "objects").write(A, b"one")
    (tmp_path / "objects" / "lost+found").mkdir()
    (tmp_path / "objects" / "README").write_text("by hand")
    assert ObjectFiles(tmp_path / "objects").open() == {A}
    assert {"README", "lost+found"} <= set(os.listdir(tmp_path / "objects"))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    files = opened(tmp_path / "objects")
    files.write("a", b"x")
    (tmp_path / "objects" / "b.new").mkdir()
    with pytest.raises(OSError):
        files.write("b", b"x")
    (tmp_path / "objects" / "d").mkdir()
    with pytest.raises(OSError):
        files.read("d")
    assert [files.read(name) for name in ("a", "c")] == [b"x", None]
    files.remove("a")
    files.remove("a")
    assert os.listdir("/proc/self/fd") == before


def test_a_pipe_instead_of_a_file_does_not_block(tmp_path: Path) -> None:
    files = opened(tmp_path / "objects")
    os.mkfifo(tmp_path / "objects" / "a")
    assert files.read("a") == b""


def test_a_link_instead_of_a_file_is_not_followed(tmp_path: Path) -> None:
    files = opened(tmp_path / "objects")
    (tmp_path / "precious").write_bytes(b"kept")
    for name in ("a", "a.new"):
        (tmp_path / "objects" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        files.read("a")
    with pytest.raises(OSError):
        files.write("a", b"new")
    assert (tmp_path / "precious").read_bytes() == b"kept"


def test_a_failed_write_leaves_no_unfinished_file_and_a_longer_one_is_replaced(tmp_path: Path) -> None:
    files = opened(tmp_path / "objects")
    (tmp_path / "objects" / "a").mkdir()  # a file cannot replace a directory
    with pytest.raises(OSError):
        files.write("a", b"new")
    assert os.listdir(tmp_path / "objects") == ["a"]
    (tmp_path / "objects" / "b.new").write_bytes(b"longer than the new one")
    files.write("b", b"new")
    assert files.read("b") == b"new"


def test_missing_directories_are_created_and_names_are_stable(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert ObjectFiles(tmp_path / "x" / "y" / "objects").open() == frozenset()
    finally:
        os.umask(before)
    assert (mode(tmp_path / "x" / "y"), mode(tmp_path / "x" / "y" / "objects")) == (0o700, 0o700)
    assert ObjectFiles.name_of("a") == hashlib.blake2b(b"a", digest_size=24).hexdigest()
    with pytest.raises(FileNotFoundError):
        ObjectFiles(tmp_path / "missing").read("a")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_a_directory_of_another_user_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    os.chown(tmp_path / "objects", 65534, 65534)
    before = os.listdir("/proc/self/fd")
    for work in (lambda: ObjectFiles(tmp_path / "objects").read("a"), ObjectFiles(tmp_path / "objects").open):
        with pytest.raises(PermissionError, match="belongs to user 65534"):
            work()
    assert os.listdir("/proc/self/fd") == before
