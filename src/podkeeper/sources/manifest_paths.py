"""Find the manifest files of a path and the points to watch for changes.

Input: the path of a directory or file, which may not exist. Output: the files to read, or the problem, and the points
to watch: every symbolic link in the path, the last name, and the first missing name. So the watch also reports a
directory that is created later, or that a changed link replaces.

As in the kubelet, names that start with a dot are ignored (a ConfigMap volume has `..data`), and so are subdirectories.
In contrast to the kubelet, backup files of editors and package managers are ignored, too. Kubelet counterpart:
`extractFromDir` in pkg/kubelet/config/file.go.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import Problem

_LEFTOVERS: Final = (
    *("~", ".swp", ".swx", ".bak", ".orig", ".rej", ".tmp"),
    *(".dpkg-old", ".dpkg-new", ".dpkg-dist", ".dpkg-tmp", ".rpmsave", ".rpmnew", ".rpmorig"),
)
_MOST_LINKS: Final = 40  # the kernel's limit


@dataclass(frozen=True, slots=True)
class PathListing:
    """The files of a path."""

    files: tuple[str, ...] = ()
    problem: Problem | None = None
    certain: bool = True  # False: the files could not be listed, but may still exist


@dataclass(frozen=True, slots=True)
class WatchPoint:
    """A directory to watch, and one name in it or all names (None)."""

    directory: str
    name: str | None
    path: str  # changes affect this path or the files in it
    writes: bool  # whether to watch writes, too, or only creation, renaming and removal


def printable(path: str) -> str:
    """Return a printable form of a path, which may not be valid UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def is_ignored(name: str) -> bool:
    """Return whether a file is hidden, or a backup file of an editor or package manager."""
    return name.startswith(".") or name.endswith(_LEFTOVERS) or (name.startswith("#") and name.endswith("#"))


def list_files(path: str) -> PathListing:
    """Return the files of a path: the path itself, or the sorted files of the directory."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return PathListing((path,))
        if not stat.S_ISDIR(mode):
            return PathListing(problem=_problem("cannot read the path: neither a file nor a directory", path))
        names = sorted(name for name in os.listdir(path) if not is_ignored(name))
        return PathListing(tuple(os.path.join(path, name) for name in names))
    except (FileNotFoundError, NotADirectoryError):
        about = "no such file or directory; podkeeper watches the path, so create a manifest or a directory there"
        return PathListing(problem=_problem(about, path))
    except OSError as error:
        return PathListing(problem=_problem(f"cannot read the path: {error.strerror}", path), certain=False)


def watch_points(path: str) -> Iterator[WatchPoint]:
    """Yield all points to watch for changes of an absolute path."""
    is_directory = os.path.isdir(path)
    for directory, name in _path_steps(path):
        yield WatchPoint(directory, name, path, writes=not is_directory)
    if is_directory:
        yield WatchPoint(path, None, path, writes=True)


def _path_steps(path: str) -> Iterator[tuple[str, str]]:
    """Yield directory and name of each symbolic link on the way, and of the last name or the first missing one."""
    current, links = "/", 0
    parts = _parts(path)
    while parts:
        name = parts.pop()
        if name == "..":
            current = os.path.dirname(current)
            continue
        here = os.path.join(current, name)
        try:
            target = os.readlink(here)
        except FileNotFoundError:
            yield current, name
            return
        except OSError:  # it exists and is not a link
            if not parts:
                yield current, name
            current = here
            continue
        yield current, name
        links += 1
        if links > _MOST_LINKS:
            return
        if target.startswith("/"):
            current = "/"
        parts += _parts(target)


def _parts(path: str) -> list[str]:
    """Return the names of a path in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _problem(message: str, path: str) -> Problem:
    return Problem(message, file=printable(path))
