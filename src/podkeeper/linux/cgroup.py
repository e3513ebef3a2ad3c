"""Cgroup directories: create, limit, measure, kill and remove.

A `Cgroup` is one cgroup in every hierarchy that has it:

    version 1   a directory per controller (cpu, cpuacct, memory, pids). On a hybrid machine there is one more in the v2
                hierarchy, which has no controllers there but can kill a whole cgroup.
    version 2   one directory, called `unified` here

Input: the path of a pod's cgroup, which is the same below every mount point (`find`), and settings: texts by the
kernel's file names ({"memory.max": "64M"}), which `rules/cgroup/limits.py` computes. Output: the `cgroup.procs` files
to join, the usage and the number of OOM kills. No function blocks longer than its timeout.

Counterpart: opencontainers/cgroups, which the kubelet and runc use.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from podkeeper.linux import mounts
from podkeeper.linux.mounts import MOUNTINFO

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids", "devices")
UNIFIED = "unified"

KILL_TIMEOUT_SECONDS = 2.0
REMOVE_TIMEOUT_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02
_MAX_OPEN_PROCESSES = 64  # pidfds that are open at the same time
# Another setting must be written first, such as the memory limit before memory+swap.
_RETRY_LATER = (errno.EINVAL, errno.EBUSY)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup: its directories by controller, or by `unified`."""

    version: int
    directories: tuple[tuple[str, str], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories without duplicates, because controllers can share a hierarchy."""
        return tuple(dict.fromkeys(directory for _, directory in self.directories))

    def directory_of(self, controller: str) -> str:
        """Return the directory with the files of a controller, or "" if the cgroup does not have the controller."""
        return dict(self.directories).get(UNIFIED if self.version == 2 else controller, "")

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "directories": dict(self.directories)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Cgroup":
        return cls(int(data["version"]), tuple((str(key), str(path)) for key, path in data["directories"].items()))


# ---- finding ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy."""

    name: str  # a controller, or `unified`
    mount_point: str
    root: str  # the part of the hierarchy that is mounted


def hierarchies(mountinfo: str = MOUNTINFO) -> tuple[Hierarchy, ...]:
    """Return the mounted hierarchies with our controllers, shortest mount point first."""
    found = []
    for mount in mounts.read(mountinfo):
        if mount.file_system == "cgroup2":
            found.append(Hierarchy(UNIFIED, mount.path, mount.root))
        elif mount.file_system == "cgroup":
            names = [name for name in CONTROLLERS if name in mount.super_options]
            found.extend(Hierarchy(name, mount.path, mount.root) for name in names)
    return tuple(sorted(found, key=lambda hierarchy: len(hierarchy.mount_point)))


def other_hierarchies(mountinfo: str = MOUNTINFO) -> tuple[Hierarchy, ...]:
    """Return the version 1 hierarchies without our controllers. Container runtimes create cgroups in all of them."""
    return tuple(
        Hierarchy(mount.path, mount.path, mount.root)
        for mount in mounts.read(mountinfo)
        if mount.file_system == "cgroup" and not set(mount.super_options).intersection(CONTROLLERS)
    )


def cgroup_at(directories: Mapping[str, str]) -> Cgroup | None:
    """Return the cgroup with these directories, or None if there are none.

    If `unified` is the only directory, the version is 2.
    """
    if not directories:
        return None
    return Cgroup(2 if set(directories) == {UNIFIED} else 1, tuple(directories.items()))


def descendant(cgroup: Cgroup, *names: str) -> Cgroup:
    """Return the cgroup at a path below another. It need not exist."""
    directories = tuple((key, os.path.join(directory, *names)) for key, directory in cgroup.directories)
    return Cgroup(cgroup.version, directories)


def find(path: str, mountinfo: str = MOUNTINFO) -> Cgroup | None:
    """Return the cgroup at a path below the mount points, or None if no hierarchy has it."""
    directories: dict[str, str] = {}
    if path:
        for hierarchy in hierarchies(mountinfo):
            directory = os.path.join(hierarchy.mount_point, path.lstrip("/"))
            if hierarchy.name not in directories and os.path.isdir(directory):
                directories[hierarchy.name] = directory
    return cgroup_at(directories)


# ---- creating --------------------------------------------------------------------------------


def make(cgroup: Cgroup, settings: Mapping[str, str]) -> None:
    """Create a cgroup below an existing one, or update its settings. Raises OSError."""
    for directory in cgroup.paths:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o755)
    write(cgroup, settings)


def delegate(cgroup: Cgroup) -> None:
    """Enable the controllers for the child cgroups, which version 2 requires. Raises OSError."""
    directory = dict(cgroup.directories).get(UNIFIED)
    if cgroup.version != 2 or directory is None:
        return
    available = set(_read(f"{directory}/cgroup.controllers").split()).intersection(CONTROLLERS)
    if missing := available.difference(_read(f"{directory}/cgroup.subtree_control").split()):
        _write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))


def write(cgroup: Cgroup, settings: Mapping[str, str]) -> None:
    """Write settings. Skip files that do not exist, because the kernel lacks their feature. Raises OSError."""
    files = [
        (f"{directory}/{name}", text)
        for name, text in settings.items()
        if (directory := cgroup.directory_of(name.partition(".")[0]))
    ]
    # Some settings limit each other, and their order depends on the old values. So try failed ones again at the end.
    refused = []
    for path, text in files:
        try:
            _write(path, text)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _RETRY_LATER:
                raise
            refused.append((path, text))
    for path, text in refused:
        _write(path, text)


def procs_files(cgroup: Cgroup) -> tuple[str, ...]:
    """Return the files to which a process writes its id to join the cgroup."""
    return tuple(f"{directory}/cgroup.procs" for directory in cgroup.paths)


# ---- measuring ------------------------------------------------------------------------------


def oom_kills(cgroup: Cgroup) -> int:
    """Return the number of OOM-killed processes of a cgroup."""
    name = "memory.events" if cgroup.version == 2 else "memory.oom_control"
    return _keyed(f"{cgroup.directory_of('memory')}/{name}", "oom_kill") or 0


def exists(cgroup: Cgroup) -> bool:
    """Return whether any hierarchy has the cgroup."""
    return any(map(os.path.isdir, cgroup.paths))


def children(cgroup: Cgroup) -> frozenset[str]:
    """Return the names of the child cgroups in all hierarchies."""
    return frozenset(os.path.basename(child) for directory in cgroup.paths for child in _below(directory))


def processes(cgroup: Cgroup) -> frozenset[int]:
    """Return the processes in a cgroup and its descendants, in all hierarchies."""
    return frozenset(pid for directory in cgroup.paths for pid in _processes_in(directory))


# ---- killing and removing --------------------------------------------------------------------


def kill_all(cgroup: Cgroup, timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> bool:
    """Kill all processes in a cgroup and its descendants. Forks are forbidden if the pids controller is available.

    Return whether the cgroup is empty.
    """

    def kill_once() -> bool:
        for directory in cgroup.paths:
            # Since Linux 5.14, and only in version 2. It kills all descendants at once, including processes that are
            # being forked.
            _try_to_write(f"{directory}/cgroup.kill", "1")
        left = processes(cgroup) - {os.getpid()}
        _kill(left, cgroup)
        return not left

    # Forbid forks first. Without cgroup.kill, a process could otherwise fork faster than we kill.
    _try_to_write(f"{cgroup.directory_of('pids')}/pids.max", "0")
    return kill_once() or any(kill_once() for _ in _pauses(timeout_seconds))


def remove(cgroup: Cgroup, timeout_seconds: float = REMOVE_TIMEOUT_SECONDS) -> None:
    """Remove a cgroup and its descendants. A missing one is no error. Raises OSError if it does not become empty."""
    pauses = _pauses(timeout_seconds)
    for directory in cgroup.paths:
        while True:
            try:
                _remove(directory)
                break
            except OSError as error:  # busy: the kernel removes an exited process from its cgroup a moment later
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or next(pauses, None) is None:
                    raise


def _remove(directory: str) -> None:
    for child in _below(directory):
        _remove(child)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(directory)


def _kill(pids: Iterable[int], cgroup: Cgroup) -> None:
    """Kill processes of a cgroup."""
    remaining = sorted(pids)
    while batch := remaining[:_MAX_OPEN_PROCESSES]:
        del remaining[:_MAX_OPEN_PROCESSES]
        # Open the processes, then list the cgroup again. So a process that got a recycled pid is not killed.
        handles = {pid: handle for pid in batch if (handle := _handle_of(pid)) is not None}
        try:
            for pid in processes(cgroup).intersection(handles):
                # Ignore ended processes. A process that this user may not kill appears again in the caller's next
                # listing.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
        finally:
            for handle in handles.values():
                os.close(handle)


def _handle_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _pauses(timeout_seconds: float) -> Iterator[float]:
    """Sleep with backoff until the timeout."""
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(pause)
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


# ---- files -----------------------------------------------------------------------------------


def _below(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _processes_in(directory: str) -> Iterator[int]:
    with contextlib.suppress(OSError):  # removed meanwhile
        # 0 stands for a process that is not visible in our PID namespace.
        yield from (pid for word in _read(f"{directory}/cgroup.procs").split() if (pid := int(word)))
    for child in _below(directory):
        yield from _processes_in(child)


def _write(path: str, text: str) -> None:
    """Write to an existing file. The error names the file and the text."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} on writing {text!r}", path) from error


def _try_to_write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        _write(path, text)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _keyed(path: str, key: str) -> int | None:
    """Return the number of a key in a file of keys and numbers."""
    try:
        lines = [line.split() for line in _read(path).splitlines()]
        return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key), None)
    except (OSError, ValueError):
        return None
