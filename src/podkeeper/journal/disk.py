"""The journal's file on disk: all that blocks. Used by one thread at a time.

    append   write at the end of what is durable, fdatasync
    rewrite  write a new file beside it, fsync, rename it over the old one, fsync the directory

The file is opened anew for each write: a few microseconds, and whoever removed, replaced or truncated it meanwhile is
noticed. Nothing is believed to be durable before the kernel says so, and what it once refused is written again, not
merely synced again: after a failed fsync the next one succeeds although the data is gone.
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
    """Asks the kernel to make files and directories durable. Tests pass a subclass that fails or cuts the power."""

    def data(self, descriptor: int) -> None:
        """Make the content of a file durable, and its size."""
        os.fdatasync(descriptor)

    def everything(self, descriptor: int) -> None:
        """Make a new file, or the names in a directory, durable."""
        os.fsync(descriptor)


KERNEL = Durability()


class JournalFile:
    """A file, how much of it is durable, and whether it is to be kept aside before it is replaced."""

    def __init__(self, path: Path, durability: Durability = KERNEL) -> None:
        self.path = path
        self._durability = durability
        self.size = 0  # so many bytes are durable, and ours
        self.damaged = False
        self._identity: tuple[int, int] | None = None  # of the file that `size` speaks of

    def read(self) -> bytes:
        """All of the file; nothing when there is none."""
        with contextlib.suppress(OSError):
            os.unlink(self._new)  # a rewrite that was cut short; the next one would overwrite it anyway
        try:
            with open(self.path, "rb") as file:
                self._identity = _identity(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            return b""
        self.size = len(data)
        return data

    def cut(self, size: int) -> None:
        """Shorten the file, for good."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            self._durability.everything(descriptor)
        finally:
            os.close(descriptor)
        self.size = size

    def append(self, records: bytes) -> bool:
        """Make records durable after all others. False: the file is not the one we left, it must be rewritten."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(descriptor)
            if _identity(found) != self._identity or found.st_size < self.size:
                return False
            if found.st_size > self.size:  # what an earlier try left
                os.ftruncate(descriptor, self.size)
            _write_all(descriptor, records, self.size)
            self._durability.data(descriptor)
        finally:
            os.close(descriptor)
        self.size += len(records)
        return True

    def rewrite(self, notes: Mapping[str, bytes]) -> None:
        """Replace the file by one that holds these notes. Until it is durable the old one stays."""
        _make_directory(self.path.parent, self._durability)
        if self.damaged:
            self._keep_aside()
        data = encode_all(notes)
        try:
            descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(descriptor, data, 0)
                self._durability.everything(descriptor)
                identity = _identity(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            os.replace(self._new, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._new)  # on a full disk every byte counts
            raise
        _sync_directory(self.path.parent, self._durability)
        self._identity, self.size = identity, len(data)

    @property
    def _new(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def _keep_aside(self) -> None:
        """Give the damaged file a second name, under which it stays."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            os.link(self.path, aside)
        except FileNotFoundError:
            pass  # somebody took it away
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(self.path, aside, self._durability)  # a file system without links
        self.damaged = False
        log.error("the damaged journal is kept as %s; remove it when nobody needs it any more", aside)


def advice(error: OSError, path: Path) -> str:
    """What went wrong with a journal's file, and what a person should do."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            what_to_do = f"make room on the file system of {path.parent}"
        case errno.EROFS:
            what_to_do = f"mount the file system of {path.parent} read-write again (`dmesg` may tell why it is not)"
        case errno.EACCES | errno.EPERM:
            what_to_do = f"let user {os.geteuid()} write in {path.parent}"
        case errno.EFBIG:
            what_to_do = "raise the limit on the size of files (`ulimit -f`)"
        case errno.EIO:
            what_to_do = "the disk may be failing: see `dmesg`"
        case errno.EMFILE | errno.ENFILE:
            what_to_do = "raise the limit on open files (`ulimit -n`)"
        case _:
            what_to_do = f"see to {path}"
    return f"{(error.strerror or str(error)).lower()}; {what_to_do}"


def make_ready(path: Path, durability: Durability = KERNEL) -> None:
    """Make the directory of a journal."""
    _make_directory(path.parent, durability)


def _make_directory(path: Path, durability: Durability) -> None:
    """Make a directory and those above it, so that they are there after a power cut too."""
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
        if error.errno != errno.EINVAL:  # a file system that cannot, and does not need it
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
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
