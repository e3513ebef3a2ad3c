"""Container log files on disk: list, rotate, compress and remove.

    ROOT/<namespace>_<name>_<uid>/<container>/<attempt>.log, and the rotated files beside it

Slow operations run in their own threads, so a hanging disk only delays the log manager. Every operation can be
interrupted by a crash. `compress` writes a `.tmp` file and renames it after it is complete and synced. `put_aside`
renames the directory of a pod before its files are deleted. Kubelet counterpart: pkg/kubelet/logs.
"""

import gzip
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from podkeeper.host.file_work import run_file_work
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.rules.logs.rotation import COMPRESSED, UNFINISHED

_REMOVED: Final = ".gone-"
_BLOCK_BYTES: Final = 2**20
_LEVEL: Final = 1  # the fastest gzip level: three times as fast as the default, with slightly larger files
_NICE: Final = 10


class HostLogFiles:
    """Logs below a directory. Errors raise TryLater. Missing files are no error."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def list_logs(self) -> LogTree:
        """Return all logs."""
        return await run_file_work("log files", f"list the logs in {self._root}", lambda: _list_logs(self._root))

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        return os.path.lexists(self._path(logs, name))

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        """Remove files in this order."""

        def remove() -> None:
            for name in names:
                self._path(logs, name).unlink(missing_ok=True)

        await run_file_work("log files", f"remove old logs of {logs.pod}/{logs.container}", remove)

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        """Rename a file. The new name must not exist."""
        await run_file_work("log files", f"rotate {self._path(logs, name)}", lambda: _move(self._path(logs, name), to))

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        """Rename a file back, unless a new file has its name."""
        path = self._path(logs, moved_to)
        await run_file_work("log files", f"undo the rotation of {path}", lambda: _move_back(path, name))

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        """Replace a rotated file with a compressed one."""
        await run_file_work(
            "log files", f"compress {self._path(logs, name)}", lambda: _compress(self._path(logs, name))
        )

    def put_aside(self, pod: str) -> None:
        """Hide the directory of a pod at once by renaming it. `clear` deletes it."""
        try:
            os.rename(self._root / pod, self._root / f"{_REMOVED}{time.time_ns()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise TryLater(f"cannot remove the logs of pod {pod}: {error}") from error

    async def clear(self) -> None:
        """Delete the hidden directories, including those of an earlier run of the agent."""

        def clear() -> None:
            for path in self._root.glob(f"{_REMOVED}*"):
                shutil.rmtree(path)

        await run_file_work("log files", f"delete old logs in {self._root}", clear)

    def _path(self, logs: ContainerLogs, name: str) -> Path:
        return self._root / logs.pod / logs.container / name


def _list_logs(root: Path) -> LogTree:
    logs: list[ContainerLogs] = []
    pods: list[str] = []
    has_leftovers = False
    for pod in _directories(root):
        if pod.name.startswith(_REMOVED):
            has_leftovers = True
            continue
        pods.append(pod.name)
        logs.extend(ContainerLogs(pod.name, each.name, dict(_sizes(each))) for each in _directories(pod))
    return LogTree(tuple(pods), tuple(logs), has_leftovers)


def _directories(path: "Path | os.DirEntry[str]") -> "list[os.DirEntry[str]]":
    """Return the directories in a directory, which may be missing."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _sizes(directory: "os.DirEntry[str]") -> Iterator[tuple[str, int]]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size


def _move(path: Path, to: str) -> None:
    # rename(2) would replace it.
    if os.path.lexists(path.with_name(to)):
        raise FileExistsError(f"cannot rename a log to {to}: the file already exists")
    path.rename(path.with_name(to))


def _move_back(path: Path, to: str) -> None:
    # link(2) never replaces a file. So if the writer created a new file, both files stay.
    with suppress(FileExistsError):
        os.link(path, path.with_name(to))
        path.unlink()


def _compress(path: Path) -> None:
    with suppress(OSError):  # lower the priority of this thread only
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        source = path.open("rb")
    except FileNotFoundError:
        return  # removed meanwhile, because it was the oldest
    try:
        with source, unfinished.open("wb") as target:
            # The copy must not be readable for more users than the log.
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=target) as packed:
                while block := source.read(_BLOCK_BYTES):
                    if os.fstat(source.fileno()).st_nlink == 0:
                        return  # removed meanwhile
                    packed.write(block)
            target.flush()
            # Before the rename: the original is deleted next, and a power failure must not leave an empty file in its
            # place.
            os.fsync(target.fileno())
        # The log may have been removed meanwhile. A compressed copy must not bring it back.
        if path.exists():
            unfinished.rename(path.with_name(path.name + COMPRESSED))
            path.unlink(missing_ok=True)
    finally:
        unfinished.unlink(missing_ok=True)
