"""Volumes with files from API objects: the common part.

For configMap, secret, projected and downwardAPI.

Input: files. Output: a directory with exactly these files, in memory if one of them is secret. If the API objects are
not available, an existing volume keeps its files. So a deleted ConfigMap does not affect a running pod.
"""

import hashlib
import logging
import os
from dataclasses import dataclass
from typing import Final

from podkeeper.linux.tree import make_directory, open_child, open_directory, opened
from podkeeper.model.errors import TryLater
from podkeeper.volumes.atomic_writer import AtomicWriter, Files, current_version
from podkeeper.volumes.memory import MemoryDirectories
from podkeeper.volumes.paths import PodDirectory

log = logging.getLogger(__name__)

FILE_MODE: Final = 0o644
SECRET_MODE: Final = 0o600
# The kubelet puts these files into an emptyDir, so the directory has the modes of one.
_MODE: Final = 0o777
_MEMORY_MODE: Final = 0o1777
_SETGID: Final = 0o2000
_MOUNT_POINT_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class Payload:
    """The plan of a volume with files."""

    name: str
    kind: str  # a name like `configmap`
    files: Files
    in_memory: bool
    size_bytes: int | None  # of a directory in memory; None: the default of the kernel
    group: int | None
    mount_points: tuple[str, ...]  # paths in this volume at which others are mounted

    def set_up(self, pod: PodDirectory, memory: MemoryDirectories) -> str:
        """Create the volume and write the files. Return the path of the volume. Blocks."""
        directory = pod.volume(self.kind, self.name)
        setgid = 0 if self.group is None else _SETGID
        if self.in_memory:
            mode = _MEMORY_MODE | setgid
            path = memory.make(directory, mode=mode, group=self.group, size_bytes=self.size_bytes)
        else:
            path = directory.path
            with opened(directory.make_parent()) as parent:
                try:
                    os.close(open_child(parent, directory.name))
                except FileNotFoundError:
                    directory.make_child_of(parent, _MODE | setgid, self.group)
        for mount_point in self.mount_points:  # create them now, because the volume is read-only in containers
            os.close(make_directory(path, *mount_point.split("/"), mode=_MOUNT_POINT_MODE))
        AtomicWriter(path, self.group).write(self.files)
        return path

    def update(self, pod: PodDirectory, memory: MemoryDirectories) -> bool:
        """Write the files if the volume exists. Return whether anything changed. Blocks."""
        path = _ready_path(pod, memory, self.kind, self.name)
        return path is not None and AtomicWriter(path, self.group).write(self.files)

    def fingerprint(self) -> bytes:
        """Return a hash of the files, to detect changes."""
        digest = hashlib.blake2b(digest_size=16)
        for path, file in sorted(self.files.items()):
            # Lengths and separators, so that two different sets of files never give the same input.
            digest.update(f"{path}\0{file.mode}\0{file.owner}\0{len(file.data)}\0".encode())
            digest.update(file.data)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The plan of a volume whose files are not available now."""

    name: str
    kind: str
    reason: str

    def set_up(self, pod: PodDirectory, memory: MemoryDirectories) -> str:
        """Return the path of the existing volume. Raises TryLater if there is none. Blocks."""
        path = _ready_path(pod, memory, self.kind, self.name)
        if path is None:
            raise TryLater(self.reason)
        log.warning("volume %s of pod %s is not updated: %s", self.name, pod.uid, self.reason)
        return path


def _ready_path(pod: PodDirectory, memory: MemoryDirectories, kind: str, name: str) -> str | None:
    """Return the path of a volume that has a published version, or None."""
    directory = pod.volume(kind, name)
    path = memory.find(directory) or directory.path
    try:
        with opened(open_directory(path)) as top:
            return None if current_version(top) is None else path
    except OSError:
        return None
