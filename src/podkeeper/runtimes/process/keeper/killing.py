"""Ending processes by force: the first one of a container, and whatever it left behind.

A pid namespace dies with its first process. Where there is none of the container's own (shared, the host's, or none
at all) its processes are those of its session, and those in its cgroup. Whoever calls has not yet reaped the first
process: until then its number names no other session.
"""

import contextlib
import os
import signal
from collections.abc import Iterator


def send(pid: int, number: int) -> None:
    """Send a signal; who is gone needs none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(leader: int, number: int) -> None:
    """Send a signal to the group a process leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_session(leader: int) -> None:
    """Kill the session a process leads, groups of its own inside it too."""
    send_group(leader, signal.SIGKILL)
    send(leader, signal.SIGKILL)
    for pid in _members(leader):
        send(pid, signal.SIGKILL)


def _members(session: int) -> Iterator[int]:
    """Living processes of a session."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, _, belongs = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(belongs) == session and state not in b"ZX":
            yield int(name)


def children(pid: int) -> tuple[int, ...]:
    """The children of a process with one thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return tuple(map(int, file.read().split()))
    except OSError:  # a kernel without this file
        return tuple(_children_by_search(pid))


def _children_by_search(parent: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdecimal():
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                        yield int(name)
