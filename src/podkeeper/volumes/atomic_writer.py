"""Many small files in one directory that change all at once.

    key       -> ..data/key                 what people read
    ..data    -> ..2026_01_31_15_04_05.817  swapped by one rename
    ..2026_01_31_15_04_05.817/key           one whole version

Files by path come in; the directory shows them, or what it showed before. A reader who follows `..data` once sees one
whole version; one who was overtaken finds it gone and looks again. After a crash at any point the next write, or the
next look, puts everything right: what is on disk is compared, nothing is remembered. Names that begin with `..` are
the writer's own. Two writes into one directory must not overlap. The Go ancestor is pkg/volume/util/atomic_writer.go.
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

from podkeeper.model.errors import TryLater
from podkeeper.volumes.tree import make_child, open_anything, open_child, open_directory, opened, remove_tree

log = logging.getLogger(__name__)

DATA: Final = "..data"
_NEW_DATA: Final = "..data_tmp"
_LONGEST_NAME: Final = 255
_LONGEST_PATH: Final = 4096
_VERSION_MODE: Final = 0o755  # anyone may look in; the files' own modes decide
_GROUP_MAY_READ: Final = 0o440
_GROUP_MAY_ENTER: Final = 0o2550


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """What one file is to hold, and who may read it."""

    data: bytes
    mode: int
    owner: int | None = None  # None: the agent


Files = Mapping[str, ProjectedFile]
"""Files by their path in the volume."""


class AtomicWriter:
    """Writes into one directory. Blocks."""

    def __init__(self, directory: str, group: int | None = None) -> None:
        self._directory = directory
        self._group = group  # may read everything, and is passed on to what is made; None: the agent's
        self._has_warned = False

    def write(self, files: Files) -> bool:
        """Show just these files. Returns whether anything changed. Raises TryLater for a path that may not be."""
        files = _clean(files)
        with opened(open_directory(self._directory)) as top:
            version = current_version(top)
            changed = version is None or not self._shows(top, version, files)
            if changed:
                version = self._swap(top, files, version or "")
            self._link(top, files)
            self._tidy(top, version or "")
            return changed

    def _shows(self, top: int, version: str, files: Files) -> bool:
        """Whether a version on disk is just what is to be shown."""
        try:
            with opened(open_child(top, version)) as directory:
                present = _paths_below(directory)
                return present == files.keys() and all(
                    _holds(directory, path, file.data) for path, file in files.items()
                )
        except OSError:
            return False  # whatever is wrong with it, a new one will be right

    def _swap(self, top: int, files: Files, shown: str) -> str:
        """Show a new version. What cannot be written whole leaves nothing behind, or a full disk would stay full."""
        try:
            version = self._write_version(top, files)
            self._publish(top, version)
        except OSError:
            self._tidy(top, shown)
            raise
        return version

    def _write_version(self, top: int, files: Files) -> str:
        name = f"{datetime.now(UTC):..%Y_%m_%d_%H_%M_%S}.{secrets.randbelow(2**32)}"
        with opened(make_child(top, name, _VERSION_MODE)) as directory:
            self._give(directory, _VERSION_MODE)
            for path, file in files.items():
                self._write_file(directory, path.split("/"), file)
        return name

    def _write_file(self, directory: int, names: list[str], file: ProjectedFile) -> None:
        if len(names) > 1:
            with opened(make_child(directory, names[0], _VERSION_MODE)) as child:
                self._give(child, _VERSION_MODE)
                self._write_file(child, names[1:], file)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(names[0], flags, 0o600, dir_fd=directory), "wb") as out:
            out.write(file.data)
            out.flush()
            mode = stat.S_IMODE(file.mode)
            if file.owner is not None:
                self._chown(out.fileno(), file.owner, -1)
            if self._group is not None:
                self._chown(out.fileno(), -1, self._group)
                mode |= _GROUP_MAY_READ
            os.fchmod(out.fileno(), mode)  # last: a change of owner may take bits away

    def _give(self, directory: int, mode: int) -> None:
        """Let the group, if there is one, into a directory."""
        if self._group is not None:
            self._chown(directory, -1, self._group)
            os.fchmod(directory, mode | _GROUP_MAY_ENTER)

    def _chown(self, descriptor: int, owner: int, group: int) -> None:
        """Change the owner where we may. The reference goes on, too: an ordinary user cannot give files away.

        A group that they do not have in the end is told by whoever could have helped (`manager`).
        """
        try:
            os.chown(descriptor, owner, group)
        except PermissionError:
            if owner != -1 and not self._has_warned:
                log.warning("cannot give %s to user %d: not permitted", self._directory, owner)
                self._has_warned = True

    def _publish(self, top: int, version: str) -> None:
        """The swap."""
        with suppress(FileNotFoundError):
            os.unlink(_NEW_DATA, dir_fd=top)  # of a write that a crash cut short
        os.symlink(version, _NEW_DATA, dir_fd=top)
        os.rename(_NEW_DATA, DATA, src_dir_fd=top, dst_dir_fd=top)

    def _link(self, top: int, files: Files) -> None:
        """Let everything be seen under its own name, and nothing else."""
        wanted = {path.partition("/")[0] for path in files}
        for name in os.listdir(top):
            if not name.startswith("..") and name not in wanted and _link_at(top, name) == f"{DATA}/{name}":
                os.unlink(name, dir_fd=top)
        for name in wanted:
            with suppress(FileExistsError):
                os.symlink(f"{DATA}/{name}", name, dir_fd=top)

    def _tidy(self, top: int, version: str) -> None:
        """Remove all versions but one: the last, and those of writes that a crash cut short."""
        for name in os.listdir(top):
            if name.startswith("..") and name not in (DATA, version):
                remove_tree(self._directory, name)


def current_version(top: int) -> str | None:
    """The name of the version that is shown in an open directory; None when none is."""
    version = _link_at(top, DATA)
    # A link that somebody bent is none of ours.
    return (
        version if version is not None and version.startswith("..") and "/" not in version and version > ".." else None
    )


def _link_at(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _holds(directory: int, path: str, data: bytes) -> bool:
    """Whether a file holds just this."""
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
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise TryLater(f"invalid path: must be less than or equal to {_LONGEST_PATH} characters")
    names = path.split("/")
    if ".." in names:
        raise TryLater(f"invalid path: must not contain '..': {path}")
    if any(len(os.fsencode(name)) > _LONGEST_NAME for name in names):
        raise TryLater(f"invalid path: filenames must be less than or equal to {_LONGEST_NAME} characters")
    if names[0].startswith(".."):
        raise TryLater(f"invalid path: must not start with '..': {path}")
    if "\0" in path or posixpath.normpath(path) == ".":
        raise TryLater(f"invalid path: must name a file: {path!r}")
