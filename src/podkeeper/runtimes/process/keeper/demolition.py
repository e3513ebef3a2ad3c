"""Deleting what containers left, and never anything beyond a mount.

A mount below the directory can only be somebody else's, or the mistake of a day: it is taken off, not
emptied; if that cannot be done nothing is deleted at all.
"""

import os
import stat
from contextlib import suppress

from podkeeper.runtimes.process.keeper import libc, mounts


def demolish(*directories: str) -> None:
    """Delete directories and all that is in them, if they are there; raises OSError when something is in the way."""
    paths = [os.path.realpath(directory) for directory in directories]
    for mount in sorted(mounts.read(), key=lambda mount: len(mount.point), reverse=True):
        if any(mounts.is_below(mount.point, path) for path in paths):
            libc.unmount(mount.point)
    for path in paths:
        _delete_tree(path)


def _delete_tree(path: str) -> None:
    try:
        parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        about = os.stat(os.path.basename(path), dir_fd=parent, follow_symlinks=False)
        _delete(os.path.basename(path), parent, about.st_dev)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _delete(name: str, parent: int, device: int) -> None:
    """Delete one entry, by descriptors all the way down, so that no link can lead us astray."""
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if about.st_dev != device:
        raise OSError(f"cannot delete {name}: something is mounted there")
    if about.st_mode & stat.S_IRWXU != stat.S_IRWXU:  # the kernel's own work directories
        with suppress(OSError):
            os.chmod(name, 0o700, dir_fd=parent)
    here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        for entry in os.listdir(here):
            _delete(entry, here, device)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=parent)
