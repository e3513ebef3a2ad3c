"""Directories in memory: a tmpfs of their own where we may mount, else a place in one that everybody has.

    <root>/pods/<uid>/volumes/<kind>/<name>          a tmpfs
    <root>/pods/<uid>/volumes/<kind>/<name>  ->  <shared>/podkeeper-<user>-<root>/<uid>/<kind>/<name>

The second is for the ordinary user: below $XDG_RUNTIME_DIR or /dev/shm, whichever really is memory, closed to all
others. The link is a sign for people and for the next start; nothing is ever deleted by following it: where a pod's
directories lie is worked out from its UID. The kernel keeps the size of a tmpfs; in a shared one nobody does.
"""

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.volumes.kernel import file_system_of, mount_tmpfs, mounts_below
from podkeeper.volumes.place import Place
from podkeeper.volumes.tree import make_child, make_directory, open_child, open_directory, opened, remove_tree

log = logging.getLogger(__name__)

_IN_MEMORY: Final = ("tmpfs", "ramfs")
_NOT_PERMITTED: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENODEV)


def shared_memory(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where an ordinary user finds memory that looks like a directory, best first."""
    # The second is the first, as a rule: an agent that is started without the variable still finds what it left there.
    paths = (environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}", "/dev/shm")
    return tuple(dict.fromkeys(path for path in paths if path.startswith("/")))


class Memory:
    """Makes and removes directories that never touch a disk. Blocks."""

    def __init__(self, root: str, shared: tuple[str, ...]) -> None:
        """`root` is the agent's directory; two agents on one machine do not meet in shared memory."""
        self._name = f"podkeeper-{os.geteuid()}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
        self._shared = shared
        self._may_mount = True
        self._knows_noswap = True

    def make(self, place: Place, *, mode: int, group: int | None = None, size_bytes: int | None = None) -> str:
        """The path of a directory in memory for a volume; one that is there stays as it is."""
        if place.path in mounts_below(place.path):
            return place.path
        with opened(place.make_parent()) as parent:
            link = _link_at(parent, place.name)
            if link is None and self._may_mount and self._mount(parent, place, mode, group, size_bytes):
                return place.path
            return self._make_shared(parent, place, link, mode, group)

    def find(self, place: Place) -> str | None:
        """The path of a directory that was made for a volume; None when there is none."""
        if place.path in mounts_below(place.path):
            return place.path
        for base in self._own(place):
            with suppress(OSError), opened(open_directory(base, place.uid, place.kind, place.name)):
                return os.path.join(base, place.uid, place.kind, place.name)
        return None

    def pods(self) -> frozenset[str]:
        """The UIDs that have something in shared memory."""
        found: set[str] = set()
        for base in self._bases():
            with suppress(OSError), opened(open_directory(base)) as directory:
                found.update(os.listdir(directory))
        return frozenset(found)

    def remove(self, uid: str) -> None:
        """Remove all that a pod has in shared memory."""
        for base in self._bases():
            if _is_ours(base):
                remove_tree(base, uid)
                with suppress(OSError):  # others are still there
                    os.rmdir(base)

    def places_of(self, uid: str) -> tuple[str, ...]:
        """The directories in shared memory that a pod may have something in."""
        return tuple(os.path.join(base, uid) for base in self._bases() if _is_ours(base))

    def _mount(self, parent: int, place: Place, mode: int, group: int | None, size_bytes: int | None) -> bool:
        """Mount a tmpfs, if we may."""
        options = [f"mode={mode:o}"]
        options += [] if group is None else [f"gid={group}"]
        options += [f"size={size_bytes}"] if size_bytes else []
        with opened(make_child(parent, place.name, 0o777)) as directory:
            try:
                try:
                    mount_tmpfs(directory, ",".join([*options, "noswap"] if self._knows_noswap else options))
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._knows_noswap:
                        raise
                    self._knows_noswap = False  # a kernel before 6.4
                    mount_tmpfs(directory, ",".join(options))
                return True
            except OSError as error:
                with suppress(OSError):
                    os.rmdir(place.name, dir_fd=parent)
                if error.errno not in _NOT_PERMITTED:
                    raise
                self._may_mount = False
                log.warning(
                    "may not mount tmpfs (%s): secrets and memory volumes lie below %s, and the kernel keeps no size; "
                    "run as root to give each its own",
                    error.strerror,
                    " or ".join(self._shared) or "nothing",
                )
                return False

    def _make_shared(self, parent: int, place: Place, link: str | None, mode: int, group: int | None) -> str:
        base = next((base for base in self._own(place) if link == _path_in(base, place)), None) or self._best(place)
        path = _path_in(base, place)
        if link != path:
            if link is not None:
                os.unlink(place.name, dir_fd=parent)
            os.symlink(path, place.name, dir_fd=parent)  # first: what is in memory is never without a sign on disk
        with opened(make_directory(base, place.uid, place.kind, mode=0o700)) as kind:
            try:
                os.close(open_child(kind, place.name))
            except FileNotFoundError:
                place.make_child_of(kind, mode, group)
        return path

    def _best(self, place: Place) -> str:
        """The first base that is memory, and ours; made where it is missing."""
        why = "no directory in memory is known here"
        for shared in self._shared:
            base = os.path.join(shared, self._name)
            try:
                if file_system_of(shared) not in _IN_MEMORY:
                    why = f"{shared} does not lie in memory"
                    continue
                with suppress(FileExistsError):
                    os.mkdir(base, 0o700)
                if _is_ours(base):
                    return base
                why = f"{base} is somebody else's: remove it"
            except OSError as error:
                why = f"{base}: {error.strerror}"
        raise TryLater(
            f"cannot keep volume {place.name} in memory: may not mount tmpfs, and {why}; "
            "run as root, or set XDG_RUNTIME_DIR to a directory on a tmpfs"
        )

    def _bases(self) -> Iterator[str]:
        return (os.path.join(shared, self._name) for shared in self._shared)

    def _own(self, place: Place) -> Iterator[str]:
        return (base for base in self._bases() if _is_ours(base))


def _path_in(base: str, place: Place) -> str:
    return os.path.join(base, place.uid, place.kind, place.name)


def _is_ours(base: str) -> bool:
    """Whether a directory that anyone could have made is a real one of ours, and closed to all others."""
    try:
        found = os.lstat(base)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _link_at(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None
