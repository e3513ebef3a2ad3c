"""Volumes inside volumes: the directories that a read-only volume must offer for others to be mounted in it.

A pod and the name of one of its volumes come in; paths in the volume go out. The Go ancestor is
pkg/volume/util/nested_volumes.go.
"""

import posixpath
from collections.abc import Iterator

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod


def mount_points_in(volume: str, pod: Pod) -> tuple[str, ...]:
    """Where containers mount something below a place at which they mount this volume; only the uppermost of each."""
    spec = pod.spec
    containers: list[Container | EphemeralContainer] = [*(spec.init_containers or ()), *spec.containers]
    containers += spec.ephemeral_containers or ()
    return tuple(dict.fromkeys(path for container in containers for path in _of_container(volume, container)))


def _of_container(volume: str, container: Container | EphemeralContainer) -> Iterator[str]:
    mounts = container.volume_mounts or ()
    paths = sorted(posixpath.normpath(posixpath.join("/", mount.mount_path)) for mount in mounts)
    for mount in mounts:
        if mount.name != volume or mount.sub_path or mount.sub_path_expr:
            continue
        top = posixpath.normpath(posixpath.join("/", mount.mount_path)).rstrip("/") + "/"
        found: list[str] = []
        for path in paths:
            if path.startswith(top) and path != top and not any(path.startswith(other + "/") for other in found):
                found.append(path)
                yield path.removeprefix(top)
