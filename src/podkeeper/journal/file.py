"""The journal in a file: notes in memory, records on disk, one thread that writes them.

    put, drop -> pending records -> (sync) thread: append, fdatasync -> durable
                                          `- or rewrite, when most of the file is out of date, or after a purge

`put` and `drop` only note; `sync` hands everything noted so far to the thread, and whoever calls it meanwhile shares
the next round (group commit). The event loop never waits for the disk. What the disk refuses stays noted and goes with
the next sync. After a restart a torn end is cut off; of a file that is damaged before its end the part up to the
damage is taken, and the file is kept aside.

What is kept small: the file is rewritten when more than half of it, and more than `spare_bytes`, is out of date; in
memory there are the notes, and at most as much pending as that.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from podkeeper.journal.disk import KERNEL, Durability, JournalFile, advice, make_ready
from podkeeper.journal.errors import JournalUnusable
from podkeeper.journal.lock import JournalLock
from podkeeper.journal.records import HEADER, Damage, OtherVersion, Reading, encode, read, record_size
from podkeeper.model.errors import TryLater

log = logging.getLogger(__name__)

SPARE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Round:
    """One round of writing: what is to become durable, and the word when it has, or why it has not."""

    upto: int  # the number of the last write in it
    records: bytes | None  # what to append; None: the file is to be rewritten
    notes: Mapping[str, bytes]
    done: "asyncio.Future[Exception | None]"


class FileJournal:
    """A journal in one file. Only one process at a time has it open."""

    def __init__(
        self,
        file: JournalFile,
        lock: JournalLock,
        notes: dict[str, bytes],
        spare_bytes: int,
        thread: "WriterThread | None" = None,
    ) -> None:
        """Use `open`."""
        self._file = file
        self._lock = lock
        self._notes = notes
        self._spare_bytes = spare_bytes
        self._live_bytes = sum(record_size(key, value) for key, value in notes.items())
        self._pending: bytearray | None = bytearray() if file.size and not file.damaged else None  # None: rewrite
        self._writes = 0
        self._durable = 0  # of the writes, so many are safe
        self._round: _Round | None = None
        self._thread = thread or _Thread()
        self._closed = False
        self.rounds = 0  # how many times the disk was written and synced

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        spare_bytes: int = SPARE_BYTES,
        durability: Durability = KERNEL,
        thread: "WriterThread | None" = None,
    ) -> "FileJournal":
        """Open a journal, or begin one. Blocks while it reads the file. Raises JournalUnusable, JournalInUse."""
        try:
            make_ready(path, durability)
            lock = JournalLock.take(path.with_name(path.name + ".lock"))
        except OSError as error:
            raise JournalUnusable(f"cannot open the journal {path}: {advice(error, path)}") from error
        try:
            file = JournalFile(path, durability)
            return cls(file, lock, _recovered(file), spare_bytes, thread)
        except OSError as error:
            lock.release()
            raise JournalUnusable(f"cannot read the journal {path}: {advice(error, path)}") from error
        except BaseException:
            lock.release()
            raise

    def load(self) -> Mapping[str, bytes]:
        """All there is, as a copy."""
        return dict(self._notes)

    def put(self, key: str, value: bytes) -> None:
        """Write; what is there already costs nothing."""
        old = self._notes.get(key)
        if old == value:
            return
        value = bytes(value)
        self._live_bytes += record_size(key, value) - (0 if old is None else record_size(key, old))
        self._notes[key] = value
        self._note(encode(key, value))

    def drop(self, key: str) -> None:
        """Forget."""
        old = self._notes.pop(key, None)
        if old is None:
            return
        self._live_bytes -= record_size(key, old)
        self._note(encode(key, None))

    def purge(self) -> None:
        """Have the next sync rewrite the file."""
        self._writes += 1
        self._pending = None

    async def sync(self) -> None:
        """Return once everything written before this call is durable. Being cancelled loses nothing."""
        mark = self._writes
        while self._durable < mark:
            current = self._round or self._begin()
            await asyncio.wait((current.done,))  # not the future itself: who is cancelled must not cancel the round
            error = current.done.result()
            if error is None or mark > current.upto:
                continue
            if isinstance(error, OSError):
                path = self._file.path
                raise TryLater(f"cannot write the journal {path}: {advice(error, path)}") from error
            raise error

    async def close(self) -> None:
        """Sync what is left and let others have the journal. TryLater: closed, but the rest is lost."""
        try:
            await self.sync()
        finally:
            if self._round is None:  # else it is being written, and stays ours until the process ends
                self._closed = True
                self._thread.end()
                self._lock.release()

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._file.size

    def _note(self, record: bytes) -> None:
        self._writes += 1
        if self._pending is not None:
            self._pending += record
            if self._is_wasteful(len(self._pending)):
                self._pending = None

    def _is_wasteful(self, more_bytes: int) -> bool:
        garbage = self._file.size + more_bytes - len(HEADER) - self._live_bytes
        return garbage > max(self._live_bytes, self._spare_bytes)

    def _begin(self) -> _Round:
        """Let the thread write everything noted so far."""
        assert not self._closed, "the journal is closed"
        loop = asyncio.get_running_loop()
        records = None if self._pending is None else bytes(self._pending)
        if records is not None and self._is_wasteful(len(records)):
            records = None
        begun = _Round(self._writes, records, dict(self._notes), loop.create_future())

        def work() -> None:
            error = _written(self._file, begun)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._end, begun, error)

        try:
            self._thread.do(work)
        except RuntimeError as error:
            raise TryLater(f"cannot write the journal {self._file.path}: no thread can be started: {error}") from error
        self._pending = bytearray()
        self._round = begun
        return begun

    def _end(self, ended: _Round, error: Exception | None) -> None:
        self._round = None
        if error is None:
            self._durable = ended.upto
            self.rounds += 1
        elif ended.records is None or self._pending is None:
            self._pending = None
        else:
            self._pending[:0] = ended.records
        if not ended.done.done():  # only a loop that is being torn down cancels it
            ended.done.set_result(error)


def _written(file: JournalFile, what: _Round) -> Exception | None:
    """Write a round, in the thread. Returns what went wrong."""
    try:
        if what.records is None or not file.append(what.records):
            file.rewrite(what.notes)
    except Exception as error:  # the thread's boundary: whoever syncs is told
        return error
    return None


def _recovered(file: JournalFile) -> dict[str, bytes]:
    """The notes that a file still holds; the file is put right, if the disk allows it."""
    reading = _read(file)
    if reading.damage is Damage.NONE:
        return reading.notes
    try:
        if reading.damage is Damage.TAIL:
            torn = file.size - reading.end
            log.warning(
                "the journal %s is torn at byte %d: the last %d bytes are cut off", file.path, reading.end, torn
            )
            file.cut(reading.end)
        else:
            file.damaged = True
            kept = len(reading.notes)
            log.error("the journal %s is damaged at byte %d: %d notes could be read", file.path, reading.end, kept)
            file.rewrite(reading.notes)
    except OSError as error:
        file.size = 0  # nothing in it may be appended to: the next sync writes it anew
        log.warning("cannot put the journal %s right yet: %s", file.path, advice(error, file.path))
    return reading.notes


def _read(file: JournalFile) -> Reading:
    try:
        return read(file.read())
    except OtherVersion as error:
        raise JournalUnusable(
            f"cannot open the journal {file.path}: it is of version {error}, and this program knows version 1 only; "
            "run the program that wrote it, or move the file away to begin a new one"
        ) from error


class WriterThread(Protocol):
    """What does the writing. Tests replace it, to write in the event loop at a moment of their choice."""

    def do(self, work: Callable[[], None]) -> None:
        """Have something done. RuntimeError: no thread can be started."""

    def end(self) -> None:
        """Let the thread end when it has done everything."""


class _Thread:
    """One thread, begun with the first work and kept: when processes run out, it is there already.

    It is a daemon thread, not an executor's: the interpreter waits for those at its end, and a disk that hangs would
    keep the agent from ending.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Have something done. RuntimeError: no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="journal", daemon=True)
            thread.start()
            self._thread = thread
        self._work.put(work)

    def end(self) -> None:
        """Let the thread end when it has done everything."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
