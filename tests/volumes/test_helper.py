"""What an ordinary user leaves to a helper: deleting what containers wrote as others, and giving to their groups."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import ConfigMapVolumeSource, EmptyDirVolumeSource, Pod, Volume
from podkeeper.volumes.manager import HostVolumes
from tests.volumes.volume_house import NOBODY, Store, as_nobody, needs_root, pod_with, run, uid_of

pytestmark = needs_root

DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())
SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))


class Friend:
    """A helper that puts aside what it should delete, and notes the rest."""

    def __init__(self, home: str, *, refuses: bool = False, deletes: bool = True) -> None:
        self._home = home
        self._refuses = refuses
        self._deletes = deletes
        self.given: list[tuple[str, int]] = []

    async def clear(self, directory: str) -> None:
        if self._deletes and os.path.lexists(directory):
            os.rename(directory, f"{self._home}/aside")

    async def give(self, directory: str, group: int) -> None:
        self.given.append((os.path.basename(directory), group))
        if self._refuses:
            raise TryLater("cannot give it: there is no such group")


@pytest.fixture
def home() -> Iterator[str]:
    """A directory of nobody's own."""
    path = tempfile.mkdtemp(prefix="volumes-")
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def stored() -> Store:
    store = Store()
    store.config_map("settings", colour="green")
    return store


def _with_what_others_wrote(pod: Pod, home: str) -> str:
    """The path of the pod's empty directory, in which there is something that nobody may not delete."""

    async def mount() -> str:
        return (await HostVolumes(home, Store()).mount(pod))["disk"]

    path = as_nobody(lambda: run(mount()))
    os.mkdir(f"{path}/theirs", 0o700)
    with open(f"{path}/theirs/file", "w") as file:
        file.write("x")
    return path


def test_what_containers_wrote_as_others_is_deleted_with_help(home: str) -> None:
    pod = pod_with(DISK)
    path = _with_what_others_wrote(pod, home)

    async def unmount() -> frozenset[str]:
        volumes = HostVolumes(home, Store(), helper=Friend(home))
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))
        return volumes.mounted_pods()

    assert as_nobody(lambda: run(unmount())) == frozenset()
    assert not os.path.exists(path)
    assert os.listdir(f"{home}/pods") == []


@pytest.mark.parametrize("helped", [pytest.param(False, id="no helper"), pytest.param(True, id="it deletes nothing")])
def test_without_help_it_stays_and_is_tried_again(home: str, helped: bool) -> None:
    pod = pod_with(DISK)
    path = _with_what_others_wrote(pod, home)

    async def unmount() -> None:
        volumes = HostVolumes(home, Store(), helper=Friend(home, deletes=False) if helped else None)
        for _ in range(2):
            with pytest.raises(TryLater, match="permission denied"):
                await volumes.unmount(uid_of(pod))

    as_nobody(lambda: run(unmount()))
    assert os.path.exists(f"{path}/theirs/file")


@pytest.mark.parametrize("refuses", [False, True], ids=["given", "refused"])
def test_a_group_that_is_not_ours_takes_help_and_pods_start_without_it(home: str, refuses: bool) -> None:
    async def mount() -> tuple[set[str], list[tuple[str, int]]]:
        friend = Friend(home, refuses=refuses)
        volumes = HostVolumes(home, stored(), helper=friend)
        return set(await volumes.mount(pod_with(DISK, SETTINGS, fs_group=4711))), friend.given

    names, given = as_nobody(lambda: run(mount()))
    assert names == {"disk", "settings"}
    assert given == [("disk", 4711), ("settings", 4711)]


def test_new_content_is_given_to_the_group_as_well(home: str) -> None:
    async def scenario() -> list[tuple[str, int]]:
        friend, store = Friend(home), stored()
        volumes = HostVolumes(home, store, helper=friend)
        await volumes.mount(pod_with(SETTINGS, fs_group=4711))
        friend.given.clear()
        store.config_map("settings", colour="red")
        await volumes.refresh()
        return friend.given

    assert as_nobody(lambda: run(scenario())) == [("settings", 4711)]


def test_our_own_group_takes_no_help(home: str) -> None:
    async def mount() -> list[tuple[str, int]]:
        friend = Friend(home)
        await HostVolumes(home, stored(), helper=friend).mount(pod_with(DISK, SETTINGS, fs_group=NOBODY))
        await HostVolumes(home, stored(), helper=friend).mount(pod_with(DISK))
        return friend.given

    assert as_nobody(lambda: run(mount())) == []
