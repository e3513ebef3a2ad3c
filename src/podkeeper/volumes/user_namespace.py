"""Operations on volumes that need the subordinate ids of an ordinary user.

With subordinate ids, containers create files that the agent is not permitted to delete. The agent is also not permitted
to change the group of files to the pod's fsGroup. The process runtime can do both inside a user namespace.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from podkeeper.volumes.atomic_writer import DATA


class NamespaceHelper(Protocol):
    """Changes files in a user namespace with subordinate ids."""

    async def clear(self, directory: str) -> None:
        """Delete a directory tree with files of any user. A missing one is no error. Raises TryLater."""

    async def give(self, directory: str, group: int) -> None:
        """Change the group of a directory tree. `group` is the id inside containers. Raises TryLater."""


def in_our_group(paths: Sequence[str], group: int) -> list[str]:
    """Return the volumes whose group is not this group. Blocks."""
    own = os.getegid()
    return [path for path in paths if group != own and own in (_group(path), _group(f"{path}/{DATA}"))]


def _group(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_gid
    return -1
