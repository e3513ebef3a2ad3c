"""Volumes inside volumes: mount points that a read-only volume needs.

Input: a pod and the name of one of its volumes. Output: paths in the volume. Kubelet counterpart:
pkg/volume/util/nested_volumes.go.
"""

import posixpath
from collections.abc import Iterator

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.rules.container.of_pod import all_containers


def mount_points_in(volume: str, pod: Pod) -> tuple[str, ...]:
    """Return the paths in a volume at which containers mount others. Omit paths below another one."""
    return tuple(dict.fromkeys(path for container in all_containers(pod) for path in _of_container(volume, container)))


def _of_container(volume: str, container: Container | EphemeralContainer) -> Iterator[str]:
    mounts = container.volume_mounts or ()
    paths = sorted(posixpath.normpath(posixpath.join("/", mount.mount_path)) for mount in mounts)
    for mount in mounts:
        # A mount with a sub-path does not show the top of the volume.
        if mount.name != volume or mount.sub_path or mount.sub_path_expr:
            continue
        top = posixpath.normpath(posixpath.join("/", mount.mount_path)).rstrip("/") + "/"
        found: list[str] = []
        for path in paths:
            if path.startswith(top) and path != top and not any(path.startswith(other + "/") for other in found):
                found.append(path)
                yield path.removeprefix(top)
