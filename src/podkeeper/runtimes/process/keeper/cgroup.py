"""Cgroup directories, as a keeper handles those of its containers: made, limited, watched, emptied, removed.

A `Place` is one cgroup in every hierarchy that it exists in:

    version 1   a directory per controller (cpu, cpuacct, memory, pids); on a hybrid machine one more in the v2
                hierarchy, which has no controllers there but knows how to kill a whole cgroup
    version 2   one directory, called `unified` here

In comes the path of a pod's cgroup, the same below every mount point (`find`), and settings: texts by the kernel's own
file names ({"memory.max": "64M"}), which `rules/cgroup_limits.py` works out. Out go the `cgroup.procs` files to join,
the use, and the count of OOM kills. Nothing here waits longer than its caller's patience.

Runs in keepers: standard library only, nothing else of podkeeper. The Go ancestor is opencontainers/cgroups.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOUNTINFO = "/proc/self/mountinfo"
CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
UNIFIED = "unified"

KILL_PATIENCE_SECONDS = 2.0
REMOVE_PATIENCE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02
_AT_A_TIME = 64  # processes held open while they are killed
_MAYBE_LATER = (errno.EINVAL, errno.EBUSY)  # a setting may have to wait for another one: memory before memory and swap


@dataclass(frozen=True, slots=True)
class Place:
    """One cgroup: its directory by controller, or by `unified`."""

    version: int
    directories: tuple[tuple[str, str], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every directory once: controllers may share a hierarchy."""
        return tuple(dict.fromkeys(directory for _, directory in self.directories))

    def directory_of(self, controller: str) -> str:
        """Where the files of a controller are; empty where there is no such controller."""
        return dict(self.directories).get(UNIFIED if self.version == 2 else controller, "")

    def to_json(self) -> dict[str, Any]:
        """For a message or a file."""
        return {"version": self.version, "directories": dict(self.directories)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Place":
        """From a message or a file."""
        return cls(int(data["version"]), tuple((str(key), str(path)) for key, path in data["directories"].items()))


@dataclass(frozen=True, slots=True)
class Use:
    """What the processes of a cgroup use now; None where no controller tells."""

    memory_bytes: int | None
    working_set_bytes: int | None  # without the file pages nobody touched lately
    cpu_nanoseconds: int | None  # since the cgroup was made
    processes: int | None


# ---- finding ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: what it is called here, where it is mounted, and which part of it is."""

    name: str  # a controller, or `unified`
    mount_point: str
    root: str


def hierarchies(mountinfo: str = MOUNTINFO) -> tuple[Hierarchy, ...]:
    """The hierarchies that are mounted; of several mounts of one, the shortest path comes first."""
    found = []
    with open(mountinfo) as lines:
        for line in lines:
            fields = line.split()
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            root, mount_point = _unescaped(fields[3]), _unescaped(fields[4])
            if kind == "cgroup2":
                found.append(Hierarchy(UNIFIED, mount_point, root))
            elif kind == "cgroup":
                found.extend(Hierarchy(name, mount_point, root) for name in CONTROLLERS if name in options)
    return tuple(sorted(found, key=lambda hierarchy: len(hierarchy.mount_point)))


def other_hierarchies(mountinfo: str = MOUNTINFO) -> tuple[Hierarchy, ...]:
    """Hierarchies of version 1 in which we limit nothing; container runtimes make cgroups in every one."""
    found = []
    with open(mountinfo) as lines:
        for line in lines:
            fields = line.split()
            if fields[fields.index("-") + 1] == "cgroup" and not set(fields[-1].split(",")).intersection(CONTROLLERS):
                mount_point = _unescaped(fields[4])
                found.append(Hierarchy(mount_point, mount_point, _unescaped(fields[3])))
    return tuple(found)


def place_at(directories: Mapping[str, str]) -> Place | None:
    """The place made of these directories; None if there are none. Alone, `unified` is version 2."""
    if not directories:
        return None
    return Place(2 if set(directories) == {UNIFIED} else 1, tuple(directories.items()))


def lower(place: Place, *names: str) -> Place:
    """The place of a cgroup further down."""
    directories = tuple((key, os.path.join(directory, *names)) for key, directory in place.directories)
    return Place(place.version, directories)


def find(path: str, mountinfo: str = MOUNTINFO) -> Place | None:
    """The cgroup at a path below the mount points, in the hierarchies where it exists; None if in none."""
    directories: dict[str, str] = {}
    if path:
        for hierarchy in hierarchies(mountinfo):
            directory = os.path.join(hierarchy.mount_point, path.lstrip("/"))
            if hierarchy.name not in directories and os.path.isdir(directory):
                directories[hierarchy.name] = directory
    return place_at(directories)


def _unescaped(text: str) -> str:
    """A path of mountinfo, in which blanks are written as octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


# ---- making ----------------------------------------------------------------------------------


def make(place: Place, settings: Mapping[str, str]) -> None:
    """Make a cgroup below one that is there, or bring it up to date. Raises OSError."""
    for directory in place.paths:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o755)
    write(place, settings)


def delegate(place: Place) -> None:
    """Let the cgroups below have limits of their own: version 2 wants to be told. Raises OSError."""
    directory = dict(place.directories).get(UNIFIED)
    if place.version != 2 or directory is None:
        return
    offered = set(_read(f"{directory}/cgroup.controllers").split()).intersection(CONTROLLERS)
    if missing := offered.difference(_read(f"{directory}/cgroup.subtree_control").split()):
        _write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))


def write(place: Place, settings: Mapping[str, str]) -> None:
    """Write settings. A file that is not there belongs to what the machine does not offer. Raises OSError."""
    open_ones = [
        (f"{directory}/{name}", text)
        for name, text in settings.items()
        if (directory := place.directory_of(name.partition(".")[0]))
    ]
    # Some settings bound each other, and which of them must go first depends on what was there: so those that fail
    # get a second try after all others.
    refused = []
    for path, text in open_ones:
        try:
            _write(path, text)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _MAYBE_LATER:
                raise
            refused.append((path, text))
    for path, text in refused:
        _write(path, text)


def procs_files(place: Place) -> tuple[str, ...]:
    """The files that a process writes its id to in order to join."""
    return tuple(f"{directory}/cgroup.procs" for directory in place.paths)


# ---- watching --------------------------------------------------------------------------------


def oom_kills(place: Place) -> int:
    """How many processes of a cgroup the kernel killed for want of memory."""
    name = "memory.events" if place.version == 2 else "memory.oom_control"
    return _keyed(f"{place.directory_of('memory')}/{name}", "oom_kill") or 0


def use(place: Place) -> Use:
    """What a cgroup uses now."""
    memory, cpu, pids = (place.directory_of(controller) for controller in ("memory", "cpu", "pids"))
    if place.version == 2:
        total = _number(f"{memory}/memory.current")
        idle = _keyed(f"{memory}/memory.stat", "inactive_file")
        micro = _keyed(f"{cpu}/cpu.stat", "usage_usec")
        nano = None if micro is None else micro * 1000
    else:
        total = _number(f"{memory}/memory.usage_in_bytes")
        idle = _keyed(f"{memory}/memory.stat", "total_inactive_file")
        nano = _number(f"{place.directory_of('cpuacct')}/cpuacct.usage")
    working_set = None if total is None else max(total - (idle or 0), 0)
    return Use(total, working_set, nano, _number(f"{pids}/pids.current"))


def exists(place: Place) -> bool:
    """Whether a cgroup is there, in any hierarchy."""
    return any(map(os.path.isdir, place.paths))


def children(place: Place) -> frozenset[str]:
    """The names of the cgroups directly below, in any hierarchy."""
    return frozenset(os.path.basename(child) for directory in place.paths for child in _below(directory))


def processes(place: Place) -> frozenset[int]:
    """Every process in a cgroup and below it, in any hierarchy."""
    return frozenset(pid for directory in place.paths for pid in _processes_in(directory))


# ---- emptying and removing -------------------------------------------------------------------


def kill_all(place: Place, patience_seconds: float = KILL_PATIENCE_SECONDS) -> bool:
    """Kill everything in a cgroup and below it; nothing can start in it afterwards. Tells whether it is empty."""

    def kill_once() -> bool:
        for directory in place.paths:
            _try_to_write(f"{directory}/cgroup.kill", "1")
        left = processes(place) - {os.getpid()}
        _kill(left, place)
        return not left

    # Without cgroup.kill, a process that forks faster than we kill would win: so nothing may fork any more.
    _try_to_write(f"{place.directory_of('pids')}/pids.max", "0")
    return kill_once() or any(kill_once() for _ in _pauses(patience_seconds))


def remove(place: Place, patience_seconds: float = REMOVE_PATIENCE_SECONDS) -> None:
    """Remove a cgroup and those below it; the missing is removed. Raises OSError when something stays in it."""
    pauses = _pauses(patience_seconds)
    for directory in place.paths:
        while True:
            try:
                _remove(directory)
                break
            except OSError as error:  # busy: processes leave a moment after they died
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or next(pauses, None) is None:
                    raise


def _remove(directory: str) -> None:
    for child in _below(directory):
        _remove(child)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(directory)


def _kill(pids: Iterable[int], place: Place) -> None:
    """Kill processes, but none that was given the number of one that left the cgroup meanwhile."""
    waiting = sorted(pids)
    while batch := waiting[:_AT_A_TIME]:
        del waiting[:_AT_A_TIME]
        handles = {pid: handle for pid in batch if (handle := _handle_of(pid)) is not None}
        try:
            for pid in processes(place).intersection(handles):
                # Gone is fine; and one that we may not kill, the caller sees to be there still.
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


def _pauses(patience_seconds: float) -> Iterator[float]:
    """Sleep a little longer each time, until the patience is used up."""
    deadline = time.monotonic() + patience_seconds
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
    with contextlib.suppress(OSError):  # gone meanwhile, or going
        yield from (pid for word in _read(f"{directory}/cgroup.procs").split() if (pid := int(word)))
    for child in _below(directory):
        yield from _processes_in(child)


def _write(path: str, text: str) -> None:
    """Write to a file that is there; the error names both file and text."""
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


def _number(path: str) -> int | None:
    try:
        return int(_read(path))
    except (OSError, ValueError):
        return None


def _keyed(path: str, key: str) -> int | None:
    """The number behind a key, in a file of keys and numbers."""
    try:
        lines = [line.split() for line in _read(path).splitlines()]
        return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key), None)
    except (OSError, ValueError):
        return None
