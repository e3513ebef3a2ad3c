"""Open, create, measure and remove directories that untrusted processes write to.

Each step goes from an open directory to one name in it and never follows a symbolic link. So a link that a container
creates, even during the operation, is never followed. `remove_tree` and `disk_usage` check each open directory and stay
on one mount: files behind a mount are never deleted. All functions raise OSError.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from podkeeper.linux.mounts import mount_id

DIRECTORY_MODE: Final = 0o750
MAX_OPEN_DEPTH: Final = 64  # a tree can be deeper than a process can hold open files
MAX_MEASURED_DEPTH: Final = 256
# A bound, because a process that is still alive may create files faster than we delete them.
MAX_ROUNDS: Final = 1000

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANYTHING: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(base: str, *names: str) -> int:
    """Open a directory below a trusted one. No name may be a symbolic link."""
    descriptor = os.open(base, _DIRECTORY)
    for name in names:
        with opened(descriptor):
            descriptor = open_child(descriptor, name)
    return descriptor


def open_child(directory: int, name: str) -> int:
    """Open a directory in an open directory."""
    return os.open(_checked(name), _DIRECTORY, dir_fd=directory)


def open_anything(directory: int, name: str) -> int:
    """Open any file, directory or link by name (O_PATH): the descriptor can be inspected, not read."""
    return os.open(_checked(name), _ANYTHING, dir_fd=directory)


def make_directory(base: str, *names: str, mode: int = DIRECTORY_MODE) -> int:
    """Open a directory below a trusted one. Missing directories are created."""
    descriptor = os.open(base, _DIRECTORY)
    for name in names:
        with opened(descriptor) as parent:
            descriptor = make_child(parent, name, mode)
    return descriptor


def make_child(directory: int, name: str, mode: int) -> int:
    """Open a directory in an open directory. A missing one is created with exactly this mode."""
    try:
        os.mkdir(_checked(name), 0o700, dir_fd=directory)
    except FileExistsError:
        return open_child(directory, name)
    descriptor = open_child(directory, name)
    os.fchmod(descriptor, mode)  # regardless of the umask
    return descriptor


def remove_tree(base: str, *names: str) -> None:
    """Remove a file or directory tree below a trusted directory. Missing entries are no errors.

    Raises OSError (EBUSY) at a mount, and for an entry that cannot be removed. The remaining entries stay.
    """
    try:
        parent = open_directory(base, *names[:-1])
    except FileNotFoundError:
        return
    with opened(parent), suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(names[-1], dir_fd=parent).st_mode):
            os.unlink(names[-1], dir_fd=parent)
            return
        mount = mount_id(parent)
        path = os.path.join(base, *names)
        with opened(_open_to_empty(parent, names[-1], mount, path)) as top:
            _empty(top, top, mount, path, 0)
        os.rmdir(names[-1], dir_fd=parent)


def disk_usage(directory: str, stop_above: int) -> int:
    """Return the bytes that a tree uses on its file system. Hard links count once.

    Stop counting at the first file that exceeds `stop_above`.
    """
    total = 0
    seen: set[int] = set()
    with opened(os.open(directory, _DIRECTORY)) as top:
        for found in _everything_below(top, mount_id(top), 0):
            # The inode number is enough, because the walk stays on one mount.
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if found.st_ino in seen:
                    continue
                seen.add(found.st_ino)
            # st_blocks counts units of 512 bytes on every file system (stat(2)). Sparse files count what they use.
            total += found.st_blocks * 512
            if total > stop_above:
                break
    return total


def chmod_held(descriptor: int, mode: int) -> None:
    """Change the mode of a file that `open_anything` opened."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)  # fchmod(2) refuses O_PATH descriptors


def _everything_below(directory: int, mount: int, depth: int) -> Iterator[os.stat_result]:
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # removed or replaced since the listing
                yield entry.stat(follow_symlinks=False)
                if depth < MAX_MEASURED_DEPTH and entry.is_dir(follow_symlinks=False):
                    with opened(open_child(directory, entry.name)) as child:
                        if mount_id(child) == mount:
                            yield from _everything_below(child, mount, depth + 1)


def _empty(top: int, directory: int, mount: int, path: str, depth: int) -> None:
    # Repeat, because a listing may skip names while other names are removed.
    for _ in range(MAX_ROUNDS):
        is_empty = True
        with os.scandir(directory) as entries:
            for entry in entries:
                is_empty = False
                with suppress(FileNotFoundError):  # another process removes the same tree
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=directory)
                    elif depth < MAX_OPEN_DEPTH:
                        below = f"{path}/{entry.name}"
                        with opened(_open_to_empty(directory, entry.name, mount, below)) as child:
                            _empty(top, child, mount, below, depth + 1)
                        os.rmdir(entry.name, dir_fd=directory)
                    else:  # too deep: move it up to the top, where the next round removes it
                        os.rename(entry.name, f"..{os.urandom(8).hex()}", src_dir_fd=directory, dst_dir_fd=top)
        if is_empty:
            return
    raise OSError(errno.EBUSY, "cannot be emptied: another process keeps writing to it", path)


def _open_to_empty(directory: int, name: str, mount: int, path: str) -> int:
    """Open a directory that will be removed and make it writable. Raises OSError if it lies on another mount."""
    try:
        child = open_child(directory, name)
    except PermissionError:
        # A container may leave directories without permissions, which only root can open.
        with opened(open_anything(directory, name)) as held:
            if stat.S_ISDIR(os.fstat(held).st_mode) and mount_id(held) == mount:
                with suppress(PermissionError):  # a file of another user: the next call raises
                    chmod_held(held, 0o700)
        child = open_child(directory, name)
    try:
        if mount_id(child) != mount:
            raise OSError(
                errno.EBUSY,
                "a file system is mounted here; unmount it first, because files behind a mount are not deleted",
                path,
            )
        if os.fstat(child).st_mode & 0o700 != 0o700:
            with suppress(PermissionError):  # a directory of another user: the removal raises
                os.fchmod(child, 0o700)
    except BaseException:
        os.close(child)
        raise
    return child


def _checked(name: str) -> str:
    """Return a name that is a single path component. Raises OSError."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not a file name: empty, '.', '..' or with a slash or NUL", name)
    return name
