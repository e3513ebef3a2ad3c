"""A log and its rotated parts, read as one: no line is missed and none is told twice, however often it is rotated.

    0.log.20261115-100007.gz -> 0.log.20261115-101502 -> 0.log        and on, while more are made

The part that is being written has no stamp yet. What is known of it is the newest stamp that was there when it was
opened: the first one after that will be its own. So even a reader that is so slow that its part is compressed
meanwhile, or removed, finds its place. Files are local and blocks are small: they are read on the loop; only the
search for the last lines goes to a thread.
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

from podkeeper.rules.log_rotation import BEFORE_ALL, COMPRESSED, Stamp, parts_of, stamp_at
from podkeeper.rules.logread import BLOCK_BYTES, LogOptions, tail_start

_BLOCKS_AT_ONCE: Final = 16  # then others get their turn
_TRIES: Final = 100  # to open a part before it gets another name
_LATE: Final = timedelta(minutes=1)  # a line may be so much younger than the stamp of its part: clocks are put right
_SIZE_BYTES: Final = 4  # at the end of a compressed file: the size of what is in it, as far as it fits
_SIZE_MASK: Final = 0xFFFFFFFF

_Part = FileIO | gzip.GzipFile


class LogTrail:
    """Where a reader stands in a log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part: _Part | None = None
        self._stamp: Stamp | None = None  # of the open part; None: it was the one being written when it was opened,
        self._after = BEFORE_ALL  # and this was the newest stamp then
        self._last: Stamp | None = None  # with the part after this one a reader who does not follow is done

    async def open_first(self, options: LogOptions) -> bool:
        """Open the part in which the wanted lines begin, where they begin. False: there is no log yet."""
        if not options.follow:
            self._last = self._newest()
        if options.tail_lines is not None:
            return await asyncio.to_thread(self._open_tail, options.tail_lines)
        return self._open_after(_stamp_before(options.since))

    async def blocks(self) -> AsyncIterator[bytes]:
        """What stands in the open part, up to its end."""
        count = 0
        while self._part is not None and (block := _read(self._part)):
            yield block
            count += 1
            if count % _BLOCKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def moved_on(self) -> bool:
        """At the end of a part: whether there is more to read, in it (it grew, or was emptied) or in the next one."""
        part = self._part
        if part is None or (self._last is not None and (self._stamp is None or self._stamp > self._last)):
            return False
        if self._stamp is None and os.fstat(part.fileno()).st_size < part.tell():
            part.seek(0)
            return True
        if not self._has_successor(part):
            return False
        if isinstance(part, FileIO) and os.fstat(part.fileno()).st_size > part.tell():
            return True  # the last words before the change came after the last look
        return self._open_after(self._own_stamp(part) if self._stamp is None else self._stamp)

    def close(self) -> None:
        """Read no more."""
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
        """Whether nothing is written to a part any more; one that has its new name may still be written to."""
        try:
            written = os.stat(self._path)
        except OSError:
            return self._newest() > (self._own_stamp(part) if self._stamp is None else self._stamp)
        own = os.fstat(part.fileno())
        return (written.st_dev, written.st_ino) != (own.st_dev, own.st_ino)

    def _own_stamp(self, part: _Part) -> Stamp:
        """The stamp that the open part has got; if it is gone already, the one before that."""
        for stamp, path in self._parts().items():
            if stamp > self._after:
                return stamp if _is_same(path, part) else self._after
        return self._after

    def _open_after(self, stamp: Stamp) -> bool:
        """Open the first part that is newer than a stamp; if there is none, all stays as it is."""
        for _ in range(_TRIES):
            later = [(each, path) for each, path in self._parts().items() if each > stamp]
            if later:
                if (part := _opened(later[0][1])) is not None:
                    self._go_to(part, later[0][0])
                    return True
                continue  # it was compressed, or removed, since we looked
            if (part := _opened(self._path)) is None:
                return False
            if self._newest() <= stamp:
                self._go_to(part, None)
                self._after = stamp
                return True
            part.close()  # rotated just now: nobody knows whether this is the old file or the new one
        return False

    def _open_before(self, stamp: Stamp | None) -> bool:
        """Open the last part that is older than a stamp (None: the newest); if there is none, all stays as it is."""
        for each, path in reversed(self._parts().items()):
            if (stamp is None or each < stamp) and (part := _opened(path)) is not None:
                self._go_to(part, each)
                return True
        return False

    def _go_to(self, part: _Part, stamp: Stamp | None) -> None:
        self.close()
        self._part, self._stamp = part, stamp

    def _open_tail(self, lines: int) -> bool:
        """Open the part in which the last so many lines begin, there, or the oldest one."""
        if not self._open_after(self._newest()) and not self._open_before(None):
            return False
        while self._part is not None and (lines := _seek_tail(self._part, lines)) > 0:
            if not self._open_before(self._stamp):
                self._part.seek(0)
                break
        return True


def _stamp_before(since: int) -> Stamp:
    """A stamp that no part has which holds lines from a time on, in nanoseconds since 1970."""
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
    """The next block; a part that is damaged ends where it is."""
    try:
        return part.read(BLOCK_BYTES) or b""
    except (OSError, EOFError, zlib.error):
        return b""


def _is_same(path: Path, part: _Part) -> bool:
    """Whether a rotated file is the one that is open, perhaps compressed: then its size must do to know it again."""
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
    """Go to where the last so many lines of a part begin. Returns how many there are too few."""
    if isinstance(part, FileIO):
        size = os.fstat(part.fileno()).st_size  # what comes during the search comes after the tail
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
