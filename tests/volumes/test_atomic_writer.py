"""The atomic writer: layout, crashes, tampering, and readers during a write."""

import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.linux.mounts import mount_tmpfs
from podkeeper.linux.tree import open_directory, opened
from podkeeper.model.errors import TryLater
from podkeeper.volumes.atomic_writer import AtomicWriter, Files, ProjectedFile, current_version
from tests.volumes.harness import content, is_gone, mode_of, needs_mounts, needs_root, temporary_root


def files(mode: int = 0o644, /, **texts: str) -> Files:
    return {name.replace("__", "/"): ProjectedFile(text.encode(), mode) for name, text in texts.items()}


def test_all_names_lead_to_one_version_through_one_link(tmp_path: Path) -> None:
    assert AtomicWriter(str(tmp_path)).write(files(a="1", deep__b="2"))
    version = os.readlink(tmp_path / "..data")
    assert version.startswith("..20")
    assert (os.readlink(tmp_path / "a"), os.readlink(tmp_path / "deep")) == ("..data/a", "..data/deep")
    assert sorted(os.listdir(tmp_path)) == sorted([version, "..data", "a", "deep"])
    assert content(str(tmp_path)) == {"a": "1", "deep/b": "2"}


def test_writing_the_same_files_changes_nothing(tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    writer.write(files(a="1"))
    version = os.readlink(tmp_path / "..data")
    assert not writer.write(files(a="1"))
    assert os.readlink(tmp_path / "..data") == version


CHANGES: dict[str, tuple[Files, Files]] = {
    "changed text": (files(a="1"), files(a="2")),
    "an added file": (files(a="1"), files(a="1", b="2")),
    "a removed file": (files(a="1", b="2"), files(a="1")),
    "a file becomes a directory": (files(a="1"), files(a__b="1")),
    "a directory becomes a file": (files(a__b="1"), files(a="1")),
    "a removed file in a directory": (files(a__b="1", a__c="2"), files(a__b="1")),
    "all files are removed": (files(a="1"), {}),
    "the first file": ({}, files(a="1")),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_shows_only_the_new_files(before: Files, after: Files, tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    writer.write(before)
    assert writer.write(after)
    assert content(str(tmp_path)) == {path: file.data.decode() for path, file in after.items()}
    tops = {path.partition("/")[0] for path in after}
    assert set(os.listdir(tmp_path)) == {"..data", os.readlink(tmp_path / "..data")} | tops


WRONG_PATHS = {
    "": 'invalid path: must not be empty: ""',
    "/etc/passwd": "invalid path: must be relative path: /etc/passwd",
    "../x": "invalid path: must not contain '..': ../x",
    "a/../../x": "invalid path: must not contain '..': a/../../x",
    "..data": "invalid path: must not start with '..': ..data",
    "a" * 256: "invalid path: filenames must be less than or equal to 255 characters",
    "a/" * 2048 + "a": "invalid path: must be less than or equal to 4096 characters",
    ".": "invalid path: must name a file: '.'",
}


@pytest.mark.parametrize("path", WRONG_PATHS)
def test_an_invalid_path_is_refused_and_nothing_is_written(path: str, tmp_path: Path) -> None:
    with pytest.raises(TryLater) as raised:
        AtomicWriter(str(tmp_path)).write({"good": ProjectedFile(b"", 0o644), path: ProjectedFile(b"", 0o644)})
    assert str(raised.value) == WRONG_PATHS[path]
    assert os.listdir(tmp_path) == []


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        AtomicWriter(str(tmp_path)).write(
            {"open": ProjectedFile(b"", 0o666), "closed": ProjectedFile(b"", 0o400), "d/x": ProjectedFile(b"", 0o755)}
        )
    finally:
        os.umask(old)
    modes = {name: mode_of(str(tmp_path / name)) for name in ("open", "closed", "d/x", "d", "..data")}
    assert modes == {"open": 0o666, "closed": 0o400, "d/x": 0o755, "d": 0o755, "..data": 0o755}


@needs_root
def test_the_group_may_read_all_files(tmp_path: Path) -> None:
    AtomicWriter(str(tmp_path), group=4711).write({"d/x": ProjectedFile(b"", 0o600, owner=1234)})
    found = {name: os.stat(tmp_path / name) for name in ("..data", "d", "d/x")}
    assert {name: (one.st_uid, one.st_gid, one.st_mode & 0o7777) for name, one in found.items()} == {
        "..data": (0, 4711, 0o2755),
        "d": (0, 4711, 0o2755),
        "d/x": (1234, 4711, 0o640),
    }


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    writer.write(files(a="1", b="2"))
    (tmp_path / "..2001_01_01_00_00_00.7").mkdir()  # a version that was never shown
    (tmp_path / "..2001_01_01_00_00_00.7" / "half").write_text("half")
    os.symlink("..2001_01_01_00_00_00.7", tmp_path / "..data_tmp")  # a swap that was not made
    os.unlink(tmp_path / "b")  # a name that was not linked yet
    assert not writer.write(files(a="1", b="2"))
    assert content(str(tmp_path)) == {"a": "1", "b": "2"}
    assert sorted(os.listdir(tmp_path)) == sorted([os.readlink(tmp_path / "..data"), "..data", "a", "b"])
    os.symlink("nowhere", tmp_path / "..data_tmp")
    assert writer.write(files(a="2"))
    assert content(str(tmp_path)) == {"a": "2"}


@needs_mounts
def test_a_write_to_a_full_disk_leaves_only_the_old_version() -> None:
    with temporary_root() as root:
        with opened(open_directory(str(root))) as directory:
            mount_tmpfs(directory, "size=64k")
        writer = AtomicWriter(str(root))
        writer.write(files(a="1"))
        with pytest.raises(OSError, match="No space left"):
            writer.write(files(a="2", b="x" * 100_000))
        assert content(str(root)) == {"a": "1"}
        assert len(os.listdir(root)) == 3
        assert writer.write(files(a="3" * 30_000))


def test_a_file_that_is_also_a_directory_is_refused_without_leftovers(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        AtomicWriter(str(tmp_path)).write(files(a="1", a__b="2"))
    assert os.listdir(tmp_path) == []


def test_a_changed_link_is_not_followed(tmp_path: Path) -> None:
    precious, volume = tmp_path / "precious", tmp_path / "volume"
    precious.mkdir()
    volume.mkdir()
    (precious / "a").write_text("1")
    os.symlink("../precious", volume / "..data")
    os.symlink(precious, volume / "..2001_01_01_00_00_00.7")
    AtomicWriter(str(volume)).write(files(a="2"))
    assert (precious / "a").read_text() == "1"
    assert content(str(volume)) == {"a": "2"}
    assert is_gone(str(volume / "..2001_01_01_00_00_00.7"))


_NAMES = st.sampled_from(["a", "b", "c", "d/e", "d/f"])
_VERSIONS = st.lists(st.frozensets(_NAMES, min_size=1), min_size=2, max_size=8)


@settings(max_examples=30)
@given(_VERSIONS)
def test_a_reader_always_sees_one_complete_version(shapes: list[frozenset[str]]) -> None:
    versions = [dict.fromkeys(shape, f"version {number}") for number, shape in enumerate(shapes)]
    seen: list[dict[str, str]] = []
    done = threading.Event()

    def read(directory: Path) -> None:
        while not done.is_set():
            if (version := whole(directory)) is not None:
                seen.append(version)

    with temporary_root() as directory:
        writer = AtomicWriter(str(directory))
        writer.write(projected(versions[0]))
        reader = threading.Thread(target=read, args=(directory,))
        reader.start()
        try:
            for version in versions * 3:
                writer.write(projected(version))
                assert content(str(directory)) == version
        finally:
            done.set()
            reader.join()
        assert whole(directory) == versions[-1]
    assert [one for one in seen if one not in versions] == []


def whole(directory: Path) -> dict[str, str] | None:
    """Read one version file by file. Return None if it disappeared during the read."""
    try:
        version = os.readlink(directory / "..data")
    except FileNotFoundError:
        return {"there was a moment": "without any version"}
    texts = content(str(directory / version))
    return texts if os.readlink(directory / "..data") == version else None


def projected(texts: Mapping[str, str]) -> Files:
    return {path: ProjectedFile(text.encode(), 0o644) for path, text in texts.items()}


# Limits, names and foreign files.

FILE = ProjectedFile(b"text", 0o644)
LONGEST_PATH = "/".join(["a" * 255] * 15 + ["b" * 127, "c" * 128])

RIGHT_PATHS = {
    "a name of 255 bytes": ("a" * 255, "a" * 255),
    "a name of 255 bytes that are fewer characters": ("é" * 127 + "a", "é" * 127 + "a"),
    "dots inside a name": ("a..b", "a..b"),
    "a hidden name": (".a", ".a"),
    "two dots at the start of a later name": ("a/..b", "a/..b"),
    "redundant slashes and dots": ("./a//b/./c", "a/b/c"),
}


@pytest.mark.parametrize(("path", "shown"), RIGHT_PATHS.values(), ids=RIGHT_PATHS.keys())
def test_a_path_that_stays_inside_is_written(path: str, shown: str, tmp_path: Path) -> None:
    AtomicWriter(str(tmp_path)).write({path: FILE})
    assert content(str(tmp_path)) == {shown: "text"}


def test_a_path_of_4096_bytes_is_written(tmp_path: Path) -> None:
    assert len(LONGEST_PATH) == 4096
    writer = AtomicWriter(str(tmp_path))
    assert [writer.write({LONGEST_PATH: FILE}) for _ in range(2)] == [True, False]
    with opened(open_directory(str(tmp_path))) as top:
        version = current_version(top) or ""
    with opened(open_directory(str(tmp_path), version, *LONGEST_PATH.split("/")[:-1])) as last:
        assert os.listdir(last) == ["c" * 128]
    with pytest.raises(TryLater, match="less than or equal to 4096 characters"):
        writer.write({LONGEST_PATH + "c": FILE})


MORE_WRONG_PATHS = {
    "é" * 128: "invalid path: filenames must be less than or equal to 255 characters",
    "a/" + "b" * 256: "invalid path: filenames must be less than or equal to 255 characters",
    "a/..": "invalid path: must not contain '..': a/..",
    "...": "invalid path: must not start with '..': ...",
    "a\0b": "invalid path: must name a file: 'a\\x00b'",
    "./.": "invalid path: must name a file: './.'",
    "/": "invalid path: must be relative path: /",
}


@pytest.mark.parametrize("path", MORE_WRONG_PATHS, ids=repr)
def test_an_invalid_path_is_refused_before_anything_changes(path: str, tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    writer.write(files(a="1"))
    with pytest.raises(TryLater) as raised:
        writer.write({"a": ProjectedFile(b"2", 0o644), path: FILE})
    assert str(raised.value) == MORE_WRONG_PATHS[path]
    assert content(str(tmp_path)) == {"a": "1"}


def test_a_version_is_named_by_its_time(tmp_path: Path) -> None:
    AtomicWriter(str(tmp_path)).write(files(a="1"))
    name = os.readlink(tmp_path / "..data")
    assert re.fullmatch(r"\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+", name)
    made = datetime.strptime(name.rpartition(".")[0], "..%Y_%m_%d_%H_%M_%S").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=5)


TAMPERED: dict[str, Callable[[Path], object]] = {
    "other text of the same length": lambda version: (version / "a").write_text("X"),
    "longer text": lambda version: (version / "a").write_text("12"),
    "shorter text": lambda version: (version / "a").write_text(""),
    "a missing file": lambda version: (version / "a").unlink(),
    "an additional file": lambda version: (version / "more").write_text(""),
    "an additional file in a directory": lambda version: (version / "d" / "more").write_text(""),
    "a link to the same text": lambda version: replace_by_link(version / "a"),
    "a link to the same directory": lambda version: replace_by_link(version / "d"),
    "a pipe": lambda version: replace_by_pipe(version / "empty"),
    "no version": shutil.rmtree,
}


def replace_by_link(path: Path) -> None:
    aside = path.parent.parent / "aside"
    path.rename(aside)
    path.symlink_to(aside)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_changed_version_is_written_again(tamper: Callable[[Path], object], tmp_path: Path) -> None:
    writer, wanted = AtomicWriter(str(tmp_path)), files(a="1", d__b="2", empty="")
    writer.write(wanted)
    before = os.readlink(tmp_path / "..data")
    tamper(tmp_path / before)
    assert writer.write(wanted)
    assert os.readlink(tmp_path / "..data") != before
    shown = {name: text for name, text in content(str(tmp_path)).items() if not name.startswith("aside")}
    assert shown == {"a": "1", "d/b": "2", "empty": ""}
    assert not writer.write(wanted)


def test_other_files_in_the_directory_are_kept(tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    (tmp_path / "own").write_text("kept")
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "wanted").write_text("kept")
    (tmp_path / "other").symlink_to("..data/a")
    writer.write(files(a="1", b="2", wanted="3"))
    writer.write(files(b="2"))
    version = os.readlink(tmp_path / "..data")
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", version, "b", "link", "other", "own", "wanted"])
    assert [(tmp_path / name).read_text() for name in ("own", "link", "wanted", "b")] == ["kept", "kept", "kept", "2"]


CURRENT = {
    "nothing": (None, None),
    "a version": ("..2026_01_01_00_00_00.7", "..2026_01_01_00_00_00.7"),
    "the directory above": ("..", None),
    "a path": ("../precious", None),
    "a path that begins like a version": ("..2026/x", None),
    "a name without dots": ("data", None),
    "an absolute path": ("/etc", None),
}


@pytest.mark.parametrize(("target", "expected"), CURRENT.values(), ids=CURRENT.keys())
def test_only_a_link_to_a_version_counts_as_published(target: str | None, expected: str | None, tmp_path: Path) -> None:
    if target is not None:
        (tmp_path / "..data").symlink_to(target)
    with opened(open_directory(str(tmp_path))) as top:
        assert current_version(top) == expected
        AtomicWriter(str(tmp_path)).write(files(a="1"))
        assert current_version(top) == os.readlink(tmp_path / "..data") != target
    assert content(str(tmp_path)) == {"a": "1"}


def test_a_file_or_directory_instead_of_the_link_is_not_a_version(tmp_path: Path) -> None:
    (tmp_path / "..data").write_text("")
    with opened(open_directory(str(tmp_path))) as top:
        assert current_version(top) is None


@needs_root
@pytest.mark.parametrize(
    ("group", "owner", "expected"),
    [
        (None, None, (0, 0, 0o600, 0o755)),
        (None, 1234, (1234, 0, 0o600, 0o755)),
        (4711, None, (0, 4711, 0o640, 0o2755)),
    ],
    ids=["neither", "an owner", "an fsGroup"],
)
def test_owner_and_group_are_set_independently(
    group: int | None, owner: int | None, expected: tuple[int, int, int, int], tmp_path: Path
) -> None:
    AtomicWriter(str(tmp_path), group).write({"d/x": ProjectedFile(b"", 0o600, owner)})
    file, directory = (tmp_path / "d" / "x").stat(), (tmp_path / "d").stat()
    assert (file.st_uid, file.st_gid, file.st_mode & 0o7777, directory.st_mode & 0o7777) == expected
    assert (directory.st_uid, directory.st_gid) == (0, group or 0)


@needs_root
def test_setuid_survives_a_change_of_owner(tmp_path: Path) -> None:
    AtomicWriter(str(tmp_path), 4711).write({"x": ProjectedFile(b"", 0o4711, 1234)})
    assert (tmp_path / "x").stat().st_mode & 0o7777 == 0o4751


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    before = os.listdir("/proc/self/fd")
    writer.write(files(a="1", d__e__b="2"))
    writer.write(files(a="1", d__e__b="2"))
    writer.write(files(a="1", d__e__b="3"))
    (tmp_path / "d" / "e" / "b").unlink()
    os.mkfifo(tmp_path / "d" / "e" / "b")
    writer.write(files(a="1", d__e__b="3"))
    with pytest.raises(OSError):
        writer.write(files(a="1", a__b="2"))
    assert os.listdir("/proc/self/fd") == before
