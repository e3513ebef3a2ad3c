"""The lock beside a journal: as long as one agent holds it, no other can open the journal.

It is `flock` on a file of its own (the journal's file is replaced now and then, and a lock would go with the old one).
The kernel lets go of it when its holder dies, however that happens. The file says which process holds it.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from weakref import WeakSet

from podkeeper.journal.errors import JournalInUse


class JournalLock:
    """A lock that is held from `take` to `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(self)

    @classmethod
    def take(cls, path: Path) -> "JournalLock":
        """Take the lock, or raise JournalInUse. OSError: the file cannot be made or opened."""
        # For reading only: a file open for writing would keep its file system from being mounted read-only.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(descriptor)
            os.close(descriptor)
            who = f"process {pid}" if pid else "another process"
            raise JournalInUse(
                f"cannot open the journal: {who} has it open (lock file {path}); "
                "stop that agent first, or give this one a directory of its own",
                pid,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):  # a full disk: then it is held without a name
            path.write_text(f"{os.getpid()}\n")
        return cls(descriptor)

    def release(self) -> None:
        """Let go. Once is enough."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: "WeakSet[JournalLock]" = WeakSet()


def _pid_in(descriptor: int) -> int:
    try:
        return int(os.pread(descriptor, 32, 0))
    except (OSError, ValueError):
        return 0


def _let_go_in_child() -> None:
    """A forked child shares the lock, and would hold it when its parent has long been dead."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
