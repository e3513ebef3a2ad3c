"""Bind sub-paths of volumes to directories that no container can reach.

For runtimes that accept only paths, not open files.

    <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index of the mount>

A runtime resolves the path of a mount later, and a container may replace a directory with a link before that. So
the sub-path is opened (`linux/subpath.py`), and the open file is bound to a directory of ours. The runtime gets the
path of that directory. An existing bind mount stays if it still shows the same file, as for a restarted container.
`HostVolumes.unmount` removes the mounts and directories. Kubelet counterpart: `doBindSubPath` in
pkg/volume/util/subpath.
"""

import os
import stat
from typing import Final

from podkeeper.linux.errors import SubPathError
from podkeeper.linux.mounts import bind_mount, mounts_below, unmount
from podkeeper.linux.subpath import open_subpath
from podkeeper.linux.tree import make_child, make_directory, open_anything, opened
from podkeeper.model.errors import NotConfigurable
from podkeeper.volumes.paths import PODS, checked

SUB_PATHS: Final = "volume-subpaths"
# The modes of the kubelet's mount points.
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750


def bind_subpath(root: str, uid: str, volume: str, volume_path: str, sub_path: str, container: str, index: int) -> str:
    """Bind a sub-path of a volume to its directory and return that. Missing directories of the sub-path are created.

    Blocks. `root` has no symbolic links in it. Raises NotConfigurable, TryLater, OSError.
    """
    names = (checked(uid, "pod UID"), SUB_PATHS, checked(volume, "volume name"), checked(container, "container name"))
    target = os.path.join(root, PODS, *names, str(index))
    with (
        # Opened once, checked and bound as an open file. Between a check and a mount by path, a container could replace
        # a directory with a link (CVE-2017-1002101, CVE-2021-25741).
        opened(_open_source(volume_path, sub_path)) as source,
        opened(make_directory(root, PODS, *names, mode=_DIRECTORY_MODE)) as parent,
    ):
        _unmount_others(parent, target, source)
        if target not in mounts_below(target):
            with opened(_make_target(parent, str(index), source)) as held:
                bind_mount(source, held)
    return target


def _open_source(volume_path: str, sub_path: str) -> int:
    if sub_path.startswith("/"):
        raise NotConfigurable(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise NotConfigurable(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    try:
        return open_subpath(volume_path, sub_path)
    except SubPathError as error:
        raise NotConfigurable(str(error)) from error
    except OSError as error:
        raise NotConfigurable(
            f'cannot open subpath "{sub_path}" of volume path "{volume_path}": {error.strerror}'
        ) from error


def _unmount_others(parent: int, target: str, source: int) -> None:
    """Unmount everything at the target that is not the source."""
    while target in mounts_below(target):
        with opened(open_anything(parent, os.path.basename(target))) as shown:
            # The same file, as for a restarted container. A running container may use this mount, so leave it.
            if os.path.samestat(os.fstat(shown), os.fstat(source)):
                return
        unmount(target)


def _make_target(parent: int, name: str, source: int) -> int:
    """Create a mount point: a directory for a directory, an empty file for anything else."""
    wants_directory = stat.S_ISDIR(os.fstat(source).st_mode)
    try:
        found = open_anything(parent, name)
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISDIR(os.fstat(found).st_mode) == wants_directory:
            return found
        os.close(found)  # left over from a time when the sub-path was a file instead of a directory, or vice versa
        (os.unlink if wants_directory else os.rmdir)(name, dir_fd=parent)
    if wants_directory:
        return make_child(parent, name, _DIRECTORY_MODE)
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE, dir_fd=parent))
    return open_anything(parent, name)
