"""Crash-safe local state.

It stores state that neither the runtime nor the API can report after a restart.
"""

from collections.abc import Mapping
from typing import Protocol


class Journal(Protocol):
    """Keys and values that survive the agent.

    Writes take effect in order. A crash keeps every write before the last finished `sync` and a prefix of the later
    writes. It never keeps a later write without an earlier one, and never a partial value.
    """

    def load(self) -> Mapping[str, bytes]:
        """Return all current keys and values."""

    def put(self, key: str, value: bytes) -> None:
        """Store a value. It is durable after the next `sync`."""

    def drop(self, key: str) -> None:
        """Delete a key. This is durable after the next `sync`. An unknown key is ignored."""

    def purge(self) -> None:
        """Make the next `sync` remove replaced and deleted values from the disk."""

    async def sync(self) -> None:
        """Return when everything written before this call is durable. Raise TryLater on a disk error."""
