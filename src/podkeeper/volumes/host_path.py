"""hostPath volumes: a path of the machine, checked and possibly created.

It is never removed or changed.

Kubelet counterpart: pkg/volume/hostpath, including its messages.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.volumes.memory import MemoryDirectories
from podkeeper.volumes.paths import PodDirectory

_CHECKS: Final[dict[str, tuple[Callable[[int], bool], str]]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


@dataclass(frozen=True, slots=True)
class HostPath:
    """The plan of a hostPath volume."""

    name: str
    path: str
    type: str

    def set_up(self, pod: PodDirectory, memory: MemoryDirectories) -> str:
        """Check or create the path and return it. Blocks as long as its file system hangs. Raises TryLater."""
        if ".." in self.path.split("/"):
            raise TryLater(f"invalid HostPath `{self.path}`: must not contain '..'")
        # Without a type, the API requires no check. The path may not exist yet.
        if not self.type:
            return self.path
        if self.type not in _CHECKS:
            raise TryLater(f"{self.type} is an invalid volume type")
        fits, wanted = _CHECKS[self.type]
        mode = _mode_of(self.path)
        if mode is None and self.type.endswith("OrCreate"):
            self._make()
        elif mode is None or not fits(mode):
            raise TryLater(f"hostPath type check failed: {self.path} is not {wanted}")
        return self.path

    def _make(self) -> None:
        what = "mkdir" if self.type == "DirectoryOrCreate" else "open"
        try:
            if what == "mkdir":
                os.makedirs(self.path, 0o755, exist_ok=True)
            else:
                # O_NONBLOCK, because the path may be a named pipe by now, and opening one would block.
                os.close(os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644))
        except OSError as error:
            raise TryLater(f"{what} {self.path}: {(error.strerror or str(error)).lower()}") from error


def _mode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError:
        return None
