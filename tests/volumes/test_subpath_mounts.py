"""Sub-paths for runtimes that take paths: bound to directories that no container can reach, and removed again."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, permutations
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

from podkeeper.linux.errors import SubPathError
from podkeeper.linux.mounts import mounts_below, unmount
from podkeeper.linux.subpath import open_subpath
from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Volume
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime_calls import Mount
from podkeeper.volumes.atomic_writer import AtomicWriter, ProjectedFile
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.subpath_mounts import bind_subpath
from tests.volumes.harness import Store, mode_of, needs_mounts, pod_with, run, temporary_root

pytestmark = needs_mounts

T = TypeVar("T")


def data(path: Path, sub_path: str) -> Mount:
    return Mount(container_path="/data", host_path=str(path), volume="data", sub_path=sub_path)


def volume_in(root: Path) -> Path:
    """Create a directory like a volume, with files inside and beside it."""
    (root / "outside").mkdir()
    (root / "outside" / "secret").write_text("x")
    path = root / "volume"
    (path / "dir").mkdir(parents=True)
    (path / "dir" / "file").write_text("y")
    (root / "pods").mkdir()
    return path


def bind(root: Path, volume: Path, sub_path: str, index: int = 0) -> Path:
    return Path(bind_subpath(str(root), "uid-1", "data", str(volume), sub_path, "web", index))


def mounted(root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in mounts_below(str(root))]


def test_sub_paths_are_bound_and_removed_with_the_volumes_of_the_pod() -> None:
    async def scenario(root: Path) -> None:
        volumes = HostVolumes(root, Store())
        pod = pod_with(Volume(name="data", empty_dir=EmptyDirVolumeSource()))
        uid = uid_of(pod)
        path = Path((await volumes.mount(pod))["data"])
        shown = await volumes.prepare_sub_path(uid, data(path, "a/b"), "web", 1)
        assert shown == f"{os.path.realpath(root)}/pods/{uid}/volume-subpaths/data/web/1"
        Path(shown, "file").write_text("from the container")
        assert (path / "a" / "b" / "file").read_text() == "from the container"
        assert await volumes.prepare_sub_path(uid, data(path, "a/b"), "web", 1) == shown
        assert mounts_below(shown) == [shown]
        await volumes.unmount(uid)
        assert (mounts_below(str(root)), os.listdir(root / "pods" / uid)) == ([], [])
        await volumes.remove_directory(uid)

    with temporary_root() as root:
        run(scenario(root))


def test_files_below_a_sub_path_survive_an_agent_that_did_not_bind_it() -> None:
    async def scenario(root: Path) -> None:
        pod = pod_with(Volume(name="data", empty_dir=EmptyDirVolumeSource()))
        first = HostVolumes(root, Store())
        (root / "elsewhere").mkdir()
        (root / "elsewhere" / "kept").write_text("x")
        await first.mount(pod)
        await first.prepare_sub_path(uid_of(pod), data(root / "elsewhere", "."), "web", 0)
        second = HostVolumes(root, Store())
        assert second.mounted_pods() == {uid_of(pod)}
        await second.unmount(uid_of(pod))
        assert (mounts_below(str(root)), (root / "elsewhere" / "kept").read_text()) == ([], "x")

    with temporary_root() as root:
        run(scenario(root))


def test_an_error_reveals_nothing_about_the_host() -> None:
    async def scenario(root: Path) -> str:
        volumes = HostVolumes(root, Store())
        path = volume_in(root)
        os.symlink("../outside", path / "link")
        with pytest.raises(NotConfigurable) as caught:
            await volumes.prepare_sub_path(PodUID("uid-1"), data(path, "link"), "web", 0)
        return str(caught.value)

    with temporary_root() as root:
        assert run(scenario(root)) == 'failed to prepare subPath for volumeMount "data" of container "web"'
        assert mounted(root) == []


def test_a_file_and_a_missing_directory() -> None:
    with temporary_root() as root:
        volume = volume_in(root)
        volume.chmod(0o775)
        assert bind(root, volume, "dir/file").read_text() == "y"
        made = bind(root, volume, "new/deep", 1)
        assert (made.is_dir(), mode_of(str(volume / "new" / "deep"))) == (True, 0o775)
        assert mounted(root) == [f"pods/uid-1/volume-subpaths/data/web/{index}" for index in range(2)]


def test_a_rebound_sub_path_shows_the_current_file() -> None:
    """For example, a container restarts after its ConfigMap changed or its directory became a file."""
    with temporary_root() as root:
        volume = volume_in(root)
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"old", 0o644)})
        shown = bind(root, volume, "key")
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"new", 0o644)})
        assert shown.read_text() == "old"
        assert bind(root, volume, "key").read_text() == "new"
        assert bind(root, volume, "dir").is_dir()
        assert bind(root, volume, "key").read_text() == "new"
        assert mounted(root) == ["pods/uid-1/volume-subpaths/data/web/0"]


def test_a_link_created_after_binding_changes_nothing() -> None:
    with temporary_root() as root:
        volume = volume_in(root)
        shown = bind(root, volume, "dir")
        (volume / "dir").rename(volume / "was")
        os.symlink(root / "outside", volume / "dir")
        assert os.listdir(shown) == ["file"]
        with pytest.raises(NotConfigurable, match="not within volume path"):
            bind(root, volume, "dir", 1)


REFUSED = {
    "/etc": "error SubPath `/etc` must not be an absolute path",
    "..": "unable to provision SubPath `..`: must not contain '..'",
    "dir/../../outside": "unable to provision SubPath `dir/../../outside`: must not contain '..'",
    "dir/file/x": 'cannot open subpath "dir/file/x" of volume path "{volume}": Not a directory',
}


@pytest.mark.parametrize("sub_path", REFUSED)
def test_an_invalid_sub_path_is_refused_with_the_kubelets_message(sub_path: str) -> None:
    with temporary_root() as root:
        volume = volume_in(root)
        with pytest.raises(NotConfigurable) as refused:
            bind(root, volume, sub_path)
        assert str(refused.value) == REFUSED[sub_path].replace("{volume}", str(volume))
        assert mounted(root) == []


class Swap:
    """Changes a volume right before the n-th call of a C function of `os`.

    Used as the profile function of the thread, which Python calls at every such call.
    """

    def __init__(self, act: Callable[[], None], moment: int) -> None:
        self._act = act
        self._left = moment
        self.done = False

    def __call__(self, frame: FrameType, event: str, function: object) -> None:
        if event != "c_call" or self.done or getattr(function, "__module__", "") != "posix":
            return
        self._left -= 1
        if self._left < 0:
            self.done = True
            self._act()


def clear(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path)


def fill(path: Path, what: str) -> None:
    """Make a path a directory, a link out of the volume, a link inside it, a file, or nothing."""
    clear(path)
    match what:
        case "directory":
            (path / "y").mkdir(parents=True)
            (path / "mine").write_text("z")
        case "link out":
            os.symlink("../outside", path)
        case "absolute link out":
            os.symlink(path.parent.parent / "outside", path)
        case "link inside":
            os.symlink("dir", path)
        case "file":
            path.write_text("z")


KINDS = ("directory", "link out", "absolute link out", "link inside", "file", "nothing")


def swapped(path: Path, before: str, after: str, work: Callable[[], T]) -> Iterator[tuple[int, T | None]]:
    """Repeat a call while a path changes, each time at a later moment. Yield None if it was refused."""
    for moment in count():
        fill(path, before)
        swap = Swap(lambda: fill(path, after), moment)
        result = None
        sys.setprofile(swap)
        try:
            result = work()
        except (NotConfigurable, SubPathError, OSError):
            pass
        finally:
            sys.setprofile(None)
        yield moment, result
        if not swap.done:  # the call ended before that moment
            return


@pytest.mark.parametrize("sub_path", ["x", "x/y"])
def test_a_swap_at_any_moment_opens_nothing_outside(sub_path: str) -> None:
    opened_paths: Counter[str] = Counter()
    with temporary_root() as root:
        volume = volume_in(root)
        for before, after in permutations(KINDS, 2):
            for moment, held in swapped(volume / "x", before, after, lambda: open_subpath(str(volume), sub_path)):
                if held is None:
                    opened_paths["none"] += 1
                    continue
                path = os.readlink(f"/proc/self/fd/{held}")
                os.close(held)
                assert path.startswith(f"{os.path.realpath(volume)}/"), (before, after, moment)
                opened_paths["some"] += 1
            assert os.listdir(root / "outside") == ["secret"], (before, after)
    assert min(opened_paths["some"], opened_paths["none"]) > 50


@pytest.mark.parametrize("before, after", [("directory", "absolute link out"), ("link out", "directory")])
def test_a_swap_at_any_moment_shows_nothing_outside(before: str, after: str) -> None:
    ends: Counter[str] = Counter()
    with temporary_root() as root:
        volume = volume_in(root)
        for moment, shown in swapped(volume / "x", before, after, lambda: bind(root, volume, "x")):
            ends["refused" if shown is None else "bound"] += 1
            assert shown is None or "secret" not in os.listdir(shown), moment
            for path in mounts_below(str(root)):
                unmount(path)
        assert os.listdir(root / "outside") == ["secret"]
    assert min(ends["bound"], ends["refused"]) > 0


NAMES = {"a volume": ("..", "web"), "a container": ("data", "a/b"), "nothing": ("data", "")}


@pytest.mark.parametrize("volume, container", NAMES.values(), ids=NAMES.keys())
def test_names_that_are_not_directory_names_are_refused(volume: str, container: str) -> None:
    async def scenario(root: Path) -> None:
        path = volume_in(root)
        mount = Mount(container_path="/data", host_path=str(path), volume=volume, sub_path="dir")
        with pytest.raises(NotConfigurable):
            await HostVolumes(root, Store()).prepare_sub_path(PodUID("uid-1"), mount, container, 0)
        assert mounted(root) == []

    with temporary_root() as root:
        run(scenario(root))
