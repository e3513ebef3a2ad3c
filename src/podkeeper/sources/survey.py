"""Looking at all manifests below some paths: what each holds now, read only if it changed.

    paths --places.py--> files --stat: as before?--> what was read before
                                    `--no: read--> contents.py --> what it holds

In: paths, and the time. Out: each file's contents, in order. One survey of 500 unchanged files takes a few
milliseconds. It may also hang as long as a file system does, so it runs in a thread; one survey at a time.

What may be relied on:

* A file counts as unchanged only by all of: inode, size, and the times of its last write and last change; and only if
  it was not read within moments of that change, when the clock of a file system cannot tell two writes apart.
* A file that is being written (`watch.py`) is passed over: it holds what it held before. Without a watch, or after one
  lost events, so is every file that changed within the last second.
* A file that is gone holds what it held for a moment more. Editors move the old file away before they write the new
  one; nobody's pods should stop for that.
* A file or directory that cannot be read is not gone.
* A file that an earlier life of the agent stored (`stored`) and that cannot be read yet is not gone either. If its
  directory can be read and lacks it, it is gone at once: it was removed while no agent ran.
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
"""How long a file must be away to be gone."""

_SETTLE_NS: Final = 1_000_000_000  # a file left alone for so long is whole, as far as one can see without a watch
_BLUR_NS: Final = 100_000_000  # coarser than the clock of any file system we may meet

Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was last seen."""

    contents: Contents
    version: bytes  # of its text
    stamp: Stamp | None = None  # None: look again, whatever it looks like
    missing_since: float | None = None
    stored: bool = False  # known only from before the restart: it has not been read yet


@dataclass(frozen=True, slots=True)
class Survey:
    """What all files hold."""

    files: Mapping[str, Seen]
    problems: Mapping[str, Problem]  # with the named paths themselves
    watch_trouble: str | None  # why changes may be noticed late
    again_in: float | None  # seconds until something may look different by itself
    complete: bool = True  # False: a path could not be listed since the start; it may hold more files


@dataclass(slots=True)
class _Pass:
    """One survey while it is made."""

    wall_ns: int
    now: float
    unfinished: Mapping[str, float]
    cautious: bool
    waits: list[float] = field(default_factory=list)


class Surveyor:
    """Looks, and remembers what it saw."""

    def __init__(
        self,
        paths: tuple[str, ...],
        reader: Reader,
        stored: Iterable[str] = (),
        open_watch: Callable[[], Watch] = Watch,
    ) -> None:
        """`paths` are absolute. `stored`: the files below them that were known before the restart."""
        self._open_watch = open_watch
        self._paths = paths
        self._reader = reader
        # The named path that each file was found by.
        self._owners = {path: owner for path in stored if (owner := owner_of(path, paths)) is not None}
        self._files = dict.fromkeys(self._owners, _STORED)
        self._unlisted = set(paths)  # never listed so far
        self._surveys = 0
        self._busy = threading.Lock()
        self._closed = False
        self.watch: Watch | None = None

    def close(self) -> None:
        """Stop watching; a survey under way in its thread does so when it ends, however long it hangs."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            self._release()

    def survey(self, wall_ns: int, now: float) -> Survey:
        """Look at everything. `wall_ns` is the wall clock's time, `now` the loop's."""
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
        """Point the watch at what is there now. Returns why it cannot see everything."""
        try:
            self.watch = self.watch or self._open_watch()
        except OSError as error:
            return f"cannot be told of changes: {error.strerror}; raising fs.inotify.max_user_instances may help"
        points = None
        for _ in range(3):  # what comes between looking and watching would be missed
            before, points = points, [point for path in self._paths for point in points_of(path)]
            if points == before:
                break
            if trouble := self.watch.point_at(points):
                return trouble
        return None

    def look(self, wall_ns: int, now: float, trouble: str | None) -> Survey:
        """Look at everything, without pointing the watch; `trouble`: why there is none that sees everything."""
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
        """Every file there is or was, in order, and the named path it belongs to."""
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
        """A file as it is now; None when it is not there, or nobody can say yet what it holds."""
        seen = self._files.get(path)
        if not listing.certain:
            return seen
        try:
            info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):
                return _trouble(path, "cannot read it: it is a link to what is not there")
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
"""Nothing is known of its text; what it held is on the shelf."""


def owner_of(path: str, paths: Iterable[str]) -> str | None:
    """The named path that a file belongs to: itself or its directory. None: it belongs to no path any more."""
    return next((owner for owner in paths if owner in (path, os.path.dirname(path))), None)


def look_once(path: str, reader: Reader) -> Survey:
    """What the files of a path hold now, for who looks once and needs no watch."""
    return Surveyor((os.path.normpath(path),), reader).look(0, 0.0, None)


def _missing(seen: Seen | None, this: _Pass) -> Seen | None:
    """What a file that is away still holds."""
    if seen is None or seen.stored:
        return None
    since = this.now if seen.missing_since is None else seen.missing_since
    left = since + GONE_SECONDS - this.now
    if left <= 0:
        return None
    this.waits.append(left)
    return replace(seen, missing_since=since, stamp=None)


def _not_a_file(path: str, mode: int, stamp: Stamp) -> Seen:
    """What stands where a manifest could: it is no manifest, for certain."""
    about = "cannot be read: it is not a file"
    if stat.S_ISDIR(mode):
        about = "cannot look into a folder within a folder of manifests; name it as a path of its own"
    return Seen(Contents(problems=(Problem(about, file=shown(path)),)), about.encode(), stamp)


def _trouble(path: str, message: str) -> Seen:
    return Seen(broken(message, shown(path)), message.encode("utf-8", "backslashreplace"))


def bytes_of(path: str) -> bytes:
    """The bytes of a regular file. Raises OSError, also for what is no file: to open a pipe could wait for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(f"it is larger than {MOST_BYTES} bytes")
    return data
