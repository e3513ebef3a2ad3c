"""What an ordinary user cannot do to volumes alone: its containers may be other users, of whom only they know.

With subordinate ids a container makes files that the agent may not delete, and a pod's group (fsGroup) is one that the
agent may not give files to. Whoever makes user namespaces can do both; here is what this room needs of them.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from podkeeper.volumes.atomic_writer import DATA


class Helper(Protocol):
    """Does for us what takes subordinate ids."""

    async def clear(self, directory: str) -> None:
        """Delete a directory with all in it, whoever made it; gone is gone. Raises TryLater."""

    async def give(self, directory: str, group: int) -> None:
        """Give a directory and all in it to a group, as containers see it. Raises TryLater."""


def still_ours(paths: Sequence[str], group: int) -> list[str]:
    """The volumes that belong to the agent's group, though another was wanted. Blocks."""
    own = os.getegid()
    return [path for path in paths if group != own and own in (_group(path), _group(f"{path}/{DATA}"))]


def _group(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_gid
    return -1
