"""The lock beside a journal: only one agent can open the journal.

It is a `flock` on its own file, because rewriting the journal's file would lose a lock on it. The kernel releases it
when the holder exits for any reason. The file contains the holder's process id.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from weakref import WeakSet

from podkeeper.journal.errors import JournalInUse


class JournalLock:
    """A lock, held from `take` to `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(self)

    @classmethod
    def take(cls, path: Path) -> "JournalLock":
        """Take the lock. Raises JournalInUse, or OSError if the file cannot be created or opened."""
        # Read-only, because a file open for writing prevents a read-only remount of its file system.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # `flock` and not a PID file: after a crash, a PID may belong to another process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(descriptor)
            os.close(descriptor)
            holder = f"process {pid}" if pid else "another process"
            raise JournalInUse(
                f"cannot open the journal: {holder} has it open (lock file {path}); "
                "stop that agent first, or use another directory for this one",
                pid,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):  # best effort: on a full disk, the lock file has no process id
            path.write_text(f"{os.getpid()}\n")
        return cls(descriptor)

    def release(self) -> None:
        """Release the lock. Repeated calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: "WeakSet[JournalLock]" = WeakSet()


def _pid_in(descriptor: int) -> int:
    try:
        return int(os.pread(descriptor, 32, 0))
    except (OSError, ValueError):
        return 0


def _release_in_child() -> None:
    """Release the lock in a forked child, which would otherwise hold it after the parent has exited."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
