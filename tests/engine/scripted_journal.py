"""A journal for tests that script how long each sync takes and which one fails."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from podkeeper.model.errors import TryLater


@dataclass
class ScriptedJournal:
    """A dictionary. A sync takes the next number of `syncs` as seconds, or `seconds`. None makes it fail."""

    values: dict[str, bytes] = field(default_factory=dict)
    syncs: list[float | None] = field(default_factory=list)
    seconds: float = 0.25  # of a sync that `syncs` does not cover
    failures: int = 0  # of the next syncs
    bug: bool = False  # a sync raises an unexpected error
    durable: dict[str, bytes] = field(default_factory=dict)
    begun: int = 0
    purges: int = 0

    def load(self) -> Mapping[str, bytes]:
        return dict(self.values)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def drop(self, key: str) -> None:
        self.values.pop(key, None)

    def purge(self) -> None:
        self.purges += 1

    async def sync(self) -> None:
        if self.bug:
            raise ZeroDivisionError
        seconds = self.syncs[self.begun] if self.begun < len(self.syncs) else self.seconds
        self.begun += 1
        writing = dict(self.values)
        await asyncio.sleep(seconds or 0)
        if self.failures or seconds is None:
            self.failures -= self.failures > 0
            raise TryLater("cannot write: the disk is full")
        self.durable = writing
