"""CRI mounts of a container.

Volumes, hosts file, termination message file, in this order.

In: the engine's mounts and the files of the container. Out: CRI mounts. Sub-paths must be prepared: `sub_path` is empty
and `host_path` is the prepared path. An unprepared sub-path is refused, because mounting the whole volume would expose
other files. Kubelet counterparts: `makeMounts` in kubelet_pods.go and in kuberuntime_container.go.
"""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime_calls import ContainerConfig, Mount
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.requests.users import handler_features
from podkeeper.runtimes.cri.schema import cri

ETC_HOSTS: Final = "/etc/hosts"

_PROPAGATION: Final = {
    "": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """Files of the node for one container. "" if there is none."""

    termination_log: str = ""
    etc_hosts: str = ""


def mounts_message(
    config: ContainerConfig, node: NodeFacts, files: ContainerFiles, mappings: Sequence[cri.IDMapping] = ()
) -> list[cri.Mount]:
    """Return the mounts of a container. `mappings` are the ID mappings of its user namespace."""
    made = [*_volume_mounts(config, node), *_file_mounts(config, node, files)]
    for mount in made:
        mount.uidMappings.extend(mappings)
        mount.gidMappings.extend(mappings)
    return made


def _volume_mounts(config: ContainerConfig, node: NodeFacts) -> Iterator[cri.Mount]:
    for mount in config.mounts:
        if mount.sub_path:
            raise NotConfigurable(
                f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{config.container.name}"'
            )
        yield cri.Mount(
            container_path=mount.container_path,
            host_path=mount.host_path,
            readonly=mount.read_only,
            selinux_relabel=node.selinux and _may_relabel(config.pod, mount),
            propagation=_PROPAGATION[mount.propagation],
            recursive_read_only=_recursive_read_only(config.pod, mount, node),
        )


def _file_mounts(config: ContainerConfig, node: NodeFacts, files: ContainerFiles) -> Iterator[cri.Mount]:
    """Yield our own files. A container with its own mount at /etc/hosts keeps it."""
    if files.etc_hosts and all(mount.container_path != ETC_HOSTS for mount in config.mounts):
        yield cri.Mount(container_path=ETC_HOSTS, host_path=files.etc_hosts, selinux_relabel=node.selinux)
    if files.termination_log and config.container.termination_message_path:
        path = posixpath.join("/", config.container.termination_message_path)
        yield cri.Mount(container_path=path, host_path=files.termination_log, selinux_relabel=node.selinux)


def _may_relabel(pod: Pod, mount: Mount) -> bool:
    """Return whether the agent may relabel a volume. Host paths must not be relabelled."""
    return any(volume.name == mount.volume and volume.host_path is None for volume in pod.spec.volumes or ())


def _recursive_read_only(pod: Pod, mount: Mount, node: NodeFacts) -> bool:
    """Return whether a read-only mount is recursive. Raises NotConfigurable."""
    offered = handler_features(pod, node).recursive_read_only
    message = f'failed to resolve recursive read-only mode: volume "{mount.volume}" requested recursive read-only mode'
    match mount.recursive_read_only:
        case "" | "Disabled":
            return False
        case _ if not mount.read_only:
            raise NotConfigurable(f"{message}, but it is not read-only")
        case _ if mount.propagation:
            raise NotConfigurable(f'{message}, but it is not compatible with propagation "{mount.propagation}"')
        case "IfPossible":
            return offered
        case "Enabled" if offered:
            return True
        case "Enabled":
            raise NotConfigurable(f"{message}, but it is not supported by the runtime")
        case unknown:
            raise NotConfigurable(
                f'failed to resolve recursive read-only mode: unknown recursive read-only mode "{unknown}"'
            )
