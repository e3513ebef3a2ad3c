"""The journal in a file: entries in memory, records on disk, a writer thread.

    put, drop -> pending records -> (sync) thread: append, fdatasync -> durable
                                          `- or rewrite, if most of the file is obsolete, or after a purge

`put` and `drop` only collect records. `sync` passes all of them to the thread. Calls of `sync` during a write share the
next one (group commit). The event loop never waits for the disk. Records that could not be written stay pending until
the next sync. After a restart, a torn end is cut off. If the file is damaged before its end, the part before the damage
is used and the file is kept aside.

The file is rewritten if more than half of it, and more than `spare_bytes`, is obsolete. Memory use is bounded by the
size of all entries plus `spare_bytes` of pending records.
"""

import asyncio
import logging
import queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from podkeeper.concurrency.threads import start_daemon
from podkeeper.journal.disk import KERNEL, Durability, JournalFile, advice, make_ready
from podkeeper.journal.errors import JournalUnusable
from podkeeper.journal.lock import JournalLock
from podkeeper.journal.records import HEADER, Damage, OtherVersion, ParsedRecords, encode, read, record_size
from podkeeper.model.errors import TryLater

log = logging.getLogger(__name__)

# Without it, a small file would be rewritten after every few changes.
SPARE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Batch:
    """One write: the records to make durable, and a future for its result."""

    upto: int  # the number of its last put or drop
    records: bytes | None  # to append; None: rewrite the file
    entries: Mapping[str, bytes]
    done: "asyncio.Future[Exception | None]"


class FileJournal:
    """A journal in one file. Only one process can have it open."""

    def __init__(
        self,
        file: JournalFile,
        lock: JournalLock,
        entries: dict[str, bytes],
        spare_bytes: int,
        thread: "WriterThread | None" = None,
    ) -> None:
        """Use `open`."""
        self._file = file
        self._lock = lock
        self._entries = entries
        self._spare_bytes = spare_bytes
        self._live_bytes = sum(record_size(key, value) for key, value in entries.items())
        # An empty or damaged file is written as a whole. Records after the damage could not be read again.
        self._pending: bytearray | None = bytearray() if file.size and not file.damaged else None  # None: rewrite
        self._writes = 0
        self._durable = 0  # number of the last durable put or drop
        self._batch: _Batch | None = None
        self._thread = thread or _Thread()
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        spare_bytes: int = SPARE_BYTES,
        durability: Durability = KERNEL,
        thread: "WriterThread | None" = None,
    ) -> "FileJournal":
        """Open or create a journal. Blocks while it reads the file. Raises JournalUnusable, JournalInUse."""
        try:
            make_ready(path, durability)
            # Before the file is read or repaired: another agent may be appending to it.
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
        """Return a copy of all entries."""
        return dict(self._entries)

    def put(self, key: str, value: bytes) -> None:
        """Set an entry. If the value is unchanged, nothing is written."""
        old = self._entries.get(key)
        # Statuses and versions are often written again unchanged. An fsync is expensive.
        if old == value:
            return
        # The caller may change a bytearray before the thread writes it.
        value = bytes(value)
        self._live_bytes += record_size(key, value) - (0 if old is None else record_size(key, old))
        self._entries[key] = value
        self._add_record(encode(key, value))

    def drop(self, key: str) -> None:
        old = self._entries.pop(key, None)
        if old is None:
            return
        self._live_bytes -= record_size(key, old)
        self._add_record(encode(key, None))

    def purge(self) -> None:
        """Make the next sync rewrite the file."""
        self._writes += 1
        self._pending = None

    async def sync(self) -> None:
        """Return when everything written before this call is durable. Cancelling it loses nothing."""
        # Later writes do not extend the wait of this caller.
        mark = self._writes
        while self._durable < mark:
            current = self._batch or self._start_batch()
            await asyncio.wait(
                (current.done,)
            )  # not the future itself, because cancelling this call must not cancel the write
            error = current.done.result()
            # A batch that began before our last write does not cover it, whether it succeeded or not.
            if error is None or mark > current.upto:
                continue
            if isinstance(error, OSError):
                path = self._file.path
                raise TryLater(f"cannot write the journal {path}: {advice(error, path)}") from error
            raise error

    async def close(self) -> None:
        """Sync the rest and release the journal.

        Raises TryLater if the last writes are lost. The journal is closed anyway.
        """
        try:
            await self.sync()
        finally:
            if self._batch is None:  # otherwise a write hangs, and the lock stays until the process exits
                self._closed = True
                self._thread.end()
                self._lock.release()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.size

    def _add_record(self, record: bytes) -> None:
        self._writes += 1
        # After a purge, or if most of the file is obsolete, the whole file is written anyway.
        if self._pending is not None:
            self._pending += record
            if self._needs_rewrite(len(self._pending)):
                self._pending = None

    def _needs_rewrite(self, more_bytes: int) -> bool:
        # At least half of the file must be obsolete, so the bytes written stay proportional to the entries.
        garbage = self._file.size + more_bytes - len(HEADER) - self._live_bytes
        return garbage > max(self._live_bytes, self._spare_bytes)

    def _start_batch(self) -> _Batch:
        """Start to write all pending records in the thread."""
        assert not self._closed, "the journal is closed"
        loop = asyncio.get_running_loop()
        records = None if self._pending is None else bytes(self._pending)
        if records is not None and self._needs_rewrite(len(records)):
            records = None
        # A copy of the table, because the event loop changes it while the thread writes. The values are shared.
        batch = _Batch(self._writes, records, dict(self._entries), loop.create_future())

        def work() -> None:
            error = _write_batch(self._file, batch)
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                loop.call_soon_threadsafe(self._finish_batch, batch, error)

        try:
            self._thread.do(work)
        except RuntimeError as error:
            raise TryLater(f"cannot write the journal {self._file.path}: cannot start a thread: {error}") from error
        # Only after the thread has accepted the work: otherwise the records would be lost.
        self._pending = bytearray()
        self._batch = batch
        return batch

    def _finish_batch(self, batch: _Batch, error: Exception | None) -> None:
        self._batch = None
        if error is None:
            self._durable = batch.upto
        elif batch.records is None or self._pending is None:
            self._pending = None
        else:
            # In front of newer records. Behind them, an old value would replace a newer one after a restart.
            self._pending[:0] = batch.records
        if not batch.done.done():  # cancelled only while the loop shuts down
            batch.done.set_result(error)


def _write_batch(file: JournalFile, batch: _Batch) -> Exception | None:
    """Write a batch in the thread. Return the error, if any."""
    try:
        if batch.records is None or not file.append(batch.records):
            file.rewrite(batch.entries)
    except Exception as error:  # the top of the thread: return every error, and `sync` raises it
        return error
    return None


def _recovered(file: JournalFile) -> dict[str, bytes]:
    """Return the entries of a file, and repair the file if the disk allows it."""
    parsed = _read(file)
    if parsed.damage is Damage.NONE:
        return parsed.entries
    try:
        if parsed.damage is Damage.TAIL:
            torn = file.size - parsed.end
            log.warning(
                "journal %s ends in an incomplete record at byte %d: cut off %d bytes", file.path, parsed.end, torn
            )
            file.cut(parsed.end)
        else:
            file.damaged = True
            kept = len(parsed.entries)
            log.error("journal %s is damaged at byte %d: recovered %d entries", file.path, parsed.end, kept)
            file.rewrite(parsed.entries)
    except OSError as error:
        file.size = 0  # do not append to it: the next sync rewrites it
        log.warning("cannot repair journal %s yet, will retry: %s", file.path, advice(error, file.path))
    return parsed.entries


def _read(file: JournalFile) -> ParsedRecords:
    try:
        return read(file.read())
    except OtherVersion as error:
        raise JournalUnusable(
            f"cannot open the journal {file.path}: unsupported version {error}, expected 1; "
            "run the podkeeper version that wrote it, or move the file away to start with an empty one"
        ) from error


class WriterThread(Protocol):
    """Executes writes. Tests replace it to write in the event loop at a chosen time."""

    def do(self, work: Callable[[], None]) -> None:
        """Execute a function after all earlier ones. Raises RuntimeError if no thread can be started."""

    def end(self) -> None:
        """Stop the thread when it has executed everything."""


class _Thread:
    """One thread, started with the first write and kept, because later the process limit might prevent a start.

    It is a daemon thread, not an executor's. The interpreter waits for executor threads when it exits, so a hanging
    disk would keep the agent from exiting.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_started = False

    def do(self, work: Callable[[], None]) -> None:
        if not self._is_started:
            start_daemon(self._run, "journal")
            self._is_started = True
        self._work.put(work)

    def end(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
