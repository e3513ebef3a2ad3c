"""Directories of volumes, in the kubelet's layout.

    <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>

The UID and the name come from a spec, so they are checked before they become part of a path.
"""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass

from podkeeper.linux.tree import make_child, make_directory, opened
from podkeeper.model.errors import TryLater

PODS = "pods"
VOLUMES = "volumes"


@dataclass(frozen=True, slots=True)
class VolumeDirectory:
    """The directory of one volume. It need not exist."""

    root: str
    uid: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.root, PODS, self.uid, VOLUMES, self.kind, self.name)

    def make_parent(self) -> int:
        """Open the parent directory. A missing one is created."""
        return make_directory(self.root, PODS, self.uid, VOLUMES, self.kind)

    def make_child_of(self, parent: int, mode: int, group: int | None) -> None:
        """Create the directory atomically with its mode and group, so that a crash leaves either none or all of it."""
        # No volume has a name that begins with `..` (`checked`).
        unfinished = f"..{self.name}.{secrets.token_hex(4)}"
        with opened(make_child(parent, unfinished, mode)) as directory:
            if group is not None:
                # Ordinary users may not change the group; continue without it, as the kubelet does.
                with suppress(PermissionError):
                    os.chown(directory, -1, group)
                os.fchmod(directory, mode)
        os.rename(unfinished, self.name, src_dir_fd=parent, dst_dir_fd=parent)


@dataclass(frozen=True, slots=True)
class PodDirectory:
    """The directories of the volumes of one pod."""

    root: str
    uid: str

    def volume(self, kind: str, name: str) -> VolumeDirectory:
        """Return the directory of a volume. `kind` is a name like `empty-dir`. Raises TryLater."""
        return VolumeDirectory(self.root, self.uid, f"kubernetes.io~{kind}", checked(name, "volume name"))


def checked(name: str, what: str) -> str:
    """Return a text of a spec that can be a directory name. Raises TryLater."""
    if not name or "/" in name or "\0" in name or name == "." or name.startswith(".."):
        raise TryLater(f'cannot use {what} "{name}": not a valid directory name')
    return name
