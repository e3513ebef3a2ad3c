"""Mounts of a container: which host paths appear where.

Inputs are the container's spec, the host path of each volume and the container's environment. The output keeps the
order of the spec. ConfigMaps, Secrets and similar volumes are always read-only. Only the text of a sub-path is checked
here. The runtime must check that no symbolic link leads out of the volume. The runtime also adds the hosts file and the
termination log.

Kubelet counterpart: `makeMounts` in pkg/kubelet/kubelet_pods.go.
"""

import posixpath
from collections.abc import Mapping

from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, Volume, VolumeMount
from podkeeper.model.runtime_calls import Mount
from podkeeper.rules.container.expansion import expand_fully

_PROPAGATIONS = {None: "", "": "", "None": "", "HostToContainer": "HostToContainer", "Bidirectional": "Bidirectional"}


def mounts_of(
    pod: Pod, container: Container | EphemeralContainer, volumes: Mapping[str, str], env: Mapping[str, str]
) -> tuple[Mount, ...]:
    """Return a container's mounts. `volumes` maps volume names to host paths. Raises NotConfigurable."""
    agent_written = {each.name for each in pod.spec.volumes or () if _is_agent_written(each)}
    return tuple(
        replace(made, read_only=True) if mount.name in agent_written else made
        for mount in container.volume_mounts or ()
        for made in (_mount(container, mount, volumes, env),)
    )


def _is_agent_written(volume: Volume) -> bool:
    """Return whether the agent writes the volume's content, so that containers must not."""
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
    # An expanded variable can contain it, so the check of the API server is not enough.
    if ".." in sub_path.split("/"):
        raise NotConfigurable(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path
