"""Contract of the volumes port."""

import uuid

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Pod, Volume
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.ports.volumes import Volumes
from podkeeper.testing.build import pod
from podkeeper.testing.contracts.contract import Contract, raises

VOLUMES: Contract[Volumes] = Contract()


def _pod(*names: str) -> tuple[Pod, PodUID]:
    volumes = tuple(Volume(name=name, empty_dir=EmptyDirVolumeSource(medium="Memory")) for name in names)
    made = pod(uid=str(uuid.uuid4()), volumes=volumes)
    return made, uid_of(made)


@VOLUMES.scenario
async def mount_is_idempotent(volumes: Volumes) -> None:
    """`mount` returns a separate host path for each volume. A repeated call returns the same paths."""
    pod, uid = _pod("cache", "data")
    paths = await volumes.mount(pod)
    assert set(paths) == {"cache", "data"}
    assert len(set(paths.values())) == 2
    assert await volumes.mount(pod) == paths
    await volumes.unmount(uid)


@VOLUMES.scenario
async def mounted_pods_are_listed(volumes: Volumes) -> None:
    """After `mount`, the pod is in `mounted_pods` and `directories`.

    After `unmount`, it is no longer in `mounted_pods`.
    """
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    assert uid in volumes.mounted_pods()
    assert uid in await volumes.directories()
    await volumes.unmount(uid)
    assert uid not in volumes.mounted_pods()


@VOLUMES.scenario
async def unmount_is_idempotent(volumes: Volumes) -> None:
    """Unmounting a pod without mounts succeeds, also repeatedly. Removing a directory that does not exist succeeds."""
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    await volumes.unmount(uid)
    await volumes.unmount(uid)
    await volumes.unmount(PodUID("unknown"))
    await volumes.remove_directory(PodUID("unknown"))
    assert volumes.mounted_pods() == frozenset()


@VOLUMES.scenario
async def a_directory_with_a_mount_is_kept(volumes: Volumes) -> None:
    """`remove_directory` raises TryLater and removes nothing while a volume below the directory is mounted.

    After `unmount` it removes the directory.
    """
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    with raises(TryLater):
        await volumes.remove_directory(uid)
    assert uid in await volumes.directories()
    await volumes.unmount(uid)
    await volumes.remove_directory(uid)
    assert uid not in await volumes.directories()


@VOLUMES.scenario
async def a_pod_without_volumes_has_no_mounts(volumes: Volumes) -> None:
    """For a pod without volumes, `mount` returns no paths and `mounted_pods` does not list the pod."""
    pod, uid = _pod()
    assert await volumes.mount(pod) == {}
    assert uid not in volumes.mounted_pods()
    await volumes.unmount(uid)
