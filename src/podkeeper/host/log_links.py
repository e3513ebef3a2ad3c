"""The directory of symbolic links to container logs (/var/log/containers).

Only symbolic links are created and removed. All operations run in threads, because a disk may hang. Kubelet
counterpart: pkg/kubelet/kuberuntime/legacy.go.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from podkeeper.host.file_work import run_file_work
from podkeeper.model.log_tree import LogLink
from podkeeper.rules.logs.symlinks import SUFFIX


class HostLogLinks:
    """Links in one directory, which is created when it is first needed. Errors raise TryLater."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def list_links(self) -> dict[str, bool]:
        """Return all links, and whether they lead to a file."""
        return await run_file_work(
            "log links", f"list the log links in {self._directory}", lambda: _list_links(self._directory)
        )

    async def make(self, links: Sequence[LogLink]) -> None:
        """Create links to existing logs. An existing file of the same name stays."""
        await run_file_work(
            "log links", f"create the log links in {self._directory}", lambda: _make(self._directory, links)
        )

    async def remove(self, names: Sequence[str]) -> None:
        """Remove links. A missing link is no error, and other files stay."""
        await run_file_work(
            "log links", f"remove the log links in {self._directory}", lambda: _remove(self._directory, names)
        )


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
        # Other programs may keep files here. Never delete them.
        if path.is_symlink():
            path.unlink(missing_ok=True)
