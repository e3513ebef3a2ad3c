"""emptyDir volumes: on disk, or in memory with `medium: Memory`.

The kernel enforces the size of a directory in memory. The size is the minimum of the volume's limit, the pod's memory
limit and the allocatable memory of the node. A directory on disk is measured periodically (`usage`), and its pod is
evicted if it exceeds the limit. As in the kubelet, `fsGroupChangePolicy` has no effect: only a new directory gets the
group. Kubelet counterpart: pkg/volume/emptydir.
"""

import os
from dataclasses import dataclass
from typing import Final

from podkeeper.linux.tree import open_child, opened
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Pod
from podkeeper.model.quantity import Quantity, parse_quantity
from podkeeper.rules.resources import Amounts, amounts_of, container_total, limits_of
from podkeeper.volumes.memory import MemoryDirectories
from podkeeper.volumes.paths import PodDirectory

KIND: Final = "empty-dir"
MEMORY: Final = "Memory"

# The modes of the kubelet: 0777 on disk, and the default of tmpfs in memory.
_MODE: Final = 0o777
_MEMORY_MODE: Final = 0o1777
_SETGID: Final = 0o2000


@dataclass(frozen=True, slots=True)
class EmptyDir:
    """The plan of an emptyDir volume."""

    name: str
    medium: str
    group: int | None
    size_bytes: int | None  # of a directory in memory
    limit: Quantity | None  # sizeLimit of the spec

    def set_up(self, pod: PodDirectory, memory: MemoryDirectories) -> str:
        """Create the directory unless it exists. Return its path. Blocks."""
        directory = pod.volume(KIND, self.name)
        setgid = 0 if self.group is None else _SETGID
        if self.medium == MEMORY:
            return memory.make(directory, mode=_MEMORY_MODE | setgid, group=self.group, size_bytes=self.size_bytes)
        if self.medium:
            raise TryLater(
                f'cannot create an emptyDir: unsupported medium "{self.medium}": '
                "expected Memory, or no medium for a directory on disk"
            )
        with opened(directory.make_parent()) as parent:
            try:
                os.close(open_child(parent, directory.name))
            except FileNotFoundError:
                directory.make_child_of(parent, _MODE | setgid, self.group)
        return directory.path

    def must_be_measured(self, pod: PodDirectory, path: str) -> bool:
        """Return whether the usage must be measured, because no tmpfs of that size enforces the limit."""
        is_enforced = self.medium == MEMORY and path == pod.volume(KIND, self.name).path
        return self.limit is not None and self.limit.value > 0 and not is_enforced


def empty_dir(name: str, source: EmptyDirVolumeSource, pod: Pod, group: int | None, allocatable: Amounts) -> EmptyDir:
    limit = None if source.size_limit is None else parse_quantity(source.size_limit)
    return EmptyDir(name, source.medium or "", group, memory_size(pod, allocatable, limit), limit)


def memory_size(pod: Pod, allocatable: Amounts, limit: Quantity | None = None) -> int | None:
    """Return the size of a directory in memory, or None if nothing limits it."""
    sizes = (limit, _memory_limit(pod), allocatable.get("memory"))
    return min((size.value for size in sizes if size is not None and size.value > 0), default=None)


def _memory_limit(pod: Pod) -> Quantity | None:
    """Return the memory limit of the whole pod, or None if a container has no limit."""
    if pod.spec.resources is not None and (of_pod := amounts_of(pod.spec.resources.limits).get("memory")):
        return of_pod
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    # Without a limit of its own, one container can use all memory of the node, so the sum limits nothing.
    if not all(limits_of(container).get("memory") for container in containers):
        return None
    return container_total(pod.spec, limits_of).get("memory")
