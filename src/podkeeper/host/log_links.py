"""The directory of symbolic links to container logs (/var/log/containers).

Only symbolic links are created and removed. All operations run in threads, because a disk may hang. Kubelet
counterpart: pkg/kubelet/kuberuntime/legacy.go.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from podkeeper.concurrency.threads import in_thread
from podkeeper.model.errors import TryLater
from podkeeper.rules.logs.symlinks import SUFFIX, LogLink

T = TypeVar("T")


class HostLogLinks:
    """Links in one directory, which is created when it is first needed. Errors raise TryLater."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def list_links(self) -> dict[str, bool]:
        """Return all links, and whether they lead to a file."""
        return await self._run_in_thread("list", lambda: _list_links(self._directory))

    async def make(self, links: Sequence[LogLink]) -> None:
        """Create links to existing logs. An existing file of the same name stays."""
        await self._run_in_thread("create", lambda: _make(self._directory, links))

    async def remove(self, names: Sequence[str]) -> None:
        """Remove links. A missing link is no error, and other files stay."""
        await self._run_in_thread("remove", lambda: _remove(self._directory, names))

    async def _run_in_thread(self, what: str, work: Callable[[], T]) -> T:
        try:
            result = await in_thread(work, "log links")
        except RuntimeError as error:  # no thread available
            raise TryLater(f"cannot {what} the log links in {self._directory}: {error}") from error
        if isinstance(result, OSError):
            raise TryLater(f"cannot {what} the log links in {self._directory}: {result}") from result
        if isinstance(result, BaseException):
            raise result
        return result


def _list_links(directory: Path) -> dict[str, bool]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        return {
            entry.name: os.path.exists(entry.path)
            for entry in entries
            if entry.name.endswith(SUFFIX) and entry.is_symlink()
        }
    return {}


def _make(directory: Path, links: Sequence[LogLink]) -> None:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for link in links:
        if os.path.exists(link.log):  # some runtimes do not write logs to this path
            with suppress(FileExistsError):
                os.symlink(link.log, directory / link.name)


def _remove(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        path = directory / name
        if path.is_symlink():
            path.unlink(missing_ok=True)
