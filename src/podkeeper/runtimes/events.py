"""Events of sandboxes and containers, for any number of consumers.

All runtimes of podkeeper use it.

    runtime --send--> EventHub --filters--> EventStream, EventStream      (each has its own bounded queue)

If a consumer does not keep up, its stream breaks, so that it relists. Tests use the filters to drop, repeat, delay or
reorder events. Each filter receives the output of the previous one.
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
"""Returns (delay in seconds, event) for each delivery of an event. Nothing: it is dropped."""


class EventStream:
    """Events from now on, for one consumer."""

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
        self.close(StopAsyncIteration())

    def put(self, event: RuntimeEvent) -> None:
        if self._end is not None:
            return
        if len(self._queue) >= self._limit:
            self._queue.clear()
            self.close(RuntimeUnavailable(f"cannot send more events: the consumer has not read {self._limit} events"))
            return
        self._queue.append(event)
        self._wake()

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End the stream, or break it with an error. A broken stream drops its queue."""
        if self._end is None:
            self._end = end
            if isinstance(end, AgentError):
                self._queue.clear()
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class EventHub:
    """All consumers. A stream without references is removed."""

    def __init__(self, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._streams: WeakSet[EventStream] = WeakSet()
        self.filters: list[EventFilter] = []

    def subscribe(self) -> EventStream:
        stream = EventStream(self._limit)
        self._streams.add(stream)
        return stream

    def send(self, event: RuntimeEvent) -> None:
        """Send an event to all consumers, through the filters."""
        deliveries = [(0.0, event)]
        for each in self.filters:
            deliveries = [(delay + more, sent) for delay, event in deliveries for more, sent in each(event)]
        for delay_seconds, sent in deliveries:
            if delay_seconds > 0:
                asyncio.get_running_loop().call_later(delay_seconds, self._deliver, sent)
            else:
                self._deliver(sent)

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End or break all open streams."""
        for stream in tuple(self._streams):
            stream.close(end)
        self._streams.clear()

    def _deliver(self, event: RuntimeEvent) -> None:
        for stream in self._streams:
            stream.put(event)
