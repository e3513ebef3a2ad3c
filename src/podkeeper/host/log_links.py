"""The flat directory of links to logs, on this machine's disk: seen, and changed one link at a time.

Only symbolic links are ever touched. The work is done in a thread: a disk may hang.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from podkeeper.host.threads import in_thread
from podkeeper.model.errors import TryLater
from podkeeper.rules.log_links import SUFFIX, LogLink

T = TypeVar("T")


class HostLogLinks:
    """Links in one directory, which is made when it is first needed. What fails raises TryLater."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def survey(self) -> dict[str, bool]:
        """Every link that there is, and whether it leads to a file."""
        return await self._aside("look at", lambda: _survey(self._directory))

    async def make(self, links: Sequence[LogLink]) -> None:
        """Make links to those logs that are there; what has the name already stays."""
        await self._aside("make", lambda: _make(self._directory, links))

    async def remove(self, names: Sequence[str]) -> None:
        """Remove links; what is gone is gone, and what is no link stays."""
        await self._aside("remove", lambda: _remove(self._directory, names))

    async def _aside(self, what: str, work: Callable[[], T]) -> T:
        try:
            result = await in_thread(work, "log links")
        except RuntimeError as error:  # no thread is to be had
            raise TryLater(f"cannot {what} the links to logs in {self._directory}: {error}") from error
        if isinstance(result, OSError):
            raise TryLater(f"cannot {what} the links to logs in {self._directory}: {result}") from result
        if isinstance(result, Exception):
            raise result
        return result


def _survey(directory: Path) -> dict[str, bool]:
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
        if os.path.exists(link.log):  # some runtimes write logs elsewhere
            with suppress(FileExistsError):
                os.symlink(link.log, directory / link.name)


def _remove(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        path = directory / name
        if path.is_symlink():
            path.unlink(missing_ok=True)
