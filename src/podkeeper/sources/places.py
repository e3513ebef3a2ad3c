"""Where manifests lie: which files of a directory count, in which order, and what must be watched to see them change.

In: a path that somebody named, a directory or a file, there or not. Out: the files to read, or why there are none; and
the points at which a change of the path itself shows: every symbolic link on the way, the last name, or the
first that is missing. So a directory that appears later, or is swapped by its link, is seen like any other change.

As in the reference, names that begin with a dot do not count (a ConfigMap volume keeps its `..data` so), and folders
within a folder are not entered. Unlike there, what editors and package managers leave beside a file does not count.
The Go ancestor is `extractFromDir` in pkg/kubelet/config/file.go.
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
_MOST_LINKS: Final = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class Listing:
    """What a path leads to."""

    files: tuple[str, ...] = ()
    problem: Problem | None = None
    certain: bool = True  # False: the files could not be listed, and may all be there


@dataclass(frozen=True, slots=True)
class Point:
    """Something to watch: a directory, and the one name in it that matters, or every name."""

    directory: str
    name: str | None
    path: str  # what a change is about: this path, or what lies below it
    writes: bool  # whether writes to what it names matter, or only its coming and going


def shown(path: str) -> str:
    """A path as it can be printed, also one that is no text."""
    return path.encode("utf-8", "backslashreplace").decode()


def is_ignored(name: str) -> bool:
    """Whether a name in a directory never is a manifest: hidden, or left over by an editor or package manager."""
    return name.startswith(".") or name.endswith(_LEFTOVERS) or (name.startswith("#") and name.endswith("#"))


def list_files(path: str) -> Listing:
    """The files that a named path stands for: itself, or those of the directory, in order."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return Listing((path,))
        if not stat.S_ISDIR(mode):
            return Listing(problem=_problem("cannot be read: it is neither a file nor a directory", path))
        names = sorted(name for name in os.listdir(path) if not is_ignored(name))
        return Listing(tuple(os.path.join(path, name) for name in names))
    except (FileNotFoundError, NotADirectoryError):
        about = "cannot find it; make it a directory with manifests, or a manifest: it is looked for all the time"
        return Listing(problem=_problem(about, path))
    except OSError as error:
        return Listing(problem=_problem(f"cannot read it: {error.strerror}", path), certain=False)


def points_of(path: str) -> Iterator[Point]:
    """What to watch so that no change of a named path is missed; `path` is absolute."""
    is_directory = os.path.isdir(path)
    for directory, name in _turns(path):
        yield Point(directory, name, path, writes=not is_directory)
    if is_directory:
        yield Point(path, None, path, writes=True)


def _turns(path: str) -> Iterator[tuple[str, str]]:
    """Directory and name of each symbolic link on the way, and of the last name, or the first that is missing."""
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
        except OSError:  # there, and no link
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
    """The names of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _problem(message: str, path: str) -> Problem:
    return Problem(message, file=shown(path))
