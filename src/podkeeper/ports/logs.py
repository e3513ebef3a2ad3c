"""The log files of containers, and the directory of links to them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from podkeeper.model.log_tree import ContainerLogs, LogLink, LogTree


class LogFiles(Protocol):
    """The log tree. Errors raise TryLater. Missing files are ignored."""

    async def list_logs(self) -> LogTree:
        """Return all directories and files."""

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        """Return whether a file exists now."""

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        """Remove files."""

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        """Rename a file."""

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        """Undo a rename, unless a new file has the old name."""

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        """Replace a rotated file by a compressed one."""

    def put_aside(self, pod: str) -> None:
        """Hide the directory of a pod at once, without a blocking deletion."""

    async def clear(self) -> None:
        """Delete the directories that were put aside."""


class LogLinks(Protocol):
    """A flat directory of symbolic links to logs. Other files in it stay. Errors raise TryLater."""

    async def list_links(self) -> Mapping[str, bool]:
        """Return all links by name, and whether the target of each exists."""

    async def make(self, links: Sequence[LogLink]) -> None:
        """Create links to those logs that exist. An existing file of the same name stays."""

    async def remove(self, names: Sequence[str]) -> None:
        """Remove links. Missing links are ignored."""
