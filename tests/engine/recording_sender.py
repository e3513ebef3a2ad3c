"""A sender for tests that records offers and sends only drained keys."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass
class RecordingSender(Generic[T]):
    """Records offers, and sends only drained keys, each `times` times."""

    offers: list[tuple[T, Hashable, bool, bool]] = field(default_factory=list)  # the flags: urgent, at once
    forgotten: list[T] = field(default_factory=list)
    drained: list[T] = field(default_factory=list)
    offered: Callable[[], None] = lambda: None
    send: Callable[[T], Awaitable[None]] | None = None
    times: int = 1

    def offer(self, key: T, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        self.offers.append((key, target, urgent, at_once))
        self.offered()

    def forget(self, key: T) -> None:
        self.forgotten.append(key)

    async def run(self, send: Callable[[T], Awaitable[None]]) -> None:
        self.send = send
        await asyncio.Event().wait()

    async def drain(self, keys: Iterable[T], send: Callable[[T], Awaitable[None]]) -> None:
        self.drained = list(keys)
        for key in self.drained:
            for _ in range(self.times):
                await send(key)
