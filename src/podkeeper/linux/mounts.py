"""The mount table of this process, mounting and unmounting.

Input: /proc/self/mountinfo, paths and descriptors. Output: `MountPoint`s. Failed system calls raise OSError.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from podkeeper.linux import libc

MOUNTINFO: Final = "/proc/self/mountinfo"

_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
# The kernel appends this to a mount point whose directory was deleted.
_DELETED: Final = "//deleted"


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of mountinfo."""

    id: int
    parent: int
    path: str
    file_system: str
    read_only: bool = False
    shared: bool = False
    root: str = "/"  # the part of the file system that is mounted here
    super_options: tuple[str, ...] = ()

    @property
    def is_reachable(self) -> bool:
        """Return False if the directory under the mount was deleted, so that no path leads to the mount."""
        return not self.path.endswith(_DELETED)


# ---- the mount table -------------------------------------------------------------------------


def parse(text: str) -> list[MountPoint]:
    """Return the mounts in the text of a mountinfo file, parents first."""
    return list(_parsed(text))


@lru_cache(maxsize=1)  # the table seldom changes, and an unmount of one pod reads it several times
def _parsed(text: str) -> tuple[MountPoint, ...]:
    found = []
    for line in text.splitlines():
        # The number of tags before " - " varies (proc(5)).
        left, _, right = line.partition(" - ")
        number, parent, _, root, path, options, *tags = left.split(" ")
        kind, _, more = right.partition(" ")
        found.append(
            MountPoint(
                int(number),
                int(parent),
                _unescaped(path),
                kind,
                read_only="ro" in options.split(","),
                shared=any(tag.startswith("shared:") for tag in tags),
                root=_unescaped(root),
                super_options=tuple(more.rpartition(" ")[2].split(",")),
            )
        )
    return tuple(found)


def read(mountinfo: str = MOUNTINFO) -> list[MountPoint]:
    """Return the mounts that this process sees, parents first."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        return parse(file.read())


def visible(mounts: Iterable[MountPoint]) -> dict[str, MountPoint]:
    """Return the mounts that no other mount covers, by path, with `/` first."""
    children: dict[int, list[MountPoint]] = {}
    ids = {mount.id for mount in mounts}
    for mount in mounts:
        children.setdefault(mount.parent if mount.parent in ids and mount.parent != mount.id else -1, []).append(mount)
    found: dict[str, MountPoint] = {}
    waiting = [mount for mount in children.get(-1, []) if mount.path == "/"][-1:]
    while waiting:
        top = waiting.pop()
        below = children.get(top.id, [])
        if over := [mount for mount in below if mount.path == top.path]:
            waiting.append(over[-1])  # the last mount covers `top` completely
            continue
        found[top.path] = top
        paths = {mount.path for mount in below}
        for path, mount in {mount.path: mount for mount in below}.items():
            if not any(other != path and is_below(path, other) for other in paths):
                waiting.append(mount)
    return dict(sorted(found.items()))


def mounts_below(directory: str) -> list[str]:
    """Return the mount points at a directory and below it, without symbolic links in the path."""
    return [mount.path for mount in read() if mount.is_reachable and is_below(mount.path, directory)]


def file_system_of(path: str) -> str:
    """Return the file system type of an absolute path."""
    path = os.path.realpath(path)
    holding = [mount for mount in read() if mount.is_reachable and is_below(path, mount.path)]
    longest = max((len(mount.path) for mount in holding), default=0)
    # If several mounts have the same path, the last one is visible.
    return next((mount.file_system for mount in reversed(holding) if len(mount.path) == longest), "")


def mount_id(descriptor: int) -> int:
    """Return the mount that an open file lies on.

    A device number does not identify a mount, because a bind mount has the number of its source.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as lines:
        for line in lines:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(f"cannot determine the mount of descriptor {descriptor}: no mnt_id in its fdinfo")


def is_below(path: str, top: str) -> bool:
    """Return whether a path is `top` or lies below it."""
    return top == "/" or path == top or path.startswith(top + "/")


def innermost(path: str, tops: Iterable[str]) -> str:
    """Return the longest of these paths that contains `path`, or `/`."""
    return max((top for top in tops if is_below(path, top)), key=len, default="/")


# ---- mounting --------------------------------------------------------------------------------


def mount_tmpfs(directory: int, options: str) -> None:
    """Mount an empty tmpfs on an open directory."""
    # Through the descriptor: another process that replaces the directory with a link cannot redirect the mount.
    libc.mount("tmpfs", f"/proc/self/fd/{directory}", "tmpfs", 0, options)


def bind_mount(source: int, target: int) -> None:
    """Bind one open file or directory onto another, without the mounts below it."""
    libc.mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", None, libc.MS_BIND)


def unmount(path: str) -> None:
    """Unmount the topmost file system at a path."""
    # Do not follow links, because a container may have replaced the directory. No MNT_DETACH: a volume that is in use
    # stays mounted, and the caller retries (k/k issue 60987).
    libc.unmount(path, libc.UMOUNT_NOFOLLOW)


def _unescaped(path: str) -> str:
    """Replace the octal numbers that the kernel writes for blanks, tabs, newlines and backslashes."""
    if "\\" not in path:
        return path
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), os.fsencode(path)))
