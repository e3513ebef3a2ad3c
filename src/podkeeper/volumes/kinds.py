"""Plan volumes: turn a volume of a spec into a `VolumePlan`, which can set it up.

Planning reads API objects and accesses no files, so it runs in the event loop. Setting up accesses files and reads no
objects, so it runs in a thread.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Pod, Volume
from podkeeper.ports.api import ObjectReader, TokenProvider
from podkeeper.rules.container.downward import PodContext
from podkeeper.rules.resources import Amounts
from podkeeper.volumes import config_map, downward_api, projected, secret
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.empty_dir import empty_dir, memory_size
from podkeeper.volumes.host_path import HostPath
from podkeeper.volumes.memory import MemoryDirectories
from podkeeper.volumes.nested import mount_points_in
from podkeeper.volumes.paths import PodDirectory
from podkeeper.volumes.payload import FILE_MODE, SECRET_MODE, Payload, Unavailable

SUPPORTED: Final = ("emptyDir", "hostPath", "configMap", "secret", "projected", "downwardAPI")


class VolumePlan(Protocol):
    """A volume that can be set up."""

    @property
    def name(self) -> str:
        """The name of the volume."""

    def set_up(self, pod: PodDirectory, memory: MemoryDirectories) -> str:
        """Set the volume up, or leave an existing one. Return its path. Blocks. Raises TryLater, OSError."""


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The sources of the content of volumes."""

    objects: ObjectReader
    tokens: TokenProvider | None
    allocatable: Amounts


async def plan_of(volume: Volume, pod: Pod, inputs: PlanInputs) -> VolumePlan:
    """Return the plan of a volume. Raises TryLater."""
    if (kind := payload_kind(volume)) is not None:
        try:
            return await payload_of(volume, pod, inputs)
        except (TryLater, BadInput) as error:
            # Not an error yet: a volume that was ready once keeps its files, even after a restart of the agent. (The
            # kubelet's volumes stay only until it restarts.)
            return Unavailable(volume.name, kind, str(error))
    if volume.host_path is not None:
        return HostPath(volume.name, volume.host_path.path, volume.host_path.type or "")
    if volume.empty_dir is None and (other := _kind_named(volume)) is not None:
        raise TryLater(
            f'cannot mount volume "{volume.name}": this node does not support {other} volumes; use one of '
            f"{', '.join(SUPPORTED)}, or run the pod on a node that supports {other}"
        )
    try:
        source = volume.empty_dir or EmptyDirVolumeSource()  # the default, as in the API
        return empty_dir(volume.name, source, pod, group_of(pod), inputs.allocatable)
    except BadInput as error:
        raise TryLater(str(error)) from error


def payload_kind(volume: Volume) -> str | None:
    """Return the kind of a volume with files from API objects, or None for other volumes."""
    if volume.config_map is not None:
        return config_map.KIND
    if volume.secret is not None:
        return secret.KIND
    if volume.projected is not None:
        return projected.KIND
    return downward_api.KIND if volume.downward_api is not None else None


async def payload_of(volume: Volume, pod: Pod, inputs: PlanInputs) -> Payload:
    """Return the plan of a volume with files from API objects. Raises TryLater."""
    # Secrets and tokens are never written to disk.
    in_memory = volume.secret is not None or (
        volume.projected is not None and projected.holds_secrets(volume.projected)
    )
    return Payload(
        name=volume.name,
        kind=payload_kind(volume) or "",
        files=await _files(volume, pod, inputs),
        in_memory=in_memory,
        size_bytes=memory_size(pod, inputs.allocatable),
        group=group_of(pod),
        mount_points=mount_points_in(volume.name, pod),
    )


def group_of(pod: Pod) -> int | None:
    """Return the fsGroup of a pod."""
    context = pod.spec.security_context
    return None if context is None else context.fs_group


async def _files(volume: Volume, pod: Pod, inputs: PlanInputs) -> Files:
    namespace = pod.metadata.namespace or ""
    surroundings = PodContext(pod=pod, allocatable=inputs.allocatable)
    if (of_map := volume.config_map) is not None:
        return await config_map.config_map_files(of_map, namespace, _mode(of_map.default_mode), inputs.objects)
    if (of_secret := volume.secret) is not None:
        mode = _mode(of_secret.default_mode, SECRET_MODE)
        optional = bool(of_secret.optional)
        name = of_secret.secret_name or ""
        return await secret.secret_files(name, of_secret.items, optional, namespace, mode, inputs.objects)
    if volume.projected is not None:
        return await projected.projected_files(volume.projected, surroundings, inputs.objects, inputs.tokens)
    assert volume.downward_api is not None
    of_pod = volume.downward_api
    return downward_api.downward_files(of_pod.items, surroundings, _mode(of_pod.default_mode))


def _mode(mode: int | None, default: int = FILE_MODE) -> int:
    return default if mode is None else mode


def _kind_named(volume: Volume) -> str | None:
    """Return the name of the field that sets the kind of a volume, or None."""
    for field in msgspec.structs.fields(volume):
        if field.name != "name" and getattr(volume, field.name) is not None:
            return field.encode_name
    return None
