"""Mounts of a container: paths, sub-paths, read-only volumes, propagation, and refused mounts."""

from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    ConfigMapVolumeSource,
    Container,
    DownwardAPIVolumeSource,
    ProjectedVolumeSource,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)
from podkeeper.model.runtime_calls import Mount
from podkeeper.rules.container.mounts import mounts_of
from podkeeper.testing import build

pod = partial(build.pod, namespace="shop")
VOLUMES = {"data": "/host/data"}
ENV = {"POD": "web-1", "UP": "..", "EMPTY": ""}


def mount(**fields: object) -> VolumeMount:
    return replace(VolumeMount(name="data", mount_path="/data"), **fields)


def shown(**fields: object) -> Mount:
    return replace(Mount(container_path="/data", host_path="/host/data", volume="data"), **fields)


MOUNTS = {
    "a volume appears at its path": (mount(), shown()),
    "read-only if the mount is": (
        mount(read_only=True), shown(read_only=True)),
    "a path is made absolute": (mount(mount_path="in"), shown(container_path="/in")),
    "a sub-path": (
        mount(sub_path="a/b"), shown(sub_path="a/b")),
    "a sub-path with a variable": (
        mount(sub_path_expr="x/$(POD)"), shown(sub_path="x/web-1")),
    "subPath is not expanded": (
        mount(sub_path="$(POD)"), shown(sub_path="$(POD)")),
    "dots in names are only names": (
        mount(sub_path="..a/b.."), shown(sub_path="..a/b..")),
    "propagation is passed on": (
        mount(mount_propagation="Bidirectional"),
        shown(propagation="Bidirectional")),
    "recursive read-only is passed on": (
        mount(read_only=True, recursive_read_only="IfPossible"),
        shown(read_only=True, recursive_read_only="IfPossible")),
    "propagation None is empty": (mount(mount_propagation="None"), shown()),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", MOUNTS.values(), ids=MOUNTS.keys())
def test_mount(given: VolumeMount, expected: Mount) -> None:
    assert mounts_of(pod(), Container(name="web", volume_mounts=(given,)), VOLUMES, ENV) == (expected,)


WRITTEN_BY_US = {
    "a config map": Volume(name="data", config_map=ConfigMapVolumeSource(name="c")),
    "a secret": Volume(name="data", secret=SecretVolumeSource(secret_name="s")),
    "a projection": Volume(name="data", projected=ProjectedVolumeSource()),
    "the pod's own fields": Volume(name="data", downward_api=DownwardAPIVolumeSource()),
}


@pytest.mark.parametrize("volume", WRITTEN_BY_US.values(), ids=WRITTEN_BY_US.keys())
def test_volumes_written_by_the_agent_are_read_only(volume: Volume) -> None:
    """As in the kubelet, for all mounts, also with a sub-path and with readOnly false."""
    container = Container(name="web", volume_mounts=(mount(), mount(sub_path="a", read_only=False)))
    assert [each.read_only for each in mounts_of(pod(spec={"volumes": (volume,)}), container, VOLUMES, ENV)] == [
        True,
        True,
    ]


REFUSED = {
    "a missing volume": (
        mount(name="nosuch"), 'cannot find volume "nosuch" to mount into container "web"'),
    "an absolute sub-path": (mount(sub_path="/etc"), "error SubPath `/etc` must not be an absolute path"),
    "a sub-path out of the volume": (
        mount(sub_path="a/../../b"), "unable to provision SubPath `a/../../b`: must not contain '..'"),
    "a variable that leads out of the volume": (
        mount(sub_path_expr="$(UP)/x"), "unable to provision SubPath `../x`: must not contain '..'"),
    "a variable without a value": (mount(sub_path_expr="$(EMPTY)/$(NO)"), "missing value for EMPTY, NO"),
    "an unknown propagation": (mount(mount_propagation="Sideways"), 'invalid MountPropagation mode: "Sideways"'),
}  # fmt: skip


@pytest.mark.parametrize("given, message", REFUSED.values(), ids=REFUSED.keys())
def test_refused_mount(given: VolumeMount, message: str) -> None:
    with pytest.raises(NotConfigurable) as caught:
        mounts_of(pod(), Container(name="web", volume_mounts=(given,)), VOLUMES, ENV)
    assert str(caught.value) == message
