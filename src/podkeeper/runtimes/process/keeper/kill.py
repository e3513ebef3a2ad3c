"""Kill processes: the first process of a container and those that it left behind.

A PID namespace dies with its first process. If a container has no PID namespace of its own, its processes are those of
its session and of its cgroup. Callers must not reap the first process before, because only an unreaped PID cannot be
reused by another session.
"""

import contextlib
import os
import signal
from collections.abc import Iterator


def send(pid: int, number: int) -> None:
    """Send a signal. Ignore a process that has ended."""
    # PermissionError: an ordinary user may not signal a program that is setuid.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(leader: int, number: int) -> None:
    """Send a signal to the process group of its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_session(leader: int) -> None:
    """Kill the session of its leader, with all process groups in it."""
    send_group(leader, signal.SIGKILL)
    send(leader, signal.SIGKILL)
    for pid in _members(leader):
        send(pid, signal.SIGKILL)


def _members(session: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # Search the last ")", because the name of a program may contain blanks and parentheses (proc(5)).
                state, _, _, belongs = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        # Skip zombies: a signal has no effect on them.
        if int(belongs) == session and state not in b"ZX":
            yield int(name)


def children(pid: int) -> tuple[int, ...]:
    """Return the children of a single-threaded process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return tuple(map(int, file.read().split()))
    except OSError:  # the kernel has no such file
        return tuple(_children_by_search(pid))


def _children_by_search(parent: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdecimal():
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                        yield int(name)
