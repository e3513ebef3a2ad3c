"""Files that change all at once: the layout, what is kept, and what a reader sees meanwhile."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.errors import TryLater
from podkeeper.volumes.atomic_writer import AtomicWriter, Files, ProjectedFile
from podkeeper.volumes.kernel import mount_tmpfs
from podkeeper.volumes.tree import open_directory, opened
from tests.volumes.volume_house import content, house, is_gone, mode_of, needs_mounts, needs_root


def files(mode: int = 0o644, /, **texts: str) -> Files:
    return {name.replace("__", "/"): ProjectedFile(text.encode(), mode) for name, text in texts.items()}


def test_names_lead_over_one_link_to_one_version(tmp_path: Path) -> None:
    assert AtomicWriter(str(tmp_path)).write(files(a="1", deep__b="2"))
    version = os.readlink(tmp_path / "..data")
    assert version.startswith("..20")
    assert (os.readlink(tmp_path / "a"), os.readlink(tmp_path / "deep")) == ("..data/a", "..data/deep")
    assert sorted(os.listdir(tmp_path)) == sorted([version, "..data", "a", "deep"])
    assert content(str(tmp_path)) == {"a": "1", "deep/b": "2"}


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    writer = AtomicWriter(str(tmp_path))
    writer.write(files(a="1"))
    version = os.readlink(tmp_path / "..data")
    assert not writer.write(files(a="1"))
    assert os.readlink(tmp_path / "..data") == version


CHANGES: dict[str, tuple[Files, Files]] = {
    "another text": (files(a="1"), files(a="2")),
    "a file more": (files(a="1"), files(a="1", b="2")),
    "a file less": (files(a="1", b="2"), files(a="1")),
    "a file becomes a directory": (files(a="1"), files(a__b="1")),
    "a directory becomes a file": (files(a__b="1"), files(a="1")),
    "a file less in a directory": (files(a__b="1", a__c="2"), files(a__b="1")),
    "nothing is left": (files(a="1"), {}),
    "something comes": ({}, files(a="1")),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_shows_just_the_new_files(before: Files, after: Files, tmp_path: Path) -> None:
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
def test_a_path_that_leads_out_is_refused_and_nothing_is_written(path: str, tmp_path: Path) -> None:
    with pytest.raises(TryLater) as raised:
        AtomicWriter(str(tmp_path)).write({"good": ProjectedFile(b"", 0o644), path: ProjectedFile(b"", 0o644)})
    assert str(raised.value) == WRONG_PATHS[path]
    assert os.listdir(tmp_path) == []


def test_modes_are_as_asked_whatever_the_umask(tmp_path: Path) -> None:
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
def test_a_group_may_read_what_is_given_to_it(tmp_path: Path) -> None:
    AtomicWriter(str(tmp_path), group=4711).write({"d/x": ProjectedFile(b"", 0o600, owner=1234)})
    found = {name: os.stat(tmp_path / name) for name in ("..data", "d", "d/x")}
    assert {name: (one.st_uid, one.st_gid, one.st_mode & 0o7777) for name, one in found.items()} == {
        "..data": (0, 4711, 0o2755),
        "d": (0, 4711, 0o2755),
        "d/x": (1234, 4711, 0o640),
    }


def test_what_a_crash_left_behind_is_cleared_away(tmp_path: Path) -> None:
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
def test_what_does_not_fit_leaves_the_old_version_and_no_rest() -> None:
    with house() as root:
        with opened(open_directory(str(root))) as directory:
            mount_tmpfs(directory, "size=64k")
        writer = AtomicWriter(str(root))
        writer.write(files(a="1"))
        with pytest.raises(OSError, match="No space left"):
            writer.write(files(a="2", b="x" * 100_000))
        assert content(str(root)) == {"a": "1"}
        assert len(os.listdir(root)) == 3
        assert writer.write(files(a="3" * 30_000))


def test_a_file_that_would_be_a_directory_too_is_refused_and_leaves_no_rest(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        AtomicWriter(str(tmp_path)).write(files(a="1", a__b="2"))
    assert os.listdir(tmp_path) == []


def test_a_bent_link_is_not_followed(tmp_path: Path) -> None:
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
def test_a_reader_always_sees_one_whole_version(shapes: list[frozenset[str]]) -> None:
    versions = [dict.fromkeys(shape, f"version {number}") for number, shape in enumerate(shapes)]
    seen: list[dict[str, str]] = []
    done = threading.Event()

    def read(directory: Path) -> None:
        while not done.is_set():
            if (version := whole(directory)) is not None:
                seen.append(version)

    with house() as directory:
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
    """One version, file by file; None when the reader was overtaken and has to look again."""
    try:
        version = os.readlink(directory / "..data")
    except FileNotFoundError:
        return {"there was a moment": "without any version"}
    texts = content(str(directory / version))
    return texts if os.readlink(directory / "..data") == version else None


def projected(texts: Mapping[str, str]) -> Files:
    return {path: ProjectedFile(text.encode(), 0o644) for path, text in texts.items()}
