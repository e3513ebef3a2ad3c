"""What this room asks of the kernel: to mount and unmount, what is mounted, and on which mount an open file lies.

Paths and descriptors come in, `OSError`s come out; no program is started. Mounting goes through an open descriptor and
unmounting does not follow a link, so that neither can be led elsewhere while it is under way.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_UMOUNT_NOFOLLOW: Final = 8
_BIND: Final = 4096

_libc = ctypes.CDLL(None, use_errno=True)  # gives the interpreter's lock away during a call


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of the kernel's list."""

    path: str
    file_system: str


def mount_tmpfs(directory: int, options: str) -> None:
    """Mount an empty tmpfs on an open directory."""
    target = f"/proc/self/fd/{directory}".encode()
    _check(_libc.mount(b"tmpfs", target, b"tmpfs", ctypes.c_ulong(0), options.encode()), "tmpfs")


def bind_mount(source: int, target: int) -> None:
    """Let what one descriptor holds appear on what another holds; what is mounted below it does not come along."""
    paths = [f"/proc/self/fd/{descriptor}".encode() for descriptor in (source, target)]
    _check(_libc.mount(*paths, None, ctypes.c_ulong(_BIND), None), "bind")


def unmount(path: str) -> None:
    """Unmount the topmost file system at a path."""
    _check(_libc.umount2(os.fsencode(path), _UMOUNT_NOFOLLOW), path)


def mount_points() -> Iterator[MountPoint]:
    """All that this process sees mounted, parents before what lies on them."""
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.split(b" ")
            path = os.fsdecode(_unescaped(fields[4]))
            if not path.endswith("//deleted"):  # its directory is gone: no path leads there
                yield MountPoint(path, fields[fields.index(b"-", 6) + 1].decode())


def mounts_below(directory: str) -> list[str]:
    """The mount points at a directory and below it."""
    return [mount.path for mount in mount_points() if (mount.path + "/").startswith(directory + "/")]


def file_system_of(path: str) -> str:
    """The kind of file system an absolute path lies on."""
    path = os.path.realpath(path) + "/"
    best = MountPoint("", "")
    for mount in mount_points():  # of two on the same path the later one counts: it lies on top
        if path.startswith(mount.path.rstrip("/") + "/") and len(mount.path) >= len(best.path):
            best = mount
    return best.file_system


def mount_id(descriptor: int) -> int:
    """Which mount an open file lies on. A device number would not do: a bind mount has that of its source."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as lines:
        for line in lines:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(f"cannot tell the mount of descriptor {descriptor}: the kernel does not say")


def _unescaped(path: bytes) -> bytes:
    """The kernel writes blanks, tabs, newlines and backslashes as octal numbers."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path) if b"\\" in path else path


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
