"""Which volume is made how: a volume of a spec comes in, a plan that can set it up goes out.

Making a plan reads objects and touches no file; setting it up touches files and reads no object. So a plan is made in
the event loop and set up in a thread.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Pod, Volume
from podkeeper.ports.api import Reader
from podkeeper.rules.downward import Surroundings
from podkeeper.rules.resources import Amounts
from podkeeper.volumes import config_map, downward_api, projected, secret
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.empty_dir import empty_dir, memory_size
from podkeeper.volumes.host_path import HostPath
from podkeeper.volumes.memory import Memory
from podkeeper.volumes.nested import mount_points_in
from podkeeper.volumes.payload import FILE_MODE, SECRET_MODE, Payload, Unavailable
from podkeeper.volumes.place import PodPlaces
from podkeeper.volumes.projected import Tokens

SERVED: Final = ("emptyDir", "hostPath", "configMap", "secret", "projected", "downwardAPI")


class Plan(Protocol):
    """How one volume is made."""

    @property
    def name(self) -> str:
        """The volume's."""

    def set_up(self, places: PodPlaces, memory: Memory) -> str:
        """Make the volume ready; what is ready stays. Returns its path. Blocks. Raises TryLater and OSError."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What volumes are made from."""

    objects: Reader
    tokens: Tokens | None
    allocatable: Amounts


async def plan_of(volume: Volume, pod: Pod, supply: Supply) -> Plan:
    """How a volume is to be made. Raises TryLater."""
    if (kind := payload_kind(volume)) is not None:
        try:
            return await payload_of(volume, pod, supply)
        except (TryLater, BadInput) as error:
            return Unavailable(volume.name, kind, str(error))
    if volume.host_path is not None:
        return HostPath(volume.name, volume.host_path.path, volume.host_path.type or "")
    if volume.empty_dir is None and (other := _kind_named(volume)) is not None:
        raise TryLater(
            f'cannot mount volume "{volume.name}": this node does not serve {other} volumes; use one of '
            f"{', '.join(SERVED)}, or run the pod on a node that serves {other}"
        )
    try:
        source = volume.empty_dir or EmptyDirVolumeSource()  # a volume that does not say is empty
        return empty_dir(volume.name, source, pod, group_of(pod), supply.allocatable)
    except BadInput as error:
        raise TryLater(str(error)) from error


def payload_kind(volume: Volume) -> str | None:
    """The kind of a volume whose files are made from objects; None for all others."""
    if volume.config_map is not None:
        return config_map.KIND
    if volume.secret is not None:
        return secret.KIND
    if volume.projected is not None:
        return projected.KIND
    return downward_api.KIND if volume.downward_api is not None else None


async def payload_of(volume: Volume, pod: Pod, supply: Supply) -> Payload:
    """The files of such a volume, as its objects are now. Raises TryLater."""
    in_memory = volume.secret is not None or (
        volume.projected is not None and projected.holds_secrets(volume.projected)
    )
    return Payload(
        name=volume.name,
        kind=payload_kind(volume) or "",
        files=await _files(volume, pod, supply),
        in_memory=in_memory,
        size_bytes=memory_size(pod, supply.allocatable),
        group=group_of(pod),
        mount_points=mount_points_in(volume.name, pod),
    )


def group_of(pod: Pod) -> int | None:
    """The group that a pod's volumes belong to."""
    context = pod.spec.security_context
    return None if context is None else context.fs_group


async def _files(volume: Volume, pod: Pod, supply: Supply) -> Files:
    namespace = pod.metadata.namespace or ""
    seen = Surroundings(pod=pod, allocatable=supply.allocatable)
    if (of_map := volume.config_map) is not None:
        return await config_map.config_map_files(of_map, namespace, _mode(of_map.default_mode), supply.objects)
    if (of_secret := volume.secret) is not None:
        mode = _mode(of_secret.default_mode, SECRET_MODE)
        optional = bool(of_secret.optional)
        name = of_secret.secret_name or ""
        return await secret.secret_files(name, of_secret.items, optional, namespace, mode, supply.objects)
    if volume.projected is not None:
        return await projected.projected_files(volume.projected, seen, supply.objects, supply.tokens)
    assert volume.downward_api is not None
    of_pod = volume.downward_api
    return downward_api.downward_files(of_pod.items, seen, _mode(of_pod.default_mode))


def _mode(mode: int | None, default: int = FILE_MODE) -> int:
    return default if mode is None else mode


def _kind_named(volume: Volume) -> str | None:
    """What the spec calls the kind of a volume; None when it names none."""
    for field in msgspec.structs.fields(volume):
        if field.name != "name" and getattr(volume, field.name) is not None:
            return field.encode_name
    return None
