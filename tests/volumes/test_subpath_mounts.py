"""Sub-paths for runtimes that take paths: bound to a place that no container reaches, and taken down again."""

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

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Volume
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import Mount
from podkeeper.volumes.atomic_writer import AtomicWriter, ProjectedFile
from podkeeper.volumes.kernel import mounts_below, unmount
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.subpath import open_subpath
from podkeeper.volumes.subpath_mounts import bind_subpath
from tests.volumes.volume_house import Store, house, mode_of, needs_mounts, pod_with, run, uid_of

pytestmark = needs_mounts

T = TypeVar("T")


def data(path: Path, sub_path: str) -> Mount:
    return Mount(container_path="/data", host_path=str(path), volume="data", sub_path=sub_path)


def volume_in(root: Path) -> Path:
    """A directory like a volume, with something inside and something beside it."""
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


def test_a_pods_sub_paths_come_and_go_with_its_volumes() -> None:
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

    with house() as root:
        run(scenario(root))


def test_what_is_below_a_sub_path_survives_an_agent_that_never_heard_of_it() -> None:
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

    with house() as root:
        run(scenario(root))


def test_a_failure_tells_nothing_of_the_host() -> None:
    async def scenario(root: Path) -> str:
        volumes = HostVolumes(root, Store())
        path = volume_in(root)
        os.symlink("../outside", path / "link")
        with pytest.raises(NotConfigurable) as caught:
            await volumes.prepare_sub_path(PodUID("uid-1"), data(path, "link"), "web", 0)
        return str(caught.value)

    with house() as root:
        assert run(scenario(root)) == 'failed to prepare subPath for volumeMount "data" of container "web"'
        assert mounted(root) == []


def test_a_file_and_a_missing_directory() -> None:
    with house() as root:
        volume = volume_in(root)
        volume.chmod(0o775)
        assert bind(root, volume, "dir/file").read_text() == "y"
        made = bind(root, volume, "new/deep", 1)
        assert (made.is_dir(), mode_of(str(volume / "new" / "deep"))) == (True, 0o775)
        assert mounted(root) == [f"pods/uid-1/volume-subpaths/data/web/{index}" for index in range(2)]


def test_a_place_shows_what_the_sub_path_is_now() -> None:
    """As for a container that starts again after its config map has changed, or its directory became a file."""
    with house() as root:
        volume = volume_in(root)
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"old", 0o644)})
        shown = bind(root, volume, "key")
        AtomicWriter(str(volume)).write({"key": ProjectedFile(b"new", 0o644)})
        assert shown.read_text() == "old"
        assert bind(root, volume, "key").read_text() == "new"
        assert bind(root, volume, "dir").is_dir()
        assert bind(root, volume, "key").read_text() == "new"
        assert mounted(root) == ["pods/uid-1/volume-subpaths/data/web/0"]


def test_a_link_that_is_planted_after_the_look_shows_nothing_new() -> None:
    with house() as root:
        volume = volume_in(root)
        shown = bind(root, volume, "dir")
        (volume / "dir").rename(volume / "was")
        os.symlink(root / "outside", volume / "dir")
        assert os.listdir(shown) == ["file"]
        with pytest.raises(NotConfigurable, match="not within volume path"):
            bind(root, volume, "dir", 1)


class Swap:
    """Swaps something in a volume right before the n-th call of a function of `os` that is written in C.

    To be set as the profile function of the thread, which is called at every such call.
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


def clear(place: Path) -> None:
    with suppress(FileNotFoundError):
        if place.is_symlink() or place.is_file():
            place.unlink()
        else:
            shutil.rmtree(place)


def fill(place: Path, what: str) -> None:
    """Let a place be a directory, a link that leads out, one that stays inside, a file, or nothing."""
    clear(place)
    match what:
        case "directory":
            (place / "y").mkdir(parents=True)
            (place / "mine").write_text("z")
        case "link out":
            os.symlink("../outside", place)
        case "absolute link out":
            os.symlink(place.parent.parent / "outside", place)
        case "link inside":
            os.symlink("dir", place)
        case "file":
            place.write_text("z")


KINDS = ("directory", "link out", "absolute link out", "link inside", "file", "nothing")


def swapped(place: Path, before: str, after: str, work: Callable[[], T]) -> Iterator[tuple[int, T | None]]:
    """Do something again and again while a place changes, at another moment each time; None: it was refused."""
    for moment in count():
        fill(place, before)
        swap = Swap(lambda: fill(place, after), moment)
        result = None
        sys.setprofile(swap)
        try:
            result = work()
        except (NotConfigurable, OSError):
            pass
        finally:
            sys.setprofile(None)
        yield moment, result
        if not swap.done:  # the work is over before that moment
            return


@pytest.mark.parametrize("sub_path", ["x", "x/y"])
def test_an_attacker_that_swaps_at_any_moment_has_nothing_outside_opened(sub_path: str) -> None:
    opened_paths: Counter[str] = Counter()
    with house() as root:
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
def test_an_attacker_that_swaps_at_any_moment_never_sees_what_is_outside(before: str, after: str) -> None:
    ends: Counter[str] = Counter()
    with house() as root:
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
def test_names_that_would_lead_elsewhere_are_refused(volume: str, container: str) -> None:
    async def scenario(root: Path) -> None:
        path = volume_in(root)
        mount = Mount(container_path="/data", host_path=str(path), volume=volume, sub_path="dir")
        with pytest.raises(NotConfigurable):
            await HostVolumes(root, Store()).prepare_sub_path(PodUID("uid-1"), mount, container, 0)
        assert mounted(root) == []

    with house() as root:
        run(scenario(root))
