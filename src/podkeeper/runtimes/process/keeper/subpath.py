"""A part of a volume, opened without ever leaving the volume.

A volume's path and a relative path come in; a descriptor goes out, to be mounted from `/proc/self/fd`, so that there
is no gap between looking and mounting. Containers write in volumes: every step goes from an open directory to one
name in it. Links inside the volume are followed; one that leads out of it is refused, as is an absolute one. What is
missing is made, directories with the volume's own mode. `volumes/subpath.py` does the same for runtimes that take
paths; a keeper imports nothing from there. The Go ancestor is pkg/volume/util/subpath.
"""

import os
import stat
from collections import deque

from podkeeper.runtimes.process.keeper.launch import LaunchError

MOST_LINKS = 40
_WHATEVER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_subpath(volume: str, sub_path: str) -> int:
    """Hold a part of a volume open; the caller closes it. Raises LaunchError where it leads out, and OSError."""
    held = [os.open(volume, os.O_PATH | os.O_CLOEXEC)]  # may be a link: it is the spec's word, not a container's
    try:
        _descend(held, sub_path, LaunchError(f'subpath "{sub_path}" not within volume path "{volume}"'))
        return held.pop()
    finally:
        for descriptor in held:
            os.close(descriptor)


def _descend(held: list[int], sub_path: str, outside: LaunchError) -> None:
    """Go down name by name; what is passed stays in `held`, so that `..` leads back to it and no further."""
    mode = stat.S_IMODE(os.fstat(held[0]).st_mode)
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
        try:
            target = os.readlink("", dir_fd=child)
        finally:
            os.close(child)
        links += 1
        if target.startswith("/") or links > MOST_LINKS:
            raise outside
        names.extendleft(reversed(target.split("/")))


def _open_or_make(directory: int, name: str, mode: int) -> int:
    try:
        return os.open(name, _WHATEVER, dir_fd=directory)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return os.open(name, _WHATEVER, dir_fd=directory)  # somebody was quicker
    child = os.open(name, _WHATEVER, dir_fd=directory)
    if stat.S_ISDIR(os.fstat(child).st_mode):  # it may have been swapped already
        os.chmod(f"/proc/self/fd/{child}", mode)
    return child
