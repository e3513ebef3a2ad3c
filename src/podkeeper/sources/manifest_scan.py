"""Inspect all manifests of some paths, and read those that have changed.

    paths --manifest_paths--> files --stat: unchanged?--> the known content
                                         `--no: read--> manifest_content --> new content

Input: paths and the time. Output: the content of each file, in order. A scan of 500 unchanged files takes a few
milliseconds. It hangs if a file system hangs, so it runs in a thread, one scan at a time.

Guarantees:

* A file counts as unchanged only if inode, size, mtime and ctime are the same. If it was read shortly after its last
  change, it is read again, because two quick writes may have the same mtime.
* A file that is being written (`watch.py`) keeps its known content. Without a working watch, the same applies to files
  that changed within the last second.
* A removed file keeps its known content for 0.2 s, because editors move the old file away before they write the new
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
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.manifest_content import MAX_BYTES, ManifestContent, ManifestReader, unreadable
from podkeeper.sources.manifest_paths import PathListing, list_files, printable, watch_points
from podkeeper.sources.watch import ManifestWatch

# Editors and git move a file away before they write the new one. The pod must not stop in between.
REMOVAL_SECONDS: Final = 0.2
"""A file counts as removed after this time."""

_QUIET_NS: Final = 1_000_000_000  # without a watch, a file counts as complete after this time without changes
_CLOCK_RESOLUTION_NS: Final = 100_000_000  # larger than the clock resolution of all common file systems

FileStamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """The last known state of a file."""

    content: ManifestContent
    version: bytes  # hash of the text
    stamp: FileStamp | None = None  # None: read the file again in any case
    missing_since: float | None = None
    stored: bool = False  # only known from before the restart, not read yet


@dataclass(frozen=True, slots=True)
class ManifestScan:
    """The result of a scan."""

    files: Mapping[str, ScannedFile]
    problems: Mapping[str, Problem]  # problems of the paths themselves
    watch_error: str | None  # why changes may be detected late
    rescan_seconds: float | None  # seconds until another scan is needed even without events
    complete: bool = True  # False: a path could not be listed since the start and may have more files


@dataclass(slots=True)
class _ScanState:
    """The state of a scan in progress."""

    wall_ns: int
    now: float
    unfinished: Mapping[str, float]
    cautious: bool
    waits: list[float] = field(default_factory=list)


class ManifestScanner:
    def __init__(
        self,
        paths: tuple[str, ...],
        reader: ManifestReader,
        stored: Iterable[str] = (),
        open_watch: Callable[[], ManifestWatch] = ManifestWatch,
    ) -> None:
        """`paths` are absolute. `stored` are their files that were known before the restart."""
        self._open_watch = open_watch
        self._paths = paths
        self._reader = reader
        # The path that each file belongs to.
        self._owners = {path: owner for path in stored if (owner := owner_of(path, paths)) is not None}
        self._files = dict.fromkeys(self._owners, _STORED)
        self._unlisted = set(paths)  # paths that could not be listed so far
        self._scans = 0
        self._busy = threading.Lock()
        self._closed = False
        self.watch: ManifestWatch | None = None

    def close(self) -> None:
        """Close the watch. If a scan is running in its thread, that scan closes the watch at its end."""
        self._closed = True
        # A scan may hang in its thread with a hung file system. The event loop must not wait for it.
        if self._busy.acquire(blocking=False):
            self._release()

    def scan(self, wall_ns: int, now: float) -> ManifestScan:
        """Inspect all files. `wall_ns` is the time of the wall clock, `now` that of the loop."""
        with self._busy:
            watch_error = self._update_watch()
            found = self.scan_files(wall_ns, now, watch_error)
        if self._closed and self._busy.acquire(blocking=False):
            self._release()
        return found

    def _release(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = None
        self._busy.release()

    def _update_watch(self) -> str | None:
        """Set the points of the watch. Returns an error if it cannot watch all of them."""
        try:
            self.watch = self.watch or self._open_watch()
        except OSError as error:
            return f"cannot watch for changes: {error.strerror}; try to raise fs.inotify.max_user_instances"
        points = None
        for _ in range(3):  # repeat, because changes between listing and watching would be missed
            before, points = points, [point for path in self._paths for point in watch_points(path)]
            if points == before:
                break
            if watch_error := self.watch.set_points(points):
                return watch_error
        return None

    def scan_files(self, wall_ns: int, now: float, watch_error: str | None) -> ManifestScan:
        """Inspect all files without changing the watch. `watch_error` is the error of the watch, if any."""
        watch = self.watch
        misses_events = watch_error is not None or watch is None or watch.lost
        state = _ScanState(
            wall_ns, now, watch.unfinished(now) if watch is not None else {}, misses_events and self._scans > 0
        )
        state.waits += state.unfinished.values()
        if watch is not None:
            watch.lost = False
        listings = {path: list_files(path) for path in self._paths}
        self._unlisted -= {path for path, listing in listings.items() if listing.certain}
        files: dict[str, ScannedFile] = {}
        for path, owner in self._candidates(listings).items():
            if (known := self._scan_file(path, listings[owner], state)) is not None:
                files[path] = known
        self._files = files
        self._scans += 1
        problems = {path: listing.problem for path, listing in listings.items() if listing.problem is not None}
        return ManifestScan(files, problems, watch_error, min(state.waits, default=None), not self._unlisted)

    def _candidates(self, listings: Mapping[str, PathListing]) -> dict[str, str]:
        """Return all existing and known files, in order, with the path that each belongs to."""
        owners: dict[str, str] = {}
        known_files: dict[str, list[str]] = {}
        for path in self._files:
            known_files.setdefault(self._owners[path], []).append(path)
        for owner, listing in listings.items():
            for path in sorted({*listing.files, *known_files.get(owner, ())}):
                owners.setdefault(path, owner)
        self._owners = owners
        return owners

    def _scan_file(self, path: str, listing: PathListing, state: _ScanState) -> ScannedFile | None:
        """Return the state of a file. None if it does not exist or is not complete yet."""
        known = self._files.get(path)
        # A directory that cannot be read does not mean that its pods were removed.
        if not listing.certain:
            return known
        try:
            info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            # A broken link is an error of the user. A missing file is a removal.
            if os.path.islink(path):
                return _unreadable_file(path, "cannot read the file: the target of the symbolic link does not exist")
            return _missing(known, state)
        except OSError as error:
            return _unreadable_file(path, f"cannot read the file: {error.strerror}")
        if known is not None and known.missing_since is not None:
            known = replace(known, missing_since=None)
        # The writer has not closed the file yet.
        if path in state.unfinished:
            return known
        stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if known is not None and known.stamp == stamp:
            return known
        if not stat.S_ISREG(info.st_mode):
            return _not_a_file(path, info.st_mode, stamp)
        # Without events, a writer in progress can only be recognized by a recent change. A time in the future is not
        # used.
        if state.cautious and 0 <= state.wall_ns - info.st_ctime_ns < _QUIET_NS:
            state.waits.append(_QUIET_NS / 1e9)
            return known
        # Two writes within the clock resolution have the same stamp, so a file that has just changed is read again.
        return self._read(path, known, stamp if info.st_ctime_ns < state.wall_ns - _CLOCK_RESOLUTION_NS else None)

    def _read(self, path: str, known: ScannedFile | None, stamp: FileStamp | None) -> ScannedFile:
        try:
            data = read_bytes(path)
        except OSError as error:
            return _unreadable_file(path, f"cannot read the file: {error.strerror or error}")
        version = hashlib.blake2b(data, digest_size=16).digest()
        if known is not None and known.version == version:
            return replace(known, stamp=stamp)
        return ScannedFile(self._reader.read(data, FromFile(path), printable(path)), version, stamp)


_STORED: Final = ScannedFile(ManifestContent(is_complete=False), b"", stored=True)
"""A file with unknown text. `ActiveObjects` has its objects."""


def owner_of(path: str, paths: Iterable[str]) -> str | None:
    """Return the path that a file belongs to: itself or its directory. None if it belongs to none of the paths."""
    return next((owner for owner in paths if owner in (path, os.path.dirname(path))), None)


def scan_once(path: str, reader: ManifestReader) -> ManifestScan:
    """Inspect the files of a path once, without a watch."""
    return ManifestScanner((os.path.normpath(path),), reader).scan_files(0, 0.0, None)


def _missing(known: ScannedFile | None, state: _ScanState) -> ScannedFile | None:
    """Return the state of a missing file: the known one until REMOVAL_SECONDS have passed, then None."""
    # A stored file was removed while no agent ran, so there is no editor to wait for.
    if known is None or known.stored:
        return None
    since = state.now if known.missing_since is None else known.missing_since
    left = since + REMOVAL_SECONDS - state.now
    if left <= 0:
        return None
    state.waits.append(left)
    return replace(known, missing_since=since, stamp=None)


def _not_a_file(path: str, mode: int, stamp: FileStamp) -> ScannedFile:
    """Return the state of a directory or special file. It holds no objects, so its content is complete."""
    about = "cannot read the file: not a regular file"
    if stat.S_ISDIR(mode):
        about = "subdirectories are ignored; to use this one, add it as a separate path"
    return ScannedFile(ManifestContent(problems=(Problem(about, file=printable(path)),)), about.encode(), stamp)


def _unreadable_file(path: str, message: str) -> ScannedFile:
    return ScannedFile(unreadable(message, printable(path)), message.encode("utf-8", "backslashreplace"))


def read_bytes(path: str) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for other kinds of files."""
    # O_NONBLOCK, because opening a FIFO without it blocks.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"larger than {MAX_BYTES} bytes")
    return data
