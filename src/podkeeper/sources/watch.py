"""Watch manifests with inotify, and detect files that are still being written.

Input: the points to watch (`manifest_paths`). Output: whether a relevant change happened, and the files that are still
being written. A file is complete when its writer has closed it or renamed it into place. A file without writes for a
second counts as complete, too.

If the kernel lost events, `lost` is true until the next scan. Either the loop (which drains events) or the scan
thread (which changes the points) uses a watch, never both at the same time.
"""

import errno
import os
from collections.abc import Iterable
from typing import Final

from inotify_simple import INotify, flags

from podkeeper.sources.manifest_paths import WatchPoint, is_ignored

SILENCE_SECONDS: Final = 1.0
"""An open file without writes for this long counts as complete."""

_NAME_CHANGES: Final[int] = flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE
_END_OF_WATCH: Final[int] = flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT
_NAMES: Final[int] = _NAME_CHANGES | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR | flags.MASK_ADD
_WRITES: Final[int] = _NAMES | flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB
# Ignore these errors: the path was removed in the meantime, or a parent directory is not readable. Polling still
# detects changes there.
_IGNORED_ERRORS: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


class ManifestWatch:
    """One inotify instance. Create it in a thread, because the search for the C library is slow."""

    def __init__(self) -> None:
        """Raises OSError if the user has too many instances."""
        self._inotify = INotify(nonblocking=True)
        self._points: dict[int, list[WatchPoint]] = {}
        self._writing: dict[str, float] = {}
        self.lost = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable on events."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Close the instance. Closing it again is a no-op."""
        self._inotify.close()

    def set_points(self, points: Iterable[WatchPoint]) -> str | None:
        """Watch exactly these points. Returns an error if some of them cannot be watched."""
        found: dict[int, list[WatchPoint]] = {}
        problem = None
        for point in points:
            try:
                watch = self._inotify.add_watch(point.directory, _WRITES if point.writes else _NAMES)
                found.setdefault(watch, []).append(point)
            except OSError as error:
                if error.errno not in _IGNORED_ERRORS:
                    hint = "; raising fs.inotify.max_user_watches may help" if error.errno == errno.ENOSPC else ""
                    problem = f"cannot watch {point.directory}: {error.strerror}{hint}"
        before, self._points = self._points, found
        for watch in before.keys() - found.keys():
            try:
                self._inotify.rm_watch(watch)
            except OSError:  # the kernel removed the watch together with its directory
                continue
        return problem

    def drain(self, now: float) -> bool:
        """Read all events. Returns whether a relevant file was created, completed, renamed or removed."""
        results = [self._handle(event.wd, event.mask, event.name, now) for event in self._inotify.read(timeout=0)]
        return True in results

    def unfinished(self, now: float) -> dict[str, float]:
        """Return the paths that are being written, and how long to wait for each."""
        waits = {path: since + SILENCE_SECONDS - now for path, since in self._writing.items()}
        self._writing = {path: self._writing[path] for path, wait in waits.items() if wait > 0}
        return {path: wait for path, wait in waits.items() if wait > 0}

    def _handle(self, watch: int, mask: int, name: str, now: float) -> bool:
        # The queue of the kernel was full. Unknown events are missing, so the next scan reads everything.
        if mask & flags.Q_OVERFLOW:
            self.lost = True
            self._writing.clear()
            return True
        points = self._points.get(watch, ())
        if mask & _END_OF_WATCH:
            return bool(points)
        return True in [self._handle_name(point, mask, name, now) for point in points]

    def _handle_name(self, point: WatchPoint, mask: int, name: str, now: float) -> bool:
        if point.name not in (None, name):
            return False
        if mask & flags.ISDIR or (point.name is None and is_ignored(name)):
            return bool(mask & _NAME_CHANGES)  # a new `..data` of a ConfigMap volume changes all its files
        path = point.path if point.name == name else os.path.join(point.path, name)
        # Half-written manifests must not be read. A rename into place has no such phase and is reported at once.
        if mask & flags.MODIFY or (mask & flags.CREATE and point.writes and not os.path.islink(path)):
            self._writing[path] = now
            return False
        if mask & flags.ATTRIB:
            # A changed mode can make a file readable. During a write, its end is reported anyway.
            return path not in self._writing
        self._writing.pop(path, None)
        return True
