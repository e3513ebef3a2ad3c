"""News of sandboxes and containers, for every runtime of ours: told to any number of consumers.

    runtime --tell--> EventHub --filters--> EventStream, EventStream      (each with a bounded queue of its own)

A consumer that does not keep up has its stream broken: so it knows that it missed something, and relists. The filters
are for tests, which lose, repeat, delay or reorder news with them: what one lets through goes on to the next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from podkeeper.model.errors import AgentError, RuntimeUnavailable
from podkeeper.model.runtime_calls import RuntimeEvent

QUEUE_LIMIT: Final = 10_000
EventFilter = Callable[[RuntimeEvent], Iterable[tuple[float, RuntimeEvent]]]
"""What becomes of one piece of news: (delay in seconds, news) for each delivery; nothing: it is lost."""


class EventStream:
    """What happens from now on, for one consumer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: deque[RuntimeEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._end: AgentError | StopAsyncIteration | None = None

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> RuntimeEvent:
        while not self._queue:
            if self._end is not None:
                raise self._end
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._queue.popleft()

    async def aclose(self) -> None:
        """Stop listening."""
        self.close(StopAsyncIteration())

    def put(self, event: RuntimeEvent) -> None:
        """Hand on one piece of news."""
        if self._end is not None:
            return
        if len(self._queue) >= self._limit:
            self._queue.clear()
            self.close(RuntimeUnavailable(f"cannot go on telling news: {self._limit} events were not fetched"))
            return
        self._queue.append(event)
        self._wake()

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End the stream, or break it: what a broken one still held is lost."""
        if self._end is None:
            self._end = end
            if isinstance(end, AgentError):
                self._queue.clear()
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class EventHub:
    """All consumers. A consumer that lets go of its stream is forgotten."""

    def __init__(self, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._streams: WeakSet[EventStream] = WeakSet()
        self.filters: list[EventFilter] = []

    def subscribe(self) -> EventStream:
        """A new stream of what happens from now on."""
        stream = EventStream(self._limit)
        self._streams.add(stream)
        return stream

    def tell(self, event: RuntimeEvent) -> None:
        """Tell all consumers, as far as the filters let the news through."""
        deliveries = [(0.0, event)]
        for each in self.filters:
            deliveries = [(delay + more, news) for delay, event in deliveries for more, news in each(event)]
        for delay_seconds, news in deliveries:
            if delay_seconds > 0:
                asyncio.get_running_loop().call_later(delay_seconds, self._deliver, news)
            else:
                self._deliver(news)

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End or break every stream that is open."""
        for stream in tuple(self._streams):
            stream.close(end)
        self._streams.clear()

    def _deliver(self, event: RuntimeEvent) -> None:
        for stream in self._streams:
            stream.put(event)
