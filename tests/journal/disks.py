"""A disk whose syncs can fail, and that loses everything not synced at a power cut."""

import errno
import os
import stat
import threading
from pathlib import Path

from podkeeper.journal.disk import Durability


class Disk(Durability):
    """Records what is durable: the content of each file at its last sync, the names in each directory at its own.

    All directories below `root` are empty at first. `verdicts`: whether the next syncs succeed; without one they do.
    A file loses what was written since its last sync when one is refused, as the kernel may drop it.
    `gate`: syncs wait until it is open.
    """

    def __init__(self, root: Path) -> None:
        self.verdicts: list[bool] = []
        self.gate = threading.Event()
        self.gate.set()
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}

    def data(self, descriptor: int) -> None:
        self._sync(descriptor)

    def everything(self, descriptor: int) -> None:
        self._sync(descriptor)

    def _sync(self, descriptor: int) -> None:
        self.gate.wait(10)
        found = os.fstat(descriptor)
        is_directory = stat.S_ISDIR(found.st_mode)
        if self.verdicts and not self.verdicts.pop(0):
            if not is_directory:
                durable = len(self._contents.get(found.st_ino, b""))
                os.pwrite(descriptor, bytes(max(0, found.st_size - durable)), durable)
            raise OSError(errno.ENOSPC, "No space left on device")
        if is_directory:
            with os.scandir(descriptor) as entries:
                names = {entry.name: entry.inode() for entry in entries}
            self._names[os.readlink(f"/proc/self/fd/{descriptor}")] = names
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._contents[found.st_ino] = file.read()

    def take_for_durable(self, path: Path) -> None:
        """Mark a file as durable that was not written through this disk."""
        self._contents[path.stat().st_ino] = path.read_bytes()
        for place in (path, *path.parents):
            if place == self._root:
                break
            self._names.setdefault(str(place.parent), {})[place.name] = place.stat().st_ino

    def after_a_power_cut(self, path: Path) -> bytes:
        """Return the content of a file, or nothing if its name is lost."""
        inode = 0
        place = self._root
        for name in path.relative_to(self._root).parts:
            inode = self._names.get(str(place), {}).get(name, 0)
            if not inode:
                return b""
            place /= name
        return self._contents.get(inode, b"")
