"""A directory of small files that only the agent's user can read: one file per key, replaced as a whole.

In: keys and bytes. Out: the bytes after a crash or a power cut, as they were before or after the last write, never
mixed. Every call blocks, and raises OSError when the disk refuses.

The directory has mode 0700 and each file 0600. A directory of another user, or one that is a symbolic link, is not
used: its owner could read what is written to it. A file that is removed is gone from the directory when the call
returns. The blocks on the disk are not overwritten.
"""

import contextlib
import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Final

_UNFINISHED: Final = ".new"
_NAME_BYTES: Final = 24
_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * _NAME_BYTES}}}")


class ObjectFiles:
    """Values by key, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> frozenset[str]:
        """Make the directory if there is none, and remove unfinished files. Returns the names of the others.

        Files with names that `name_of` cannot give are left alone.
        """
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        descriptor = self._open_directory()
        try:
            os.fchmod(descriptor, 0o700)
            found = os.listdir(descriptor)
            for name in found:
                if name.endswith(_UNFINISHED) and _NAME.fullmatch(name.removesuffix(_UNFINISHED)):
                    os.unlink(name, dir_fd=descriptor)
            return frozenset(name for name in found if _NAME.fullmatch(name))
        finally:
            os.close(descriptor)

    @staticmethod
    def name_of(key: str) -> str:
        """The name of a key's file: a hash, because the name of an object can be longer than that of a file."""
        return hashlib.blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()

    def read(self, name: str) -> bytes | None:
        """What was written last under a name; None: nothing."""
        directory = self._open_directory()
        try:
            # O_NONBLOCK, because opening a FIFO without it blocks
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        except FileNotFoundError:
            return None
        finally:
            os.close(directory)
        try:
            # closefd=False: if open() raises (a directory), the descriptor is closed below
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Replace what is there. Durable when it returns."""
        directory, unfinished = self._open_directory(), name + _UNFINISHED
        try:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(unfinished, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(unfinished, dir_fd=directory)
                raise
            os.fsync(directory)
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        directory = self._open_directory()
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            os.fsync(directory)
        finally:
            os.close(directory)

    def _open_directory(self) -> int:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            os.close(descriptor)
            raise OSError(errno.EPERM, f"{self._directory} belongs to user {found.st_uid}")
        return descriptor
