"""Where volumes lie: the kubelet's layout, so that its users and tools find their way.

    <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>

The UID and the name come from a spec, so they are checked before they become part of a path.
"""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass

from podkeeper.model.errors import TryLater
from podkeeper.volumes.tree import make_child, make_directory, opened

PODS = "pods"
VOLUMES = "volumes"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one volume."""

    root: str
    uid: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        """The directory that is, or will be, the volume."""
        return os.path.join(self.root, PODS, self.uid, VOLUMES, self.kind, self.name)

    def make_parent(self) -> int:
        """Open the directory that the volume's stands in; made where it is missing."""
        return make_directory(self.root, PODS, self.uid, VOLUMES, self.kind)

    def make_child_of(self, parent: int, mode: int, group: int | None) -> None:
        """Make the volume's directory, complete from the first moment on; a crash leaves none, or all of it."""
        unfinished = f"..{self.name}.{secrets.token_hex(4)}"
        with opened(make_child(parent, unfinished, mode)) as directory:
            if group is not None:
                with suppress(PermissionError):  # an ordinary user cannot give it away; the reference goes on, too
                    os.chown(directory, -1, group)
                os.fchmod(directory, mode)
        os.rename(unfinished, self.name, src_dir_fd=parent, dst_dir_fd=parent)


@dataclass(frozen=True, slots=True)
class PodPlaces:
    """The places of a pod's volumes."""

    root: str
    uid: str

    def of(self, kind: str, name: str) -> Place:
        """The place of one volume; `kind` as in `empty-dir`."""
        return Place(self.root, self.uid, f"kubernetes.io~{kind}", checked(name, "volume name"))


def checked(name: str, what: str) -> str:
    """A text of a spec that may be the name of a directory. Raises TryLater."""
    if not name or "/" in name or "\0" in name or name == "." or name.startswith(".."):
        raise TryLater(f'cannot use {what} "{name}": it would not be the name of one directory; give it another')
    return name
