"""Delete directories that containers wrote to, and nothing behind a mount.

A mount below such a directory is a leftover or belongs to another program. It is unmounted first, not emptied. If that
fails, nothing is deleted.
"""

import os

from podkeeper.linux import libc, mounts
from podkeeper.linux.tree import remove_tree


def remove_trees(*directories: str) -> None:
    """Unmount everything below the directories, then delete them. Missing ones are no error. Raises OSError."""
    paths = [os.path.realpath(directory) for directory in directories]
    reachable = [mount.path for mount in mounts.read() if mount.is_reachable]
    # Inner mounts first: a lazy unmount of the outer one would take them along, and then their own unmount would fail.
    for mounted in sorted(reachable, key=len, reverse=True):
        if any(mounts.is_below(mounted, path) for path in paths):
            libc.unmount(mounted)
    for path in paths:
        remove_tree(os.path.dirname(path), os.path.basename(path))
