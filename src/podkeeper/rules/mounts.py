"""Which host paths appear in a container, and where.

The container's spec, the host path of each of its pod's volumes and the container's environment come in; `Mount`s go
out, in the order of the spec. Config maps, secrets and the like are always read-only. A sub-path stays below its
volume as far as its text goes; it is handed on as it is, for only whoever mounts it can see to it that no symbolic
link leads out. The hosts file and the termination log are the runtime's. The Go ancestor is `makeMounts` in
pkg/kubelet/kubelet_pods.go.
"""

import posixpath
from collections.abc import Mapping

from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, Volume, VolumeMount
from podkeeper.model.runtime_calls import Mount
from podkeeper.rules.expansion import expand_fully

_PROPAGATIONS = {None: "", "": "", "None": "", "HostToContainer": "HostToContainer", "Bidirectional": "Bidirectional"}


def mounts_of(
    pod: Pod, container: Container | EphemeralContainer, volumes: Mapping[str, str], env: Mapping[str, str]
) -> tuple[Mount, ...]:
    """The mounts of a container of a pod; `volumes` are host paths by name. Raises NotConfigurable."""
    written_by_us = {each.name for each in pod.spec.volumes or () if _is_written_by_us(each)}
    return tuple(
        replace(made, read_only=True) if mount.name in written_by_us else made
        for mount in container.volume_mounts or ()
        for made in (_mount(container, mount, volumes, env),)
    )


def _is_written_by_us(volume: Volume) -> bool:
    """Whether a volume shows what the API or the node has: no container may write there."""
    return any(each is not None for each in (volume.config_map, volume.secret, volume.projected, volume.downward_api))


def _mount(
    container: Container | EphemeralContainer, mount: VolumeMount, volumes: Mapping[str, str], env: Mapping[str, str]
) -> Mount:
    host_path = volumes.get(mount.name)
    if host_path is None:
        raise NotConfigurable(f'cannot find volume "{mount.name}" to mount into container "{container.name}"')
    if mount.mount_propagation not in _PROPAGATIONS:
        raise NotConfigurable(f'invalid MountPropagation mode: "{mount.mount_propagation}"')
    return Mount(
        container_path=posixpath.join("/", mount.mount_path),
        host_path=host_path,
        volume=mount.name,
        sub_path=_sub_path(mount, env),
        read_only=bool(mount.read_only),
        recursive_read_only=mount.recursive_read_only or "",
        propagation=_PROPAGATIONS[mount.mount_propagation],
    )


def _sub_path(mount: VolumeMount, env: Mapping[str, str]) -> str:
    sub_path = expand_fully(mount.sub_path_expr, env) if mount.sub_path_expr else mount.sub_path or ""
    if sub_path.startswith("/"):
        raise NotConfigurable(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise NotConfigurable(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path
