"""Blocking operations on the journal's file. One thread uses them at a time.

    append   write after the durable bytes, fdatasync
    rewrite  write a new file beside the old one, fsync, rename it over the old one, fsync the directory

Each write opens the file again. This costs a few microseconds and detects that the file was removed, replaced or
truncated. Data counts as durable only after the kernel has confirmed it. After a failed fsync, the data is written
again.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from podkeeper.journal.records import encode_all

log = logging.getLogger(__name__)

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Durability:
    """Makes files and directories durable. Tests pass a subclass that fails or simulates a power cut."""

    def data(self, descriptor: int) -> None:
        """Make the content and the size of a file durable."""
        # Cheaper than fsync: it writes the size, but not the times of the file.
        os.fdatasync(descriptor)

    def everything(self, descriptor: int) -> None:
        """Make a new file, or the names in a directory, durable."""
        os.fsync(descriptor)


KERNEL = Durability()


class JournalFile:
    """A file, the number of its durable bytes, and whether to keep a copy before it is replaced."""

    def __init__(self, path: Path, durability: Durability = KERNEL) -> None:
        self.path = path
        self._durability = durability
        self.size = 0  # number of durable bytes that this object has written or read
        self.damaged = False
        self._identity: tuple[int, int] | None = None  # device and inode of the file that `size` refers to

    def read(self) -> bytes:
        """Return the content of the file, empty if it does not exist."""
        with contextlib.suppress(OSError):
            os.unlink(self._new)  # from an interrupted rewrite; the next one would overwrite it anyway
        try:
            with open(self.path, "rb") as file:
                self._identity = _identity(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            return b""
        self.size = len(data)
        return data

    def cut(self, size: int) -> None:
        """Truncate the file durably."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            self._durability.everything(descriptor)
        finally:
            os.close(descriptor)
        self.size = size

    def append(self, records: bytes) -> bool:
        """Append records durably. Return False if another process changed the file. Then it must be rewritten."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(descriptor)
            # The file was removed, replaced or truncated. Appending to it would not make the older entries durable.
            if _identity(found) != self._identity or found.st_size < self.size:
                return False
            if found.st_size > self.size:  # left by a failed append
                os.ftruncate(descriptor, self.size)
            # At the durable size and not at the end of the file, so that bytes of a failed append are overwritten.
            _write_all(descriptor, records, self.size)
            self._durability.data(descriptor)
        finally:
            os.close(descriptor)
        # Only after the sync. After a failed fsync, the kernel may have dropped the data, and a second fsync would
        # succeed without it. So the same bytes must be written again.
        self.size += len(records)
        return True

    def rewrite(self, entries: Mapping[str, bytes]) -> None:
        """Replace the file by one with exactly these entries. The old file stays until the new one is durable."""
        _make_directory(self.path.parent, self._durability)
        # Before the file is replaced, because its entries may still be recovered by hand.
        if self.damaged:
            self._keep_aside()
        data = encode_all(entries)
        try:
            descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(descriptor, data, 0)
                self._durability.everything(descriptor)
                identity = _identity(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            # After the fsync. In the other order, a power cut could leave an empty file under the final name.
            os.replace(self._new, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._new)  # the disk may be full
            raise
        # The rename is durable only now. Until then, a power cut brings the old file back.
        _sync_directory(self.path.parent, self._durability)
        self._identity, self.size = identity, len(data)

    @property
    def _new(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def _keep_aside(self) -> None:
        """Keep the damaged file under a second name."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            os.link(self.path, aside)
        except FileNotFoundError:
            pass  # removed in the meantime
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(self.path, aside, self._durability)  # a file system without hard links
        self.damaged = False
        log.error("the damaged journal is kept as %s: remove the file after inspecting it", aside)


def advice(error: OSError, path: Path) -> str:
    """Describe an error of the journal's file and what to do about it."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            what_to_do = f"free space on the file system of {path.parent}"
        case errno.EROFS:
            what_to_do = f"mount the file system of {path.parent} read-write again (`dmesg` may show the reason)"
        case errno.EACCES | errno.EPERM:
            what_to_do = f"give user {os.geteuid()} write permission for {path.parent}"
        case errno.EFBIG:
            what_to_do = "raise the limit on the size of files (`ulimit -f`)"
        case errno.EIO:
            what_to_do = "the disk may be failing, check `dmesg`"
        case errno.EMFILE | errno.ENFILE:
            what_to_do = "raise the limit on open files (`ulimit -n`)"
        case _:
            what_to_do = f"check {path}"
    return f"{(error.strerror or str(error)).lower()}; {what_to_do}"


def make_ready(path: Path, durability: Durability = KERNEL) -> None:
    _make_directory(path.parent, durability)


def _make_directory(path: Path, durability: Durability) -> None:
    """Create a directory and its parents durably."""
    if path.is_dir():
        return
    _make_directory(path.parent, durability)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _sync_directory(path.parent, durability)


def _sync_directory(path: Path, durability: Durability) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        durability.everything(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that neither supports nor needs it
            raise
    finally:
        os.close(descriptor)


def _copy(path: Path, copy: Path, durability: Durability) -> None:
    with open(path, "rb") as source, open(copy, "xb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        durability.everything(target.fileno())


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        # A write may be short, for example if the disk becomes full.
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
