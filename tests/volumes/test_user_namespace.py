"""The helper of an ordinary user: it deletes files of other users and changes groups."""

import os

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import ConfigMapVolumeSource, EmptyDirVolumeSource, Pod, Volume
from podkeeper.model.pods import uid_of
from podkeeper.volumes.manager import HostVolumes
from tests.volumes.harness import NOBODY, Store, as_unprivileged_user, needs_root, pod_with, run

pytestmark = needs_root

DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())
SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))


class RecordingHelper:
    """A helper that renames what it should delete, and records its calls."""

    def __init__(self, root: str, *, refuses: bool = False, deletes: bool = True) -> None:
        self._root = root
        self._refuses = refuses
        self._deletes = deletes
        self.given: list[tuple[str, int]] = []

    async def clear(self, directory: str) -> None:
        if self._deletes and os.path.lexists(directory):
            os.rename(directory, f"{self._root}/aside")

    async def give(self, directory: str, group: int) -> None:
        self.given.append((os.path.basename(directory), group))
        if self._refuses:
            raise TryLater("cannot give it: there is no such group")


def stored() -> Store:
    store = Store()
    store.config_map("settings", colour="green")
    return store


def _with_what_others_wrote(pod: Pod, root: str) -> str:
    """Mount the pod and return its emptyDir, with a file that the user nobody may not delete."""

    async def mount() -> str:
        return (await HostVolumes(root, Store()).mount(pod))["disk"]

    path = as_unprivileged_user(lambda: run(mount()))
    os.mkdir(f"{path}/theirs", 0o700)
    with open(f"{path}/theirs/file", "w") as file:
        file.write("x")
    return path


def test_files_of_other_users_are_deleted_by_the_helper(root: str) -> None:
    pod = pod_with(DISK)
    path = _with_what_others_wrote(pod, root)

    async def unmount() -> frozenset[str]:
        volumes = HostVolumes(root, Store(), helper=RecordingHelper(root))
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))
        return volumes.mounted_pods()

    assert as_unprivileged_user(lambda: run(unmount())) == frozenset()
    assert not os.path.exists(path)
    assert os.listdir(f"{root}/pods") == []


@pytest.mark.parametrize("helped", [pytest.param(False, id="no helper"), pytest.param(True, id="it deletes nothing")])
def test_without_the_helper_files_remain_and_unmounting_is_retried(root: str, helped: bool) -> None:
    pod = pod_with(DISK)
    path = _with_what_others_wrote(pod, root)

    async def unmount() -> None:
        volumes = HostVolumes(root, Store(), helper=RecordingHelper(root, deletes=False) if helped else None)
        for _ in range(2):
            with pytest.raises(TryLater, match="permission denied"):
                await volumes.unmount(uid_of(pod))

    as_unprivileged_user(lambda: run(unmount()))
    assert os.path.exists(f"{path}/theirs/file")


@pytest.mark.parametrize("refuses", [False, True], ids=["given", "refused"])
def test_another_group_needs_the_helper_and_pods_start_without_it(root: str, refuses: bool) -> None:
    async def mount() -> tuple[set[str], list[tuple[str, int]]]:
        helper = RecordingHelper(root, refuses=refuses)
        volumes = HostVolumes(root, stored(), helper=helper)
        return set(await volumes.mount(pod_with(DISK, SETTINGS, fs_group=4711))), helper.given

    names, given = as_unprivileged_user(lambda: run(mount()))
    assert names == {"disk", "settings"}
    assert given == [("disk", 4711), ("settings", 4711)]


def test_new_content_gets_the_group_as_well(root: str) -> None:
    async def scenario() -> list[tuple[str, int]]:
        helper, store = RecordingHelper(root), stored()
        volumes = HostVolumes(root, store, helper=helper)
        await volumes.mount(pod_with(SETTINGS, fs_group=4711))
        helper.given.clear()
        store.config_map("settings", colour="red")
        await volumes.refresh()
        return helper.given

    assert as_unprivileged_user(lambda: run(scenario())) == [("settings", 4711)]


def test_our_own_group_needs_no_helper(root: str) -> None:
    async def mount() -> list[tuple[str, int]]:
        helper = RecordingHelper(root)
        await HostVolumes(root, stored(), helper=helper).mount(pod_with(DISK, SETTINGS, fs_group=NOBODY))
        await HostVolumes(root, stored(), helper=helper).mount(pod_with(DISK))
        return helper.given

    assert as_unprivileged_user(lambda: run(mount())) == []
