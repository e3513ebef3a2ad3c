"""Sub-paths stay inside their volume."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from podkeeper.linux.errors import SubPathError
from podkeeper.linux.subpath import open_subpath
from podkeeper.linux.tree import opened
from podkeeper.volumes.atomic_writer import AtomicWriter, ProjectedFile
from tests.volumes.harness import mode_of


def path_of(volume: Path, sub_path: str) -> str:
    with opened(open_subpath(str(volume), sub_path)) as held:
        return os.readlink(f"/proc/self/fd/{held}")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    path = tmp_path / "volume"
    (path / "dir" / "inner").mkdir(parents=True)
    (path / "dir" / "file").write_text("y")
    path.chmod(0o770)
    return path


FOUND = {
    "": "",
    "dir": "dir",
    "dir/file": "dir/file",
    "./dir//inner/": "dir/inner",
}


@pytest.mark.parametrize("sub_path", FOUND)
def test_an_existing_sub_path_is_found(sub_path: str, volume: Path) -> None:
    assert path_of(volume, sub_path) == str((volume / FOUND[sub_path]).resolve())


def test_missing_directories_are_created_with_the_mode_of_the_volume(volume: Path) -> None:
    assert path_of(volume, "new/deep") == str((volume / "new" / "deep").resolve())
    assert (mode_of(str(volume / "new")), mode_of(str(volume / "new" / "deep"))) == (0o770, 0o770)


LINKS = {
    "a link to a neighbour is followed": ("dir", "link", "dir"),
    "a link that goes up and stays inside is followed": ("../dir/file", "dir/link", "dir/file"),
    "an absolute link is refused": ("/etc", "link", None),
    "a link out of the volume is refused": ("../outside", "link", None),
    "a link far out of the volume is refused": ("dir/../../../outside", "link", None),
    "a link to itself is refused": ("link", "link", None),
}


@pytest.mark.parametrize(("target", "link", "leads_to"), LINKS.values(), ids=LINKS.keys())
def test_links(target: str, link: str, leads_to: str | None, volume: Path) -> None:
    os.symlink(target, volume / link)
    if leads_to is None:
        for sub_path in (link, f"{link}/new"):
            with pytest.raises(SubPathError, match=f'^subpath "{sub_path}" not within volume path'):
                path_of(volume, sub_path)
        assert os.listdir(volume.parent / "outside") == ["file"]
    else:
        assert path_of(volume, link) == str((volume / leads_to).resolve())


@pytest.mark.parametrize("sub_path", ["/etc", "..", "dir/../../outside"])
def test_a_path_that_leaves_the_volume_is_refused(sub_path: str, volume: Path) -> None:
    with pytest.raises(SubPathError):
        path_of(volume, sub_path)


def test_a_volume_that_is_a_file_has_no_sub_paths(volume: Path) -> None:
    assert path_of(volume / "dir" / "file", "") == str((volume / "dir" / "file").resolve())
    with pytest.raises(NotADirectoryError):
        path_of(volume / "dir" / "file", "x")


def test_an_open_sub_path_does_not_follow_updates_of_the_volume(volume: Path) -> None:
    AtomicWriter(str(volume)).write({"key": ProjectedFile(b"old", 0o644)})
    with opened(open_subpath(str(volume), "key")) as held:
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"new", 0o644)})
        assert Path(f"/proc/self/fd/{held}").read_text() == "old"
    assert Path(path_of(volume, "key")).read_text() == "new"


def test_a_link_created_meanwhile_never_leads_out(volume: Path) -> None:
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                os.mkdir(volume / "x")
            with suppress(OSError):
                os.rmdir(volume / "x")
            with suppress(OSError):
                os.symlink(volume.parent / "outside", volume / "x")
            with suppress(OSError):
                os.unlink(volume / "x")

    attacker = threading.Thread(target=swap)
    attacker.start()
    found = []
    try:
        for _ in range(300):
            with suppress(SubPathError, OSError):
                found.append(path_of(volume, "x/y"))
    finally:
        done.set()
        attacker.join()
    assert [path for path in found if "outside" in path] == []
    assert os.listdir(volume.parent / "outside") == ["file"]


@contextmanager
def resolved(volume: Path, sub_path: str) -> Iterator[str]:
    """Yield the path that a sub-path leads to. Only its own descriptor may be open."""
    before = len(os.listdir("/proc/self/fd"))
    descriptor = open_subpath(str(volume), sub_path)
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
def test_a_sub_path_leads_to_its_file_in_the_volume(tmp_path: Path, sub_path: str, leads_to: str) -> None:
    volume = tmp_path / "volume"
    (volume / "a/b").mkdir(parents=True)
    (volume / "a/b/file").write_text("")
    (volume / "link").symlink_to("a/b")
    (volume / "a/up").symlink_to("../a")
    os.chmod(volume, 0o2775)
    with resolved(volume, sub_path) as found:
        assert found == f"{volume}{leads_to}"
    if sub_path == "new/deep":
        modes = [stat.S_IMODE((volume / name).stat().st_mode) for name in ("new", "new/deep")]
        assert modes == [0o2775, 0o2775]


@pytest.mark.parametrize("sub_path", ["/a", "..", "a/../..", "out", "absolute", "loop", "a/out"])
def test_a_sub_path_that_leaves_the_volume_is_refused_without_open_files(tmp_path: Path, sub_path: str) -> None:
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    (volume / "out").symlink_to("../x")
    (volume / "a/out").symlink_to("../../x")
    (volume / "absolute").symlink_to("/etc")
    (volume / "loop").symlink_to("loop")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SubPathError) as refused:
        open_subpath(str(volume), sub_path)
    assert str(refused.value) == f'subpath "{sub_path}" not within volume path "{volume}"'
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("links", "fine"), [(40, True), (41, False)])
def test_at_most_forty_links_are_followed(tmp_path: Path, links: int, fine: bool) -> None:
    (tmp_path / "0").mkdir()
    for number in range(links):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    if fine:
        with resolved(tmp_path, str(links)) as found:
            assert found == f"{tmp_path}/0"
    else:
        with pytest.raises(SubPathError):
            open_subpath(str(tmp_path), str(links))
