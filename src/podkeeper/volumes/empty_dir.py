"""Empty directories: on disk, or in memory with `medium: Memory`. The Go ancestor is pkg/volume/emptydir.

A directory in memory has a size that the kernel keeps: the volume's limit, the pod's memory limit or what the node
can give, whichever is least. One on disk is measured now and then (`usage`), and its pod evicted when it grew too
large. `fsGroupChangePolicy` has no effect here, as in the reference: only a new directory is given to the group.
"""

import os
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, Pod
from podkeeper.model.quantity import Quantity, parse_quantity
from podkeeper.rules.resources import Amounts, amounts_of, container_total, limits_of
from podkeeper.volumes.memory import Memory
from podkeeper.volumes.place import PodPlaces
from podkeeper.volumes.tree import open_child, opened

KIND: Final = "empty-dir"
MEMORY: Final = "Memory"

_MODE: Final = 0o777
_MEMORY_MODE: Final = 0o1777
_OF_GROUP: Final = 0o2000


@dataclass(frozen=True, slots=True)
class EmptyDir:
    """A directory that lives as long as its pod."""

    name: str
    medium: str
    group: int | None
    size_bytes: int | None  # of the memory
    limit: Quantity | None  # as the spec has it

    def set_up(self, places: PodPlaces, memory: Memory) -> str:
        """Make the directory, unless it is there. Returns its path. Blocks."""
        place = places.of(KIND, self.name)
        of_group = 0 if self.group is None else _OF_GROUP
        if self.medium == MEMORY:
            return memory.make(place, mode=_MEMORY_MODE | of_group, group=self.group, size_bytes=self.size_bytes)
        if self.medium:
            raise TryLater(
                f'cannot make an emptyDir with medium "{self.medium}": '
                "this node offers Memory, and disk when no medium is given"
            )
        with opened(place.make_parent()) as parent:
            try:
                os.close(open_child(parent, place.name))
            except FileNotFoundError:
                place.make_child_of(parent, _MODE | of_group, self.group)
        return place.path

    def must_be_measured(self, places: PodPlaces, path: str) -> bool:
        """Whether nobody but us sees to its limit: on disk, and in memory that is not a mount of its own."""
        is_kept_by_kernel = self.medium == MEMORY and path == places.of(KIND, self.name).path
        return self.limit is not None and self.limit.value > 0 and not is_kept_by_kernel


def empty_dir(name: str, source: EmptyDirVolumeSource, pod: Pod, group: int | None, allocatable: Amounts) -> EmptyDir:
    """The plan of an empty directory."""
    limit = None if source.size_limit is None else parse_quantity(source.size_limit)
    return EmptyDir(name, source.medium or "", group, memory_size(pod, allocatable, limit), limit)


def memory_size(pod: Pod, allocatable: Amounts, limit: Quantity | None = None) -> int | None:
    """The size of a directory in memory; None when nothing limits it."""
    sizes = (limit, _memory_limit(pod), allocatable.get("memory"))
    return min((size.value for size in sizes if size is not None and size.value > 0), default=None)


def _memory_limit(pod: Pod) -> Quantity | None:
    """What the pod as a whole may use; None when some container may use any amount."""
    if pod.spec.resources is not None and (of_pod := amounts_of(pod.spec.resources.limits).get("memory")):
        return of_pod
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    if not all(limits_of(container).get("memory") for container in containers):
        return None
    return container_total(pod.spec, limits_of).get("memory")
