"""News of sandboxes and containers, told to any number of listeners.

Each has a bounded queue of its own. A listener that does not keep up has its stream broken: so it knows that it missed
something, and relists.
"""

import asyncio
from collections import deque
from typing import Final
from weakref import WeakSet

from podkeeper.model.errors import AgentError, RuntimeUnavailable
from podkeeper.model.runtime_calls import RuntimeEvent

QUEUE_LIMIT: Final = 10_000


class NewsStream:
    """What happens from now on, for one listener."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: deque[RuntimeEvent] = deque()
        self._wake = asyncio.Event()
        self._end: AgentError | StopAsyncIteration | None = None

    def __aiter__(self) -> "NewsStream":
        return self

    async def __anext__(self) -> RuntimeEvent:
        while not self._queue:
            if self._end is not None:
                raise self._end
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    async def aclose(self) -> None:
        """Stop listening."""
        self.end(StopAsyncIteration())

    def put(self, event: RuntimeEvent) -> None:
        """Hand on one piece of news."""
        if self._end is not None:
            return
        if len(self._queue) >= self._limit:
            self._queue.clear()
            self.end(RuntimeUnavailable(f"cannot go on telling news: {self._limit} events were not fetched"))
            return
        self._queue.append(event)
        self._wake.set()

    def end(self, why: AgentError | StopAsyncIteration) -> None:
        """End the stream, or break it."""
        self._end = self._end or why
        self._wake.set()


class News:
    """All listeners; one that lets go of its stream is forgotten."""

    def __init__(self, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._streams: WeakSet[NewsStream] = WeakSet()

    def listen(self) -> NewsStream:
        """A stream of what happens from now on."""
        stream = NewsStream(self._limit)
        self._streams.add(stream)
        return stream

    def tell(self, event: RuntimeEvent) -> None:
        """Tell everybody."""
        for stream in tuple(self._streams):
            stream.put(event)

    def end(self) -> None:
        """There will be no more."""
        for stream in tuple(self._streams):
            stream.end(StopAsyncIteration())
