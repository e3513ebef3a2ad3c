"""Sub-paths of volumes for runtimes that take paths: each one mounted at a place that no container can reach.

    <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index of the mount>

A runtime resolves the path it is given once more, by itself, and a container may swap a directory for a link meanwhile.
So the sub-path is opened (`subpath.py`: no link leads out of the volume), and what is held open is bound to a place of
ours; that place is what the runtime is told. What is bound there already stays if it is still the same file, as for a
container that starts again. `HostVolumes.unmount` takes the mounts down, and the directories with them. The Go ancestor
is `doBindSubPath` in pkg/volume/util/subpath.
"""

import os
import stat
from typing import Final

from podkeeper.volumes.kernel import bind_mount, mounts_below, unmount
from podkeeper.volumes.place import PODS, checked
from podkeeper.volumes.subpath import open_subpath
from podkeeper.volumes.tree import make_child, make_directory, open_anything, opened

SUB_PATHS: Final = "volume-subpaths"
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750


def bind_subpath(root: str, uid: str, volume: str, volume_path: str, sub_path: str, container: str, index: int) -> str:
    """Bind a part of a volume to its place, and return that. What is missing of it is made a directory.

    Blocks. `root` has no symbolic links in it. Raises NotConfigurable, TryLater, OSError.
    """
    names = (checked(uid, "pod UID"), SUB_PATHS, checked(volume, "volume name"), checked(container, "container name"))
    target = os.path.join(root, PODS, *names, str(index))
    with (
        opened(open_subpath(volume_path, sub_path)) as source,
        opened(make_directory(root, PODS, *names, mode=_DIRECTORY_MODE)) as parent,
    ):
        _uncover(parent, target, source)
        if target not in mounts_below(target):
            with opened(_make_target(parent, str(index), source)) as held:
                bind_mount(source, held)
    return target


def _uncover(parent: int, target: str, source: int) -> None:
    """Unmount whatever is bound to a place and is not what shall be there."""
    while target in mounts_below(target):
        with opened(open_anything(parent, os.path.basename(target))) as shown:
            if os.path.samestat(os.fstat(shown), os.fstat(source)):
                return
        unmount(target)


def _make_target(parent: int, name: str, source: int) -> int:
    """Something to mount on: a directory for a directory, an empty file for all else."""
    wants_directory = stat.S_ISDIR(os.fstat(source).st_mode)
    try:
        found = open_anything(parent, name)
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISDIR(os.fstat(found).st_mode) == wants_directory:
            return found
        os.close(found)  # left from when the sub-path was of the other kind
        (os.unlink if wants_directory else os.rmdir)(name, dir_fd=parent)
    if wants_directory:
        return make_child(parent, name, _DIRECTORY_MODE)
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE, dir_fd=parent))
    return open_anything(parent, name)
