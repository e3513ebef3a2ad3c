"""Open a sub-path of a volume without leaving the volume.

Input: the path of a volume and a relative path. Output: a descriptor, to be mounted from `/proc/self/fd`, so that there
is no gap between the check and the mount. Containers write to volumes, so each step goes from an open directory to one
name in it. Links inside the volume are followed. Absolute links and links out of the volume are refused. Missing
directories are created with the mode of the volume.

A descriptor stays bound to the file that was opened. So the sub-path of a ConfigMap or Secret volume does not
follow updates, as in the kubelet. Kubelet counterpart: pkg/volume/util/subpath.
"""

import os
import stat
from collections import deque
from typing import Final

from podkeeper.linux.errors import SubPathError
from podkeeper.linux.tree import chmod_held, open_anything, opened

# The kernel's own limit for one path (path_resolution(7)).
MAX_LINKS: Final = 40


def open_subpath(volume: str, sub_path: str) -> int:
    """Open a sub-path (O_PATH). The caller closes it. Raises SubPathError if it leads out of the volume, OSError."""
    # The volume itself may be a link, because its path comes from the spec and not from a container.
    held = [os.open(volume, os.O_PATH | os.O_CLOEXEC)]
    try:
        _descend(held, sub_path, SubPathError(f'subpath "{sub_path}" not within volume path "{volume}"'))
        return held.pop()
    finally:
        for descriptor in held:
            os.close(descriptor)


def _descend(held: list[int], sub_path: str, outside: SubPathError) -> None:
    """Follow the names of a path. Every directory on the way stays in `held`, so that `..` cannot leave the volume."""
    mode = stat.S_IMODE(os.fstat(held[0]).st_mode)
    # Resolve the path ourselves, step by step. The kernel would follow a link out of the volume, and a check before the
    # open could be outdated (CVE-2017-1002101, CVE-2021-25741).
    names, links = deque(sub_path.split("/")), 0
    if sub_path.startswith("/"):
        raise outside
    while names:
        name = names.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            if len(held) == 1:
                raise outside
            os.close(held.pop())
            continue
        child = _open_or_make(held[-1], name, mode)
        if not stat.S_ISLNK(os.fstat(child).st_mode):
            held.append(child)
            continue
        with opened(child):
            target = os.readlink("", dir_fd=child)
        links += 1
        # Unlike the kubelet, refuse absolute links even if they end in the volume: they mean different paths on the
        # host and in the container.
        if target.startswith("/") or links > MAX_LINKS:
            raise outside
        names.extendleft(reversed(target.split("/")))


def _open_or_make(directory: int, name: str, mode: int) -> int:
    try:
        return open_anything(directory, name)
    except FileNotFoundError:
        pass
    try:
        # `chmod_held` sets the mode, because the umask applies to mkdir.
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return open_anything(directory, name)  # another process created it first
    child = open_anything(directory, name)
    if stat.S_ISDIR(os.fstat(child).st_mode):  # a container may have replaced it already
        chmod_held(child, mode)
    return child
