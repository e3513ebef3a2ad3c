"""The kernel's word that manifests changed (inotify), and which of them somebody is still writing.

In: the points to watch (`places.py`). Out: whether something changed that matters, and the paths that were begun but
not finished: a file is worth reading when its writer closed it or moved it into place, not while half of it is there.
A writer that says nothing for a while is taken to be done.

When the kernel lost events it says so: `lost` is then set until somebody looked at everything. One at a time owns a
watch: the loop, which drains it, or the thread that surveys and points it anew.
"""

import errno
import os
from collections.abc import Iterable
from typing import Final

from inotify_simple import INotify, flags

from podkeeper.sources.places import Point, is_ignored

SILENCE_SECONDS: Final = 1.0
"""After which a file that is still open is taken to be whole."""

_COMING_AND_GOING: Final[int] = flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE
_END_OF_WATCH: Final[int] = flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT
_NAMES: Final[int] = _COMING_AND_GOING | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR | flags.MASK_ADD
_WRITES: Final[int] = _NAMES | flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB
# Went between being found and being watched; or above what was named, and not ours to list: the period must do there.
_PASSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


class Watch:
    """One inotify instance. Opening it takes a moment (a library is looked for): do that in a thread."""

    def __init__(self) -> None:
        """Raises OSError when the user has too many already."""
        self._inotify = INotify(nonblocking=True)
        self._points: dict[int, list[Point]] = {}
        self._writing: dict[str, float] = {}
        self.lost = False

    def fileno(self) -> int:
        """What becomes readable when there is news."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """End it. A second time is fine."""
        self._inotify.close()

    def point_at(self, points: Iterable[Point]) -> str | None:
        """Watch exactly these points. Returns why some of them cannot be watched."""
        found: dict[int, list[Point]] = {}
        trouble = None
        for point in points:
            try:
                watch = self._inotify.add_watch(point.directory, _WRITES if point.writes else _NAMES)
                found.setdefault(watch, []).append(point)
            except OSError as error:
                if error.errno not in _PASSING:
                    hint = "; raising fs.inotify.max_user_watches may help" if error.errno == errno.ENOSPC else ""
                    trouble = f"cannot watch {point.directory}: {error.strerror}{hint}"
        before, self._points = self._points, found
        for watch in before.keys() - found.keys():
            try:
                self._inotify.rm_watch(watch)
            except OSError:  # its directory is gone, and the watch with it
                continue
        return trouble

    def drain(self, now: float) -> bool:
        """Take all news. Returns whether it is time to look: something that matters came, went or was finished."""
        news = [self._take(event.wd, event.mask, event.name, now) for event in self._inotify.read(timeout=0)]
        return True in news

    def unfinished(self, now: float) -> dict[str, float]:
        """The paths that are being written, and for how long to wait for each."""
        waits = {path: since + SILENCE_SECONDS - now for path, since in self._writing.items()}
        self._writing = {path: self._writing[path] for path, wait in waits.items() if wait > 0}
        return {path: wait for path, wait in waits.items() if wait > 0}

    def _take(self, watch: int, mask: int, name: str, now: float) -> bool:
        if mask & flags.Q_OVERFLOW:
            self.lost = True
            self._writing.clear()
            return True
        points = self._points.get(watch, ())
        if mask & _END_OF_WATCH:
            return bool(points)
        return True in [self._take_name(point, mask, name, now) for point in points]

    def _take_name(self, point: Point, mask: int, name: str, now: float) -> bool:
        if point.name not in (None, name):
            return False
        if mask & flags.ISDIR or (point.name is None and is_ignored(name)):
            return bool(mask & _COMING_AND_GOING)  # `..data` of a ConfigMap volume: all files behind it change
        path = point.path if point.name == name else os.path.join(point.path, name)
        if mask & flags.MODIFY or (mask & flags.CREATE and point.writes and not os.path.islink(path)):
            self._writing[path] = now
            return False
        if mask & flags.ATTRIB:
            return path not in self._writing
        self._writing.pop(path, None)
        return True
