"""Sync the journal in the background after each change of stored data."""

import asyncio
from collections.abc import Awaitable, Callable


class JournalSync:
    def __init__(self, settle: Callable[[], Awaitable[None]]) -> None:
        """`settle` returns when all writes so far are durable, or after a timeout."""
        self._settle = settle
        self._written = asyncio.Event()

    def request(self) -> None:
        """Request a sync, because data was written or dropped."""
        self._written.set()

    async def run(self) -> None:
        """Sync after each request, until cancelled. If the disk fails, the next sync includes the changes."""
        while True:
            await self._written.wait()
            # Clear before the sync, not after it, because a write during the sync needs another one.
            self._written.clear()
            await self._settle()
