"""Inspect all manifests of some paths, and read those that have changed.

    paths --places.py--> files --stat: unchanged?--> the known contents
                                    `--no: read--> contents.py --> new contents

Input: paths and the time. Output: the contents of each file, in order. A survey of 500 unchanged files takes a few
milliseconds. It can hang with its file system, so it runs in a thread, one survey at a time.

Guarantees:

* A file counts as unchanged only if inode, size, mtime and ctime are the same, and if it was not read shortly after
  that change, because the clock of a file system cannot distinguish two quick writes.
* A file that is being written (`watch.py`) keeps its known contents. Without a working watch, the same applies to files
  that changed within the last second.
* A removed file keeps its known contents for 0.2 s, because editors move the old file away before they write the new
  one.
* A file or directory that cannot be read does not count as removed.
* The same applies to a file that is only known from before a restart (`stored`). If its directory can be read and does
  not have it, it counts as removed at once.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import MOST_BYTES, Contents, Reader, broken
from podkeeper.sources.places import Listing, list_files, points_of, shown
from podkeeper.sources.watch import Watch

GONE_SECONDS: Final = 0.2
"""A file counts as removed after this time."""

_SETTLE_NS: Final = 1_000_000_000  # without a watch, a file counts as complete after this time without changes
_BLUR_NS: Final = 100_000_000  # larger than the clock resolution of all common file systems

Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """The last known state of a file."""

    contents: Contents
    version: bytes  # hash of the text
    stamp: Stamp | None = None  # None: read the file again in any case
    missing_since: float | None = None
    stored: bool = False  # only known from before the restart, not read yet


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a survey."""

    files: Mapping[str, Seen]
    problems: Mapping[str, Problem]  # problems of the paths themselves
    watch_trouble: str | None  # why changes may be detected late
    again_in: float | None  # seconds until another survey is needed even without events
    complete: bool = True  # False: a path could not be listed since the start and may have more files


@dataclass(slots=True)
class _Pass:
    """The state of a survey in progress."""

    wall_ns: int
    now: float
    unfinished: Mapping[str, float]
    cautious: bool
    waits: list[float] = field(default_factory=list)


class Surveyor:
    def __init__(
        self,
        paths: tuple[str, ...],
        reader: Reader,
        stored: Iterable[str] = (),
        open_watch: Callable[[], Watch] = Watch,
    ) -> None:
        """`paths` are absolute. `stored` are their files that were known before the restart."""
        self._open_watch = open_watch
        self._paths = paths
        self._reader = reader
        # The path that each file belongs to.
        self._owners = {path: owner for path in stored if (owner := owner_of(path, paths)) is not None}
        self._files = dict.fromkeys(self._owners, _STORED)
        self._unlisted = set(paths)  # paths that could not be listed so far
        self._surveys = 0
        self._busy = threading.Lock()
        self._closed = False
        self.watch: Watch | None = None

    def close(self) -> None:
        """Close the watch. If a survey is running in its thread, that survey closes the watch at its end."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            self._release()

    def survey(self, wall_ns: int, now: float) -> Survey:
        """Inspect all files. `wall_ns` is the time of the wall clock, `now` that of the loop."""
        with self._busy:
            trouble = self._point()
            found = self.look(wall_ns, now, trouble)
        if self._closed and self._busy.acquire(blocking=False):
            self._release()
        return found

    def _release(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = None
        self._busy.release()

    def _point(self) -> str | None:
        """Set the points of the watch. Returns an error if it cannot watch all of them."""
        try:
            self.watch = self.watch or self._open_watch()
        except OSError as error:
            return f"cannot watch for changes: {error.strerror}; try to raise fs.inotify.max_user_instances"
        points = None
        for _ in range(3):  # repeat, because changes between listing and watching would be missed
            before, points = points, [point for path in self._paths for point in points_of(path)]
            if points == before:
                break
            if trouble := self.watch.point_at(points):
                return trouble
        return None

    def look(self, wall_ns: int, now: float, trouble: str | None) -> Survey:
        """Inspect all files without changing the watch. `trouble` is the error of the watch, if any."""
        watch = self.watch
        blind = trouble is not None or watch is None or watch.lost
        this = _Pass(wall_ns, now, watch.unfinished(now) if watch is not None else {}, blind and self._surveys > 0)
        this.waits += this.unfinished.values()
        if watch is not None:
            watch.lost = False
        listings = {path: list_files(path) for path in self._paths}
        self._unlisted -= {path for path, listing in listings.items() if listing.certain}
        files: dict[str, Seen] = {}
        for path, owner in self._candidates(listings).items():
            if (seen := self._look_at(path, listings[owner], this)) is not None:
                files[path] = seen
        self._files = files
        self._surveys += 1
        problems = {path: listing.problem for path, listing in listings.items() if listing.problem is not None}
        return Survey(files, problems, trouble, min(this.waits, default=None), not self._unlisted)

    def _candidates(self, listings: Mapping[str, Listing]) -> dict[str, str]:
        """Return all existing and known files, in order, with the path that each belongs to."""
        owners: dict[str, str] = {}
        known: dict[str, list[str]] = {}
        for path in self._files:
            known.setdefault(self._owners[path], []).append(path)
        for owner, listing in listings.items():
            for path in sorted({*listing.files, *known.get(owner, ())}):
                owners.setdefault(path, owner)
        self._owners = owners
        return owners

    def _look_at(self, path: str, listing: Listing, this: _Pass) -> Seen | None:
        """Return the state of a file. None if it does not exist or is not complete yet."""
        seen = self._files.get(path)
        if not listing.certain:
            return seen
        try:
            info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):
                return _trouble(path, "cannot read it: the target of the symbolic link does not exist")
            return _missing(seen, this)
        except OSError as error:
            return _trouble(path, f"cannot read it: {error.strerror}")
        if seen is not None and seen.missing_since is not None:
            seen = replace(seen, missing_since=None)
        if path in this.unfinished:
            return seen
        stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if seen is not None and seen.stamp == stamp:
            return seen
        if not stat.S_ISREG(info.st_mode):
            return _not_a_file(path, info.st_mode, stamp)
        if this.cautious and 0 <= this.wall_ns - info.st_ctime_ns < _SETTLE_NS:
            this.waits.append(_SETTLE_NS / 1e9)
            return seen
        return self._read(path, seen, stamp if info.st_ctime_ns < this.wall_ns - _BLUR_NS else None)

    def _read(self, path: str, seen: Seen | None, stamp: Stamp | None) -> Seen:
        try:
            data = bytes_of(path)
        except OSError as error:
            return _trouble(path, f"cannot read it: {error.strerror or error}")
        version = hashlib.blake2b(data, digest_size=16).digest()
        if seen is not None and seen.version == version:
            return replace(seen, stamp=stamp)
        return Seen(self._reader.read(data, FromFile(path), shown(path)), version, stamp)


_STORED: Final = Seen(Contents(whole=False), b"", stored=True)
"""A file with unknown text. Its objects are on the shelf."""


def owner_of(path: str, paths: Iterable[str]) -> str | None:
    """Return the path that a file belongs to: itself or its directory. None if it belongs to none of the paths."""
    return next((owner for owner in paths if owner in (path, os.path.dirname(path))), None)


def look_once(path: str, reader: Reader) -> Survey:
    """Inspect the files of a path once, without a watch."""
    return Surveyor((os.path.normpath(path),), reader).look(0, 0.0, None)


def _missing(seen: Seen | None, this: _Pass) -> Seen | None:
    """Return the state of a missing file: the known one until GONE_SECONDS are over, then None."""
    if seen is None or seen.stored:
        return None
    since = this.now if seen.missing_since is None else seen.missing_since
    left = since + GONE_SECONDS - this.now
    if left <= 0:
        return None
    this.waits.append(left)
    return replace(seen, missing_since=since, stamp=None)


def _not_a_file(path: str, mode: int, stamp: Stamp) -> Seen:
    """Return the state of a directory or special file. It holds no objects, so its contents are whole."""
    about = "cannot read it: not a regular file"
    if stat.S_ISDIR(mode):
        about = "subdirectories are ignored; to use this one, add it as a separate path"
    return Seen(Contents(problems=(Problem(about, file=shown(path)),)), about.encode(), stamp)


def _trouble(path: str, message: str) -> Seen:
    return Seen(broken(message, shown(path)), message.encode("utf-8", "backslashreplace"))


def bytes_of(path: str) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for other kinds of files."""
    # O_NONBLOCK, because opening a FIFO without it blocks.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(f"larger than {MOST_BYTES} bytes")
    return data
