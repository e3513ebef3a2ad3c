"""Directories in memory.

With permission to mount, each directory is a new tmpfs. Otherwise it is a directory in a tmpfs of the system.

    <root>/pods/<uid>/volumes/<kind>/<name>          a tmpfs
    <root>/pods/<uid>/volumes/<kind>/<name>  ->  <shared>/podkeeper-<user>-<root>/<uid>/<kind>/<name>

The second form is for ordinary users. The directory is below $XDG_RUNTIME_DIR or /dev/shm if that is a tmpfs, and only
this user can access it. The link is for users and for the next start of the agent. Deletions do not follow it: they
compute the path of a shared directory from the pod's UID. The kernel enforces the size of a new tmpfs, but not that of
a shared directory.
"""

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from podkeeper.linux.mounts import file_system_of, mount_tmpfs, mounts_below
from podkeeper.linux.tree import make_child, make_directory, open_child, open_directory, opened, remove_tree
from podkeeper.model.errors import TryLater
from podkeeper.volumes.paths import VolumeDirectory

log = logging.getLogger(__name__)

_IN_MEMORY: Final = ("tmpfs", "ramfs")
# ENOSYS: for example a seccomp filter. ENODEV: a kernel without tmpfs (mount(2)). In both cases a shared directory
# still works.
_NOT_PERMITTED: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENODEV)


def shared_memory(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories in memory that ordinary users can write to, best first."""
    # /run/user/<uid> is usually the value of XDG_RUNTIME_DIR. An agent that starts without the variable finds its
    # directories there.
    paths = (environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}", "/dev/shm")
    return tuple(dict.fromkeys(path for path in paths if path.startswith("/")))


class MemoryDirectories:
    """Creates and removes directories in memory. Blocks."""

    def __init__(self, root: str, shared: tuple[str, ...]) -> None:
        """`root` is the state directory. It keeps the shared directories of two agents apart."""
        self._name = f"podkeeper-{os.geteuid()}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
        self._shared = shared
        self._may_mount = True
        self._supports_noswap = True

    def make(
        self, directory: VolumeDirectory, *, mode: int, group: int | None = None, size_bytes: int | None = None
    ) -> str:
        """Return a directory in memory for a volume. An existing one stays as it is. Raises TryLater, OSError."""
        if directory.path in mounts_below(directory.path):
            return directory.path
        with opened(directory.make_parent()) as parent:
            link = _link_at(parent, directory.name)
            if link is None and self._may_mount and self._mount(parent, directory, mode, group, size_bytes):
                return directory.path
            return self._make_shared(parent, directory, link, mode, group)

    def find(self, directory: VolumeDirectory) -> str | None:
        """Return the existing directory of a volume, or None."""
        if directory.path in mounts_below(directory.path):
            return directory.path
        for base in self._own(directory):
            with suppress(OSError), opened(open_directory(base, directory.uid, directory.kind, directory.name)):
                return os.path.join(base, directory.uid, directory.kind, directory.name)
        return None

    def pods(self) -> frozenset[str]:
        """Return the UIDs of pods with shared directories."""
        found: set[str] = set()
        for base in self._bases():
            with suppress(OSError), opened(open_directory(base)) as descriptor:
                found.update(os.listdir(descriptor))
        return frozenset(found)

    def remove(self, uid: str) -> None:
        """Remove the shared directories of a pod. Raises OSError."""
        for base in self._bases():
            if _is_ours(base):
                remove_tree(base, uid)
                # Free the name, because `_make_shared` creates a link there.
                with suppress(OSError):  # other pods still have directories
                    os.rmdir(base)

    def shared_directories(self, uid: str) -> tuple[str, ...]:
        """Return the paths of the shared directories of a pod. They need not exist."""
        return tuple(os.path.join(base, uid) for base in self._bases() if _is_ours(base))

    def _mount(
        self, parent: int, directory: VolumeDirectory, mode: int, group: int | None, size_bytes: int | None
    ) -> bool:
        """Mount a tmpfs. Return False if this is not permitted."""
        options = [f"mode={mode:o}"]
        options += [] if group is None else [f"gid={group}"]
        options += [f"size={size_bytes}"] if size_bytes else []
        with opened(make_child(parent, directory.name, 0o777)) as mount_point:
            try:
                try:
                    # noswap, because secrets must not reach a swap device. The kubelet mounts them in the same way.
                    mount_tmpfs(mount_point, ",".join([*options, "noswap"] if self._supports_noswap else options))
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._supports_noswap:
                        raise
                    self._supports_noswap = False  # a kernel before 6.4
                    mount_tmpfs(mount_point, ",".join(options))
                return True
            except OSError as error:
                with suppress(OSError):
                    os.rmdir(directory.name, dir_fd=parent)
                if error.errno not in _NOT_PERMITTED:
                    raise
                self._may_mount = False
                log.warning(
                    "cannot mount tmpfs (%s): secrets and memory volumes are below %s, without size limits; "
                    "run as root to mount a tmpfs for each volume",
                    error.strerror,
                    " or ".join(self._shared) or "nothing",
                )
                return False

    def _make_shared(
        self, parent: int, directory: VolumeDirectory, link: str | None, mode: int, group: int | None
    ) -> str:
        base = next((base for base in self._own(directory) if link == _path_in(base, directory)), None) or self._best(
            directory
        )
        path = _path_in(base, directory)
        if link != path:
            if link is not None:
                os.unlink(directory.name, dir_fd=parent)
            os.symlink(path, directory.name, dir_fd=parent)  # first, so that no shared directory exists without a link
        with opened(make_directory(base, directory.uid, directory.kind, mode=0o700)) as kind:
            try:
                os.close(open_child(kind, directory.name))
            except FileNotFoundError:
                directory.make_child_of(kind, mode, group)
        return path

    def _best(self, directory: VolumeDirectory) -> str:
        """Return the first base that is in memory and belongs to this user.

        Create it if it is missing. Raises TryLater.
        """
        why = "no shared directory in memory is configured"
        for shared in self._shared:
            base = os.path.join(shared, self._name)
            try:
                if file_system_of(shared) not in _IN_MEMORY:
                    why = f"{shared} is not in memory"
                    continue
                # Create first and check afterwards: every user may write to /dev/shm and could create the directory, or
                # a link, in between.
                with suppress(FileExistsError):
                    os.mkdir(base, 0o700)
                if _is_ours(base):
                    return base
                why = f"{base} is not a directory of this user with mode 0700; remove it"
            except OSError as error:
                why = f"{base}: {error.strerror}"
        raise TryLater(
            f"cannot create volume {directory.name} in memory: no permission to mount tmpfs, and {why}; "
            "run as root, or set XDG_RUNTIME_DIR to a directory on a tmpfs"
        )

    def _bases(self) -> Iterator[str]:
        return (os.path.join(shared, self._name) for shared in self._shared)

    def _own(self, directory: VolumeDirectory) -> Iterator[str]:
        return (base for base in self._bases() if _is_ours(base))


def _path_in(base: str, directory: VolumeDirectory) -> str:
    return os.path.join(base, directory.uid, directory.kind, directory.name)


def _is_ours(base: str) -> bool:
    """Return whether a directory, which any user could have created, is ours and closed to other users."""
    try:
        # lstat: a link of another user must not count as its target.
        found = os.lstat(base)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _link_at(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None
