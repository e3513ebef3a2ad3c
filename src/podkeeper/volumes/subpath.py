"""Sub-paths of volumes: found, or made, without ever leaving the volume.

A volume's host path and a relative path come in; a host path without symbolic links goes out, or a descriptor for
whoever mounts it and wants no gap between looking and mounting. Links inside the volume are followed; one that leads
out of it is refused, as is an absolute one. A path that was found goes on showing what it showed then: a payload's
sub-path does not follow its updates, as in the reference. The Go ancestor is pkg/volume/util/subpath.
"""

import os
import stat
from collections import deque
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.volumes.tree import chmod_held, open_anything, opened

MOST_LINKS: Final = 40


def resolve_subpath(volume_path: str, sub_path: str, create: bool = True) -> str:
    """The host path of a sub-path, free of symbolic links. A missing one is made a directory with the volume's mode.

    Blocks. Raises NotConfigurable. Between this and the mount a container may plant a link: `open_subpath` has no gap.
    """
    with opened(open_subpath(volume_path, sub_path, create)) as held:
        return os.readlink(f"/proc/self/fd/{held}")


def open_subpath(volume_path: str, sub_path: str, create: bool = True) -> int:
    """Hold a sub-path open, to be mounted from `/proc/self/fd`. The caller closes it."""
    if sub_path.startswith("/"):
        raise NotConfigurable(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise NotConfigurable(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    try:
        # The volume's own path may be a link: it is the spec's word, not a container's.
        path = [os.open(volume_path, os.O_PATH | os.O_CLOEXEC)]
    except OSError as error:
        raise NotConfigurable(f"cannot open volume path {volume_path}: {error.strerror}") from error
    try:
        _descend(path, deque(sub_path.split("/")), volume_path, sub_path, create)
        return path.pop()
    except OSError as error:
        raise NotConfigurable(
            f'cannot open subpath "{sub_path}" of volume path "{volume_path}": {error.strerror}'
        ) from error
    finally:
        for descriptor in path:
            os.close(descriptor)


def _descend(path: list[int], names: deque[str], volume_path: str, sub_path: str, create: bool) -> None:
    """Follow names from the last of `path` on; what is passed is put on it, so that `..` leads back and no further."""
    outside = NotConfigurable(f'subpath "{sub_path}" not within volume path "{volume_path}"')
    volume_mode = stat.S_IMODE(os.fstat(path[0]).st_mode)
    links = 0
    while names:
        name = names.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            if len(path) == 1:
                raise outside
            os.close(path.pop())
            continue
        child = _open_or_make(path[-1], name, volume_mode if create else None)
        if not stat.S_ISLNK(os.fstat(child).st_mode):
            path.append(child)
            continue
        with opened(child):
            target = os.readlink("", dir_fd=child)
        links += 1
        if target.startswith("/") or links > MOST_LINKS:
            raise outside
        names.extendleft(reversed(target.split("/")))


def _open_or_make(directory: int, name: str, mode: int | None) -> int:
    try:
        return open_anything(directory, name)
    except FileNotFoundError:
        if mode is None:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return open_anything(directory, name)  # somebody was quicker
    child = open_anything(directory, name)
    if stat.S_ISDIR(os.fstat(child).st_mode):  # it may have been swapped already
        chmod_held(child, mode)
    return child
