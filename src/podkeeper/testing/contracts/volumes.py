"""What every implementation of volumes promises."""

import uuid

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, EmptyDirVolumeSource, Pod, PodSpec, Volume
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.ports.volumes import Volumes
from podkeeper.testing.contracts.contract import Contract, raises

VOLUMES: Contract[Volumes] = Contract()


def _pod(*names: str) -> tuple[Pod, PodUID]:
    uid = PodUID(str(uuid.uuid4()))
    spec = PodSpec(
        containers=(Container(name="web", image="nginx"),),
        volumes=tuple(Volume(name=name, empty_dir=EmptyDirVolumeSource(medium="Memory")) for name in names),
    )
    return Pod(metadata=ObjectMeta(name="web", namespace="default", uid=uid), spec=spec), uid


@VOLUMES.promises
async def every_volume_has_a_path(volumes: Volumes) -> None:
    """`mount` returns a host path of its own for each volume; asked again, the same ones."""
    pod, uid = _pod("cache", "data")
    paths = await volumes.mount(pod)
    assert set(paths) == {"cache", "data"}
    assert len(set(paths.values())) == 2
    assert await volumes.mount(pod) == paths
    await volumes.unmount(uid)


@VOLUMES.promises
async def what_is_mounted_is_known(volumes: Volumes) -> None:
    """A pod with mounts is among `mounted_pods` and has a directory, until it is unmounted."""
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    assert uid in volumes.mounted_pods()
    assert uid in await volumes.directories()
    await volumes.unmount(uid)
    assert uid not in volumes.mounted_pods()


@VOLUMES.promises
async def the_unknown_is_not_mounted(volumes: Volumes) -> None:
    """Unmounting a pod of which nothing is mounted succeeds, again and again; so does removing no directory."""
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    await volumes.unmount(uid)
    await volumes.unmount(uid)
    await volumes.unmount(PodUID("unknown"))
    await volumes.remove_directory(PodUID("unknown"))
    assert volumes.mounted_pods() == frozenset()


@VOLUMES.promises
async def a_directory_with_a_mount_stays(volumes: Volumes) -> None:
    """`remove_directory` refuses with TryLater while anything below is mounted, and then removes."""
    pod, uid = _pod("cache")
    await volumes.mount(pod)
    with raises(TryLater):
        await volumes.remove_directory(uid)
    assert uid in await volumes.directories()
    await volumes.unmount(uid)
    await volumes.remove_directory(uid)
    assert uid not in await volumes.directories()


@VOLUMES.promises
async def a_pod_without_volumes_needs_none(volumes: Volumes) -> None:
    """A pod without volumes has no paths and no mounts."""
    pod, uid = _pod()
    assert await volumes.mount(pod) == {}
    assert uid not in volumes.mounted_pods()
    await volumes.unmount(uid)
