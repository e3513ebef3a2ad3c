"""Store values in small files that only the agent's user can read.

There is one file per key.

Writes are atomic: after a crash or power failure, a file has its old or its new content. All calls block, and raise
OSError if the disk fails.

The directory has mode 0700, each file 0600. A directory of another user or a symbolic link is not used, because its
owner could read the files. A removed file is gone from the directory when the call returns, but its blocks on the disk
are not overwritten.
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
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> frozenset[str]:
        """Create the directory if needed, and remove unfinished files. Returns the names of the others.

        Ignores files whose names `name_of` cannot return.
        """
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        descriptor = self._open_directory()
        try:
            # The directory may have been created earlier with another umask or by hand.
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
        """Return the file name of a key: a hash, because object names can be longer than file names."""
        return hashlib.blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
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
        """Replace the content of a file. The write is durable when the call returns."""
        directory, unfinished = self._open_directory(), name + _UNFINISHED
        try:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(unfinished, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(data)
                    file.flush()
                    # Before the rename. In the other order, a power failure could leave an empty file under the final
                    # name.
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
        # Opened for each call, because the directory may be replaced at any time, and its owner must be checked.
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            os.close(descriptor)
            raise OSError(
                errno.EPERM, f"cannot use {self._directory}: it belongs to user {found.st_uid}, expected {os.geteuid()}"
            )
        return descriptor
