"""Crash-safe notes: what neither the runtime nor the API can tell after a restart."""

from collections.abc import Mapping
from typing import Protocol


class Journal(Protocol):
    """Keys and values that survive the agent.

    Writes take effect in order. A crash keeps every write before the last finished `sync`, and of those after
    it some first part: never a later one without an earlier one, never half a value.
    """

    def load(self) -> Mapping[str, bytes]:
        """All that survived, as of now."""

    def put(self, key: str, value: bytes) -> None:
        """Write; durable with the next `sync`."""

    def drop(self, key: str) -> None:
        """Forget; durable with the next `sync`. Unknown is forgotten."""

    def purge(self) -> None:
        """Have the next `sync` remove replaced and dropped values from the disk."""

    async def sync(self) -> None:
        """Return once everything written before this call is durable. Raises TryLater when the disk refuses."""
