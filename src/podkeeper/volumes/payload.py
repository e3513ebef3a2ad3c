"""Volumes that show files made from objects: what config map, secret, projected and downward API have in common.

Files come in; a directory that shows just them goes out, in memory where one of them is a secret. A volume whose
files cannot be told now stays as it is, if it was ready once: a running pod does not suffer from an object that is
gone.
"""

import hashlib
import logging
import os
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.volumes.atomic_writer import AtomicWriter, Files, current_version
from podkeeper.volumes.memory import Memory
from podkeeper.volumes.place import PodPlaces
from podkeeper.volumes.tree import make_directory, open_child, open_directory, opened

log = logging.getLogger(__name__)

FILE_MODE: Final = 0o644
SECRET_MODE: Final = 0o600
_MODE: Final = 0o777
_MEMORY_MODE: Final = 0o1777
_OF_GROUP: Final = 0o2000
_MOUNT_POINT_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class Payload:
    """A volume of files."""

    name: str
    kind: str  # as in `config-map`
    files: Files
    in_memory: bool
    size_bytes: int | None  # of the memory; None: as the kernel likes
    group: int | None
    mount_points: tuple[str, ...]  # where other volumes are to be mounted in it

    def set_up(self, places: PodPlaces, memory: Memory) -> str:
        """Show the files. Returns the volume's path. Blocks."""
        place = places.of(self.kind, self.name)
        of_group = 0 if self.group is None else _OF_GROUP
        if self.in_memory:
            mode = _MEMORY_MODE | of_group
            path = memory.make(place, mode=mode, group=self.group, size_bytes=self.size_bytes)
        else:
            path = place.path
            with opened(place.make_parent()) as parent:
                try:
                    os.close(open_child(parent, place.name))
                except FileNotFoundError:
                    place.make_child_of(parent, _MODE | of_group, self.group)
        for mount_point in self.mount_points:  # the volume is read-only inside: nobody could make them later
            os.close(make_directory(path, *mount_point.split("/"), mode=_MOUNT_POINT_MODE))
        AtomicWriter(path, self.group).write(self.files)
        return path

    def update(self, places: PodPlaces, memory: Memory) -> bool:
        """Show the files if the volume is there, and say whether that changed anything. Makes nothing anew. Blocks."""
        path = _ready_path(places, memory, self.kind, self.name)
        return path is not None and AtomicWriter(path, self.group).write(self.files)

    def fingerprint(self) -> bytes:
        """Tells one content from another."""
        digest = hashlib.blake2b(digest_size=16)
        for path, file in sorted(self.files.items()):
            digest.update(f"{path}\0{file.mode}\0{file.owner}\0{len(file.data)}\0".encode())
            digest.update(file.data)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A volume of files that cannot be told now."""

    name: str
    kind: str
    why: str

    def set_up(self, places: PodPlaces, memory: Memory) -> str:
        """The path of the volume as it was made earlier. Raises TryLater when it never was. Blocks."""
        path = _ready_path(places, memory, self.kind, self.name)
        if path is None:
            raise TryLater(self.why)
        log.warning("volume %s of pod %s stays as it is: %s", self.name, places.uid, self.why)
        return path


def _ready_path(places: PodPlaces, memory: Memory, kind: str, name: str) -> str | None:
    """The path of a volume that shows some version; None when it is not there."""
    place = places.of(kind, name)
    path = memory.find(place) or place.path
    try:
        with opened(open_directory(path)) as top:
            return None if current_version(top) is None else path
    except OSError:
        return None
