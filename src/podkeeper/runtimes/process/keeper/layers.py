"""Decide how each part of the host's file tree is shown to a container.

Input: the visible mounts (`linux.mounts`). Output: a list of `Layer`s, outermost first. There are two ways:

* `whole`: one overlay over `/`, and one over each real file system below it, because an overlay does not show mounts
  below its lower directory.
* `split`: for ordinary users and for machines without overlays. The kernel does not allow an ordinary user an overlay
  over a directory that has mounts below it. Such a directory is created empty in memory, and each of its entries is a
  layer of its own.

`/proc`, `/sys` and `/dev` are never layers: a container gets its own (`rootfs.py`).
"""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from podkeeper.linux.mounts import MountPoint, is_below

COPY: Final = "copy"  # an overlay: writes stay private
READ: Final = "read"  # a read-only view of the host's file or directory
EMPTY: Final = "empty"  # a new directory
LINK: Final = "link"  # the same symbolic link

OWN: Final = ("/proc", "/sys", "/dev")
SCRATCH: Final = ("/tmp", "/var/tmp")  # new and writable even if everything else is read-only
# Where programs of the host listen (file-hierarchy(7)).
RUNTIME_DIRECTORY: Final = "/run"
# File systems whose files an overlay can copy. Network and FUSE file systems are shown read-only instead, because an
# overlay calls its lower file system, and a dead server would block these calls.
LOCAL: Final = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "zfs", "bcachefs", "ramfs", "reiserfs", "jfs")
)
# Not files of the host: kernel interfaces, automount triggers and the roots of other containers.
NOT_SHOWN: Final = frozenset(
    ("autofs", "nsfs", "overlay", "cgroup", "cgroup2", "proc", "sysfs", "devtmpfs", "devpts", "mqueue")
)
# Mounts below these directories are the roots and network namespaces of other containers.
OTHER_RUNTIMES: Final = (
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher",
    "/run/docker", "/run/containerd", "/run/containers", "/run/netns", "/run/k3s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of the host's tree, and how a container sees it."""

    path: str
    how: str
    mode: int = 0o755  # of a new directory
    link: str = ""


def whole(table: dict[str, MountPoint], hidden: Collection[str] = ()) -> list[Layer]:
    """Return the layers for a machine whose kernel allows overlays over every directory."""
    layers = [Layer("/", COPY)]
    for path, mount in table.items():
        if path != "/" and not _is_excluded(path, hidden) and (how := _way(mount)) != EMPTY:
            # A file can be a mount point, too, but not the lower directory of an overlay.
            layers.append(Layer(path, READ if how == COPY and not os.path.isdir(path) else how))
    return layers


def split(
    table: dict[str, MountPoint], hidden: Collection[str] = (), *, overlay: bool = True, cuts: Collection[str] = ()
) -> list[Layer]:
    """Return the layers if directories with mounts below them, and those in `cuts`, must be created again."""
    layers: list[Layer] = []
    waiting = [("/", COPY)]
    while waiting:
        path, way = waiting.pop()
        way = _way(table[path]) if path in table else way
        if path != "/" and path not in cuts and not any(point != path and is_below(point, path) for point in table):
            if way == COPY and (not os.access(path, os.R_OK | os.X_OK) or not _entries(path)):
                # Use a new directory for an empty one, because it costs less than an overlay. Also use it for an
                # unreadable one, because an overlay over it would refuse even new files.
                way = EMPTY
            way = READ if way == COPY and not overlay else way
            layers.append(Layer(path, way, _mode(path) if way == EMPTY else 0))
            continue
        layers.append(Layer(path, EMPTY, _mode(path)))
        for entry in _entries(path):
            if entry.path in OWN or entry.path in hidden:
                layers.append(Layer(entry.path, EMPTY))
            elif entry.path in SCRATCH and not overlay:
                layers.append(Layer(entry.path, EMPTY, 0o1777))
            elif entry.is_symlink():
                layers.append(Layer(entry.path, LINK, link=os.readlink(entry.path)))
            elif entry.is_dir():
                waiting.append((entry.path, way))
            elif not _is_channel(entry.path):
                layers.append(Layer(entry.path, READ))
    return layers


def directories_with_sockets(top: str = RUNTIME_DIRECTORY) -> set[str]:
    """Return the directories at and below one that have sockets or pipes below them, for `cuts` of `split`."""
    found: set[str] = set()
    for path, _, names in os.walk(top):
        if any(_is_channel(os.path.join(path, name)) for name in names):
            while path not in found and is_below(path, top):
                found.add(path)
                path = os.path.dirname(path)
    return found


def _is_channel(path: str) -> bool:
    """Return whether a file is a socket or a pipe.

    A container could connect to a program of the host through it, even if the mount is read-only. In an overlay it does
    not work, because the overlay has a node of its own.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return True  # not visible to this user, so there is nothing to show
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _way(mount: MountPoint) -> str:
    if mount.path == "/":
        return COPY
    if mount.file_system in NOT_SHOWN or _is_excluded(mount.path, OTHER_RUNTIMES):
        return EMPTY
    return COPY if mount.file_system in LOCAL and not mount.read_only else READ


def _is_excluded(path: str, others: Collection[str]) -> bool:
    return any(is_below(path, top) for tops in (OWN, others) for top in tops)


def _mode(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0o755


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # unreadable, so it is shown empty
