"""Watches of the in-memory API: field selectors, changes and event streams.

A stream has no task or timer: its consumer drives it. It can be slow, stalled, broken or ended. It sends a bookmark if
no other event has occurred for a while.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar, cast

import msgspec

from podkeeper.model.api import ObjectEvent, WatchType
from podkeeper.model.errors import AgentError, ApiUnavailable, BadInput, Problem
from podkeeper.model.wire import Wire
from podkeeper.testing.memory_objects import meta_of

K = TypeVar("K", bound=Wire)

NODE_NAME = "spec.nodeName"


@dataclass(frozen=True, slots=True)
class Selector:
    """A namespace and field selector for the objects of a kind."""

    namespace: str = ""  # empty: all
    fields: tuple[tuple[str, bool, str], ...] = ()  # (path, True for = and False for !=, value)

    @property
    def node(self) -> str | None:
        """Return the node name that the selector requires, or None."""
        return next((value for path, equal, value in self.fields if path == NODE_NAME and equal), None)

    def matches(self, what: Wire | None) -> bool:
        if what is None or (self.namespace and meta_of(what).namespace != self.namespace):
            return False
        return all((field_of(what, path) == value) is equal for path, equal, value in self.fields)


def selector_of(kind: type[Wire], namespace: str, text: str) -> Selector:
    """Parse a field selector, such as `spec.nodeName=n1,metadata.name!=web`."""
    fields = []
    for part in filter(None, text.split(",")):
        path, sign, value = part.partition("=")
        if not sign:
            raise BadInput(Problem(f"cannot parse field selector {part!r}: must be like spec.nodeName=n1"))
        equal = not path.endswith("!")
        fields.append((path.removesuffix("!"), equal, value.removeprefix("=")))
        field_of(kind(), fields[-1][0])  # raises if the field does not exist
    return Selector(namespace, tuple(fields))


def field_of(what: Wire, path: str) -> str:
    """Return the value of a field as a string. Empty if the field is not set."""
    value: object = what
    for name in path.split("."):
        if not isinstance(value, msgspec.Struct) or name not in (attributes := _attributes(type(value))):
            raise BadInput(Problem(f"cannot select by field {path}: {type(what).__name__} has no such field"))
        value = getattr(value, attributes[name])
    return "" if value is None else str(value)


@cache
def _attributes(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object. `new` is None if the object was removed. `old` then has the version of the removal."""

    version: int
    old: Wire | None
    new: Wire | None

    def event_for(self, selector: Selector) -> ObjectEvent[Wire] | None:
        """Return the event for a watch: ADDED if the object starts to match, DELETED if it no longer matches."""
        before, after = selector.matches(self.old), selector.matches(self.new)
        what = self.new if self.new is not None else self.old
        assert what is not None
        match before, after:
            case True, True:
                return ObjectEvent(WatchType.MODIFIED, what, str(self.version))
            case False, True:
                return ObjectEvent(WatchType.ADDED, what, str(self.version))
            case True, False:
                return ObjectEvent(WatchType.DELETED, what, str(self.version))
            case _:
                return None


@dataclass(slots=True)
class WatchSettings:
    """Delays and limits of all watches of a server."""

    delay_seconds: float = 0.0
    stalled: bool = False  # send no events, but keep the streams open
    # As the API server's watch cache.
    bookmark_seconds: float = 60.0
    queue_limit: int = 100_000


class Watch(Generic[K]):
    """One event stream for one consumer."""

    def __init__(
        self,
        kind: type[K],
        selector: Selector,
        settings: WatchSettings,
        opening: AbstractAsyncContextManager[object],
        version: Callable[[], int],
    ) -> None:
        self._kind = kind
        self.selector = selector
        self._settings = settings
        self._opening: AbstractAsyncContextManager[object] | None = opening
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, ObjectEvent[Wire]]] = deque()
        self._wake = asyncio.Event()
        self._end: AgentError | StopAsyncIteration | None = None

    def __aiter__(self) -> "Watch[K]":
        return self

    async def __anext__(self) -> ObjectEvent[K]:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            async with opening:
                pass
        bookmark_at = self._loop.time() + self._settings.bookmark_seconds
        while True:
            now = self._loop.time()
            if self._end is not None and not (self._queue and isinstance(self._end, StopAsyncIteration)):
                raise self._end
            if self._settings.stalled and self._end is None:  # a stream that was ended sends its queue first
                await self._wait_until(None)
            elif self._queue:
                due, event = self._queue[0]
                if due <= now:
                    self._queue.popleft()
                    return cast(ObjectEvent[K], event)
                await self._wait_until(due)
            elif now >= bookmark_at:
                return self._bookmark()
            else:
                await self._wait_until(bookmark_at)

    async def aclose(self) -> None:
        self.close(StopAsyncIteration())

    def put(self, change: Change) -> None:
        """Queue the event of a change if the selector matches."""
        event = change.event_for(self.selector)
        if event is not None:
            self.put_event(event)

    def put_event(self, event: ObjectEvent[Wire]) -> None:
        """Queue an event. Break the stream if its queue is full."""
        if self._end is not None:
            return
        if len(self._queue) >= self._settings.queue_limit:
            self.close(ApiUnavailable("cannot continue the watch: the consumer is too slow"))
            return
        # A shorter delay must not let an event overtake an earlier one.
        last = self._queue[-1][0] if self._queue else 0.0
        self._queue.append((max(last, self._loop.time() + self._settings.delay_seconds), event))
        self._wake.set()

    def bookmark(self) -> None:
        """Queue a bookmark with the newest version."""
        self.put_event(cast("ObjectEvent[Wire]", self._bookmark()))

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End the stream with StopAsyncIteration, or break it with an error. A broken stream loses its queue."""
        if self._end is None:
            self._end = end
            self._wake.set()

    def wake(self) -> None:
        """Apply changed settings."""
        self._wake.set()

    def _bookmark(self) -> ObjectEvent[K]:
        version = str(self._version())
        what = msgspec.convert({"metadata": {"resourceVersion": version}}, self._kind)
        return ObjectEvent(WatchType.BOOKMARK, what, version)

    async def _wait_until(self, until: float | None) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return
