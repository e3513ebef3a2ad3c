"""Sub-paths stay inside their volume."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.volumes.atomic_writer import AtomicWriter, ProjectedFile
from podkeeper.volumes.subpath import open_subpath, resolve_subpath
from podkeeper.volumes.tree import opened
from tests.volumes.volume_house import mode_of


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
def test_what_is_there_is_found(sub_path: str, volume: Path) -> None:
    assert resolve_subpath(str(volume), sub_path) == str((volume / FOUND[sub_path]).resolve())


def test_what_is_missing_is_made_with_the_mode_of_the_volume(volume: Path) -> None:
    assert resolve_subpath(str(volume), "new/deep") == str((volume / "new" / "deep").resolve())
    assert (mode_of(str(volume / "new")), mode_of(str(volume / "new" / "deep"))) == (0o770, 0o770)
    with pytest.raises(NotConfigurable, match='cannot open subpath "other" of volume path'):
        resolve_subpath(str(volume), "other", create=False)
    assert not (volume / "other").exists()


LINKS = {
    "a link to a neighbour is followed": ("dir", "link", "dir"),
    "a link that goes up and stays inside is followed": ("../dir/file", "dir/link", "dir/file"),
    "an absolute link is refused": ("/etc", "link", None),
    "a link out of the volume is refused": ("../outside", "link", None),
    "a link far out of the volume is refused": ("dir/../../../outside", "link", None),
    "a link to itself is refused": ("link", "link", None),
}


@pytest.mark.parametrize(("target", "link", "leads_to"), LINKS.values(), ids=LINKS.keys())
def test_a_link(target: str, link: str, leads_to: str | None, volume: Path) -> None:
    os.symlink(target, volume / link)
    if leads_to is None:
        for sub_path in (link, f"{link}/new"):
            with pytest.raises(NotConfigurable, match=f'^subpath "{sub_path}" not within volume path'):
                resolve_subpath(str(volume), sub_path)
        assert os.listdir(volume.parent / "outside") == ["file"]
    else:
        assert resolve_subpath(str(volume), link) == str((volume / leads_to).resolve())


@pytest.mark.parametrize("sub_path", ["/etc", "..", "dir/../../outside"])
def test_a_path_that_leads_out_by_its_words_is_refused(sub_path: str, volume: Path) -> None:
    with pytest.raises(NotConfigurable):
        resolve_subpath(str(volume), sub_path)


def test_a_volume_that_is_a_file_has_no_sub_paths(volume: Path) -> None:
    assert resolve_subpath(str(volume / "dir" / "file"), "") == str((volume / "dir" / "file").resolve())
    with pytest.raises(NotConfigurable):
        resolve_subpath(str(volume / "dir" / "file"), "x")


def test_a_held_sub_path_shows_what_it_showed_when_the_payload_changes(volume: Path) -> None:
    AtomicWriter(str(volume)).write({"key": ProjectedFile(b"old", 0o644)})
    with opened(open_subpath(str(volume), "key")) as held:
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"new", 0o644)})
        assert Path(f"/proc/self/fd/{held}").read_text() == "old"
    assert Path(resolve_subpath(str(volume), "key")).read_text() == "new"


def test_a_link_that_is_planted_meanwhile_never_leads_out(volume: Path) -> None:
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
            with suppress(NotConfigurable):
                found.append(resolve_subpath(str(volume), "x/y"))
    finally:
        done.set()
        attacker.join()
    assert [path for path in found if "outside" in path] == []
    assert os.listdir(volume.parent / "outside") == ["file"]
