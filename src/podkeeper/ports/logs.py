"""The log port: the files that containers write."""

from collections.abc import Sequence
from typing import Protocol

from podkeeper.model.log_tree import ContainerLogs, LogTree


class LogFiles(Protocol):
    """The log tree; what fails raises TryLater, what is gone is gone."""

    async def survey(self) -> LogTree:
        """All that there is."""

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        """Whether a file is there now."""

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        """Remove some files."""

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        """Give a file a new name."""

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        """Give a file its old name again, unless another one has it by now."""

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        """Put a compressed part in the place of a rotated one."""

    def put_aside(self, pod: str) -> None:
        """Take a pod's directory out of sight, at once."""

    async def clear(self) -> None:
        """Delete what was put aside."""
