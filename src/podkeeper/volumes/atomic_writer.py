"""Write many small files to one directory so that they change atomically.

    key       -> ..data/key                 the path that containers read
    ..data    -> ..2026_01_31_15_04_05.817  swapped by one rename
    ..2026_01_31_15_04_05.817/key           one complete version

Input: files by path. After a write, the directory has exactly these files. If the write fails, it has the files from
before. A reader that resolves `..data` once sees one complete version. If a later write removes that version during the
read, the reader must open the files again.

Each write compares the files on disk, so the write after a crash repairs everything. Names that begin with `..` are
reserved for the writer. Two writes to one directory must not overlap. Kubelet counterpart:
pkg/volume/util/atomic_writer.go.
"""

import logging
import os
import posixpath
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from podkeeper.concurrency.once import LogOnce
from podkeeper.linux.tree import make_child, open_anything, open_child, open_directory, opened, remove_tree
from podkeeper.model.errors import TryLater

log = logging.getLogger(__name__)

DATA: Final = "..data"
_NEW_DATA: Final = "..data_tmp"
# NAME_MAX and PATH_MAX of the kernel, as in the kubelet.
_MAX_NAME_BYTES: Final = 255
_MAX_PATH_BYTES: Final = 4096
_VERSION_MODE: Final = 0o755  # not restrictive, because the modes of the files control access
# The kubelet's modes for a read-only volume with fsGroup. New files in a directory inherit its group.
_GROUP_READ: Final = 0o440
_GROUP_ENTER: Final = 0o2550


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """The content, mode and owner of one file."""

    data: bytes
    mode: int
    owner: int | None = None  # None: the user of the agent


Files = Mapping[str, ProjectedFile]
"""Files by path in the volume."""


class AtomicWriter:
    """Writes to one directory. Blocks."""

    def __init__(self, directory: str, group: int | None = None) -> None:
        self._directory = directory
        self._group = group  # fsGroup: may read all files; None: the group of the agent
        self._problems: LogOnce[str] = LogOnce(log)

    def write(self, files: Files) -> bool:
        """Write exactly these files. Return whether anything changed. Raises TryLater for an invalid path, OSError."""
        files = _clean(files)
        with opened(open_directory(self._directory)) as top:
            version = current_version(top)
            # Compare with the disk, not with the last write. Nothing is synced here: after a power failure no container
            # runs until this comparison has repaired the files.
            changed = version is None or not self._is_current(top, version, files)
            if changed:
                version = self._swap(top, files, version or "")
            # In this order, a new link never dangles, and readers of the old version lose it only after the new one is
            # published.
            self._link(top, files)
            self._remove_old_versions(top, version or "")
            return changed

    def _is_current(self, top: int, version: str, files: Files) -> bool:
        """Return whether a version on disk has exactly these files."""
        try:
            with opened(open_child(top, version)) as directory:
                present = _paths_below(directory)
                return present == files.keys() and all(
                    _has_content(directory, path, file.data) for path, file in files.items()
                )
        except OSError:
            return False  # broken: write a new version

    def _swap(self, top: int, files: Files, shown: str) -> str:
        """Write and publish a new version.

        If that fails, remove the incomplete version. Otherwise a full disk would stay full.
        """
        try:
            version = self._write_version(top, files)
            self._publish(top, version)
        except OSError:
            self._remove_old_versions(top, shown)
            raise
        return version

    def _write_version(self, top: int, files: Files) -> str:
        # The random part keeps two versions of the same second apart.
        name = f"{datetime.now(UTC):..%Y_%m_%d_%H_%M_%S}.{secrets.randbelow(2**32)}"
        with opened(make_child(top, name, _VERSION_MODE)) as directory:
            self._give_to_group(directory, _VERSION_MODE)
            for path, file in files.items():
                self._write_file(directory, path.split("/"), file)
        return name

    def _write_file(self, directory: int, names: list[str], file: ProjectedFile) -> None:
        if len(names) > 1:
            with opened(make_child(directory, names[0], _VERSION_MODE)) as child:
                self._give_to_group(child, _VERSION_MODE)
                self._write_file(child, names[1:], file)
            return
        # The directory is new, so nothing may exist here. If something does, do not write through it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(names[0], flags, 0o600, dir_fd=directory), "wb") as out:
            out.write(file.data)
            out.flush()
            mode = stat.S_IMODE(file.mode)
            if file.owner is not None:
                self._chown(out.fileno(), file.owner, -1)
            if self._group is not None:
                self._chown(out.fileno(), -1, self._group)
                mode |= _GROUP_READ
            os.fchmod(out.fileno(), mode)  # last, because chown clears the setuid and setgid bits

    def _give_to_group(self, directory: int, mode: int) -> None:
        if self._group is not None:
            self._chown(directory, -1, self._group)
            os.fchmod(directory, mode | _GROUP_ENTER)

    def _chown(self, descriptor: int, owner: int, group: int) -> None:
        """Change the owner. Ignore the error if this is not permitted, as the kubelet does.

        `manager` checks the group of the volume afterwards.
        """
        try:
            os.chown(descriptor, owner, group)
        except PermissionError:
            if owner != -1:
                text = "cannot change the owner of %s to user %d: not permitted"
                self._problems.first("owner", text, self._directory, owner)

    def _publish(self, top: int, version: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(_NEW_DATA, dir_fd=top)  # left by a crash during a write
        os.symlink(version, _NEW_DATA, dir_fd=top)
        # rename(2) replaces the link atomically. symlink(2) cannot replace an existing one.
        os.rename(_NEW_DATA, DATA, src_dir_fd=top, dst_dir_fd=top)

    def _link(self, top: int, files: Files) -> None:
        """Create a link for each file or directory of the version, and remove other links."""
        wanted = {path.partition("/")[0] for path in files}
        for name in os.listdir(top):
            # Only our own links. A directory here is a mount point of another volume (`nested`).
            if not name.startswith("..") and name not in wanted and _link_at(top, name) == f"{DATA}/{name}":
                os.unlink(name, dir_fd=top)
        for name in wanted:
            with suppress(FileExistsError):
                os.symlink(f"{DATA}/{name}", name, dir_fd=top)

    def _remove_old_versions(self, top: int, version: str) -> None:
        """Remove all versions except one, including the versions of interrupted writes."""
        for name in os.listdir(top):
            if name.startswith("..") and name not in (DATA, version):
                remove_tree(self._directory, name)


def current_version(top: int) -> str | None:
    """Return the name of the published version in an open directory, or None."""
    version = _link_at(top, DATA)
    # Ignore a link that does not lead to a version, because another process changed it.
    return (
        version if version is not None and version.startswith("..") and "/" not in version and version > ".." else None
    )


def _link_at(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _has_content(directory: int, path: str, data: bytes) -> bool:
    descriptor = os.dup(directory)
    *parents, name = path.split("/")
    for parent in parents:
        with opened(descriptor):
            descriptor = open_child(descriptor, parent)
    with opened(descriptor), opened(open_anything(descriptor, name)) as held:
        found = os.fstat(held)
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(data):
            return False
        with open(f"/proc/self/fd/{held}", "rb") as file:
            return file.read() == data


def _paths_below(directory: int, prefix: str = "") -> set[str]:
    paths = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with opened(open_child(directory, entry.name)) as child:
                    paths |= _paths_below(child, f"{prefix}{entry.name}/")
            else:
                paths.add(prefix + entry.name)
    return paths


def _clean(files: Files) -> Files:
    for path in files:
        _check_path(path)
    return {posixpath.normpath(path): file for path, file in files.items()}


def _check_path(path: str) -> None:
    if not path:
        raise TryLater('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise TryLater(f"invalid path: must be relative path: {path}")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise TryLater(f"invalid path: must be less than or equal to {_MAX_PATH_BYTES} characters")
    names = path.split("/")
    if ".." in names:
        raise TryLater(f"invalid path: must not contain '..': {path}")
    if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in names):
        raise TryLater(f"invalid path: filenames must be less than or equal to {_MAX_NAME_BYTES} characters")
    if names[0].startswith(".."):
        raise TryLater(f"invalid path: must not start with '..': {path}")
    if "\0" in path or posixpath.normpath(path) == ".":
        raise TryLater(f"invalid path: must name a file: {path!r}")
