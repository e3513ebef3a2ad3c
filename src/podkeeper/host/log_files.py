"""The log tree on this machine's disk: seen as a whole, and changed one file at a time.

    ROOT/<namespace>_<name>_<uid>/<container>/<attempt>.log, and its rotated parts beside it

Whatever may take long is done in threads of its own, so a disk that hangs holds up nobody but who cares for logs. Each
step leaves something that can be gone on from: a part is compressed into a `.tmp` file, which gets its name when it is
whole and on the disk; a pod's directory is put aside under another name before its files are deleted.
"""

import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from podkeeper.host.threads import in_thread
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.rules.log_rotation import COMPRESSED, UNFINISHED

T = TypeVar("T")

_ASIDE: Final = ".gone-"
_BLOCK_BYTES: Final = 2**20
_LEVEL: Final = 1  # a flood is compressed three times as fast as usual, into some tenths more
_NICE: Final = 10


class HostLogFiles:
    """Logs below a directory. What fails raises TryLater; what is gone already is gone."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def survey(self) -> LogTree:
        """All that there is."""
        return await self._aside(f"look at the logs in {self._root}", lambda: _survey(self._root))

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        """Whether a file is there now."""
        return os.path.lexists(self._path(logs, name))

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        """Remove some files, in this order."""

        def remove() -> None:
            for name in names:
                self._path(logs, name).unlink(missing_ok=True)

        await self._aside(f"remove old logs of {logs.pod}/{logs.container}", remove)

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        """Give a file a new name that nothing has."""
        await self._aside(f"rotate {self._path(logs, name)}", lambda: _move(self._path(logs, name), to))

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        """Give a file its old name again, unless another one has it by now."""
        path = self._path(logs, moved_to)
        await self._aside(f"undo the rotation of {path}", lambda: _move_back(path, name))

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        """Put a compressed part in the place of a rotated one."""
        await self._aside(f"compress {self._path(logs, name)}", lambda: _compress(self._path(logs, name)))

    def put_aside(self, pod: str) -> None:
        """Take a pod's directory out of sight, at once; `clear` deletes it."""
        try:
            os.rename(self._root / pod, self._root / f"{_ASIDE}{time.time_ns()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise TryLater(f"cannot remove the logs of pod {pod}: {error}") from error

    async def clear(self) -> None:
        """Delete what was put aside, now or in a former life of the agent."""

        def clear() -> None:
            for path in self._root.glob(f"{_ASIDE}*"):
                shutil.rmtree(path)

        await self._aside(f"delete old logs in {self._root}", clear)

    def _path(self, logs: ContainerLogs, name: str) -> Path:
        return self._root / logs.pod / logs.container / name

    async def _aside(self, what: str, work: Callable[[], T]) -> T:
        """Do something in a thread. Raises TryLater."""
        try:
            result = await in_thread(work, "log files")
        except RuntimeError as error:  # no thread is to be had
            raise TryLater(f"cannot {what}: {error}") from error
        if isinstance(result, OSError | EOFError):
            raise TryLater(f"cannot {what}: {result}") from result
        if isinstance(result, Exception):
            raise result
        return result


def _survey(root: Path) -> LogTree:
    logs: list[ContainerLogs] = []
    pods: list[str] = []
    has_litter = False
    for pod in _directories(root):
        if pod.name.startswith(_ASIDE):
            has_litter = True
            continue
        pods.append(pod.name)
        logs.extend(ContainerLogs(pod.name, each.name, dict(_sizes(each))) for each in _directories(pod))
    return LogTree(tuple(pods), tuple(logs), has_litter)


def _directories(path: "Path | os.DirEntry[str]") -> "list[os.DirEntry[str]]":
    """The directories in one; what is gone meanwhile has none."""
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
    if os.path.lexists(path.with_name(to)):
        raise FileExistsError(f"{to} is there already")
    path.rename(path.with_name(to))


def _move_back(path: Path, to: str) -> None:
    # A link never replaces anything: should the writer have begun a new file after all, both stay as they are.
    with suppress(FileExistsError):
        os.link(path, path.with_name(to))
        path.unlink()


def _compress(path: Path) -> None:
    with suppress(OSError):  # this thread alone gives way to whoever has something to do
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        source = path.open("rb")
    except FileNotFoundError:
        return  # it was the oldest, and its time has come
    try:
        with source, unfinished.open("wb") as target:
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=target) as packed:
                while block := source.read(_BLOCK_BYTES):
                    if os.fstat(source.fileno()).st_nlink == 0:
                        return  # it became too old meanwhile
                    packed.write(block)
            target.flush()
            os.fsync(target.fileno())
        if path.exists():
            unfinished.rename(path.with_name(path.name + COMPRESSED))
            path.unlink(missing_ok=True)
    finally:
        unfinished.unlink(missing_ok=True)
