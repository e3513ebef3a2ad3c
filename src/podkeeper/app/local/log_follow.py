"""Read a log and its rotated files as one, without missing or repeating lines.

    0.log.20261115-100007.gz -> 0.log.20261115-101502 -> 0.log        and so on, after later rotations

The current file gets its stamp when it is rotated. When the reader opens it, it records the newest existing stamp. The
first newer stamp belongs to the opened file. So a slow reader finds its position even if its file was compressed or
removed in the meantime.

Files are local and blocks are small, so they are read on the event loop. Only the search for the last lines uses a
thread.
"""

import asyncio
import gzip
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Final

from podkeeper.rules.logs.reading import BLOCK_BYTES, LogOptions, tail_start
from podkeeper.rules.logs.rotation import BEFORE_ALL, COMPRESSED, Stamp, parts_of, stamp_at

_BLOCKS_AT_ONCE: Final = 16  # blocks to read before other tasks may run
_TRIES: Final = 100  # maximum attempts to open a file that rotation keeps renaming
_LATE: Final = timedelta(minutes=1)  # a line may be this much newer than the stamp of its file, after a clock change
_SIZE_BYTES: Final = 4  # the end of a gzip file: the size of its content modulo 2**32
_SIZE_MASK: Final = 0xFFFFFFFF

_Part = FileIO | gzip.GzipFile


class LogFollower:
    """The position of a reader in a log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part: _Part | None = None
        # Stamp of the open file. None: it was the current file, and `_after` was the newest stamp at that time.
        self._stamp: Stamp | None = None
        self._after = BEFORE_ALL  # see `_stamp`
        self._last: Stamp | None = None  # without `follow`, reading ends with the file after this one

    async def open_first(self, options: LogOptions) -> bool:
        """Open the file with the first requested line, at that line. Returns false if there is no log yet."""
        if not options.follow:
            self._last = self._newest()
        if options.tail_lines is not None:
            return await asyncio.to_thread(self._open_tail, options.tail_lines)
        return self._open_after(_stamp_before(options.since))

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the rest of the open file."""
        count = 0
        while self._part is not None and (block := _read(self._part)):
            yield block
            count += 1
            if count % _BLOCKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def has_more(self) -> bool:
        """Return whether there is more to read: this file has grown or was truncated, or there is a next file."""
        part = self._part
        if part is None or (self._last is not None and (self._stamp is None or self._stamp > self._last)):
            return False
        if self._stamp is None and os.fstat(part.fileno()).st_size < part.tell():
            part.seek(0)
            return True
        if not self._has_successor(part):
            return False
        if isinstance(part, FileIO) and os.fstat(part.fileno()).st_size > part.tell():
            return True  # lines were written between the last read and the rotation
        return self._open_after(self._own_stamp(part) if self._stamp is None else self._stamp)

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    # Parts.

    def _parts(self) -> dict[Stamp, Path]:
        try:
            names = os.listdir(self._path.parent)
        except OSError:
            return {}
        return {stamp: self._path.with_name(name) for stamp, name in parts_of(self._path.name, names).items()}

    def _newest(self) -> Stamp:
        return max(self._parts(), default=BEFORE_ALL)

    def _has_successor(self, part: _Part) -> bool:
        """Return whether the file is complete. A renamed file may still be written to until there is a new one."""
        try:
            written = os.stat(self._path)
        except OSError:
            return self._newest() > (self._own_stamp(part) if self._stamp is None else self._stamp)
        own = os.fstat(part.fileno())
        return (written.st_dev, written.st_ino) != (own.st_dev, own.st_ino)

    def _own_stamp(self, part: _Part) -> Stamp:
        """Return the stamp of the open file after its rotation, or the previous stamp if the file is removed."""
        for stamp, path in self._parts().items():
            if stamp > self._after:
                return stamp if _is_same(path, part) else self._after
        return self._after

    def _open_after(self, stamp: Stamp) -> bool:
        """Open the first file that is newer than a stamp. Returns false if there is none."""
        for _ in range(_TRIES):
            later = [(each, path) for each, path in self._parts().items() if each > stamp]
            if later:
                if (part := _opened(later[0][1])) is not None:
                    self._switch_to(part, later[0][0])
                    return True
                continue  # it was compressed or removed after the listing
            if (part := _opened(self._path)) is None:
                return False
            if self._newest() <= stamp:
                self._switch_to(part, None)
                self._after = stamp
                return True
            part.close()  # a rotation happened during the open, so it is unknown which file was opened
        return False

    def _open_before(self, stamp: Stamp | None) -> bool:
        """Open the last file that is older than a stamp (None: the newest). Returns false if there is none."""
        for each, path in reversed(self._parts().items()):
            if (stamp is None or each < stamp) and (part := _opened(path)) is not None:
                self._switch_to(part, each)
                return True
        return False

    def _switch_to(self, part: _Part, stamp: Stamp | None) -> None:
        self.close()
        self._part, self._stamp = part, stamp

    def _open_tail(self, lines: int) -> bool:
        """Open the file with the first of the last N lines, at that line, or the oldest file."""
        if not self._open_after(self._newest()) and not self._open_before(None):
            return False
        while self._part is not None and (lines := _seek_tail(self._part, lines)) > 0:
            if not self._open_before(self._stamp):
                self._part.seek(0)
                break
        return True


def _stamp_before(since: int) -> Stamp:
    """Return a stamp older than all files with lines since this time (in nanoseconds since 1970)."""
    with suppress(OverflowError):
        if since > 0:
            return stamp_at(datetime.fromtimestamp(0, UTC) + timedelta(seconds=since // 10**9) - _LATE)
    return BEFORE_ALL


def _opened(path: Path) -> _Part | None:
    try:
        return gzip.GzipFile(path, "rb") if path.suffix == COMPRESSED else FileIO(path, "rb")
    except OSError:
        return None


def _read(part: _Part) -> bytes:
    """Return the next block, or b"" at the end or at the first error of a damaged file."""
    try:
        return part.read(BLOCK_BYTES) or b""
    except (OSError, EOFError, zlib.error):
        return b""


def _is_same(path: Path, part: _Part) -> bool:
    """Return whether a rotated file is the open one. A compressed file is recognized by its size only."""
    own = os.fstat(part.fileno())
    try:
        there = path.stat()
        if path.suffix != COMPRESSED:
            return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
        with path.open("rb") as packed:
            packed.seek(-_SIZE_BYTES, os.SEEK_END)
            return packed.read() == (own.st_size & _SIZE_MASK).to_bytes(_SIZE_BYTES, "little")
    except OSError:
        return False


def _seek_tail(part: _Part, lines: int) -> int:
    """Go to the first of the last N lines of a file. Returns how many lines are missing."""
    if isinstance(part, FileIO):
        size = os.fstat(part.fileno()).st_size  # ignore lines that are written during the search
        start = tail_start(size, lambda at, length: os.pread(part.fileno(), length, at), lines)
        part.seek(start)
        if start > 0:
            return 0
        return lines - sum(os.pread(part.fileno(), BLOCK_BYTES, at).count(b"\n") for at in range(0, size, BLOCK_BYTES))
    there = 0
    while block := _read(part):
        there += block.count(b"\n")
    part.seek(0)
    for _ in range(there - lines):
        part.readline()
    return lines - there
