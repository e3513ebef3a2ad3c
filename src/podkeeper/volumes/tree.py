"""Directories that others may have written into: made, measured and removed without being led astray.

Every step goes from an open directory to a name in it and never follows a symbolic link, so that a link planted by a
container leads nowhere, not even one that is planted meanwhile. `remove_tree` and `disk_usage` stay on one mount: each
directory is checked once it is open. What lies behind a mount is never deleted.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.volumes.kernel import mount_id

DIRECTORY_MODE: Final = 0o750
DEEPEST: Final = 64  # directories held open at a time; a tree may be deeper than a process may hold files
DEEPEST_MEASURED: Final = 256
MOST_ROUNDS: Final = 1000

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WHATEVER: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(base: str, *names: str) -> int:
    """Open a directory by names from a trusted one on. No name may be a symbolic link."""
    descriptor = os.open(base, _DIRECTORY)
    for name in names:
        with opened(descriptor):
            descriptor = open_child(descriptor, name)
    return descriptor


def open_child(directory: int, name: str) -> int:
    """Open a directory in an open one."""
    return os.open(_single(name), _DIRECTORY, dir_fd=directory)


def open_anything(directory: int, name: str) -> int:
    """Hold whatever is under a name, a symbolic link itself too; it can be looked at, not read."""
    return os.open(_single(name), _WHATEVER, dir_fd=directory)


def make_directory(base: str, *names: str, mode: int = DIRECTORY_MODE) -> int:
    """Open a directory by names from a trusted one on; what is missing is made."""
    descriptor = os.open(base, _DIRECTORY)
    for name in names:
        with opened(descriptor) as parent:
            descriptor = make_child(parent, name, mode)
    return descriptor


def make_child(directory: int, name: str, mode: int) -> int:
    """Open a directory in an open one; made with just this mode where it is missing."""
    try:
        os.mkdir(_single(name), 0o700, dir_fd=directory)
    except FileExistsError:
        return open_child(directory, name)
    descriptor = open_child(directory, name)
    os.fchmod(descriptor, mode)  # whatever the umask
    return descriptor


def remove_tree(base: str, *names: str) -> None:
    """Remove what is under names from a trusted directory on, with all below. Raises TryLater at a mount; gone is gone.

    What cannot be removed raises OSError, and the rest stays.
    """
    try:
        parent = open_directory(base, *names[:-1])
    except FileNotFoundError:
        return
    with opened(parent):
        try:
            is_directory = stat.S_ISDIR(os.lstat(names[-1], dir_fd=parent).st_mode)
        except FileNotFoundError:
            return
        if not is_directory:
            os.unlink(names[-1], dir_fd=parent)
            return
        mount = mount_id(parent)
        where = os.path.join(base, *names)
        with opened(_open_to_empty(parent, names[-1], mount, where)) as top:
            _empty(top, top, mount, where, 0)
        os.rmdir(names[-1], dir_fd=parent)


def disk_usage(directory: str, stop_above: int) -> int:
    """The bytes that a tree takes on its file system, links counted once; not much more is counted than asked."""
    total = 0
    seen: set[int] = set()
    with opened(os.open(directory, _DIRECTORY)) as top:
        for found in _everything_below(top, mount_id(top), 0):
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if found.st_ino in seen:
                    continue
                seen.add(found.st_ino)
            total += found.st_blocks * 512
            if total > stop_above:
                break
    return total


def chmod_held(descriptor: int, mode: int) -> None:
    """Change the mode of what is held without being open for reading."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)


def _everything_below(directory: int, mount: int, depth: int) -> Iterator[os.stat_result]:
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # gone, or changed into something else, while we look
                yield entry.stat(follow_symlinks=False)
                if depth < DEEPEST_MEASURED and entry.is_dir(follow_symlinks=False):
                    with opened(open_child(directory, entry.name)) as child:
                        if mount_id(child) == mount:
                            yield from _everything_below(child, mount, depth + 1)


def _empty(top: int, directory: int, mount: int, where: str, depth: int) -> None:
    for _ in range(MOST_ROUNDS):  # names may be passed over while others are being removed
        is_empty = True
        with os.scandir(directory) as entries:
            for entry in entries:
                is_empty = False
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=directory)
                elif depth < DEEPEST:
                    path = f"{where}/{entry.name}"
                    with opened(_open_to_empty(directory, entry.name, mount, path)) as child:
                        _empty(top, child, mount, path, depth + 1)
                    os.rmdir(entry.name, dir_fd=directory)
                else:  # too deep: taken up to the top, where it is met again
                    os.rename(entry.name, f"..{secrets.token_hex(8)}", src_dir_fd=directory, dst_dir_fd=top)
        if is_empty:
            return
    raise TryLater(f"cannot empty {where}: somebody goes on writing into it")


def _open_to_empty(directory: int, name: str, mount: int, where: str) -> int:
    """Open a directory that is to go, if it lies on the same mount, and see to it that names can be removed from it."""
    try:
        child = open_child(directory, name)
    except PermissionError:
        with opened(open_anything(directory, name)) as held:
            if stat.S_ISDIR(os.fstat(held).st_mode) and mount_id(held) == mount:
                with suppress(PermissionError):  # not ours: the next attempt to open it will tell
                    chmod_held(held, 0o700)
        child = open_child(directory, name)
    try:
        if mount_id(child) != mount:
            raise TryLater(f"cannot remove {where}: something is mounted there, and what lies behind it must stay")
        if os.fstat(child).st_mode & 0o700 != 0o700:
            with suppress(PermissionError):  # not ours: the removal will tell
                os.fchmod(child, 0o700)
    except BaseException:
        os.close(child)
        raise
    return child


def _single(name: str) -> str:
    """A name that leads to no other directory."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not the name of a file", name)
    return name
