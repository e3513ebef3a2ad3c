"""Watching the in-memory API: field selectors, what a change means to one watcher, and the stream itself.

A stream has no task and no timer of its own; it is asked. It can be slow, stalled, broken or ended, and tells a
bookmark when nothing else has happened for a while.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar, cast

import msgspec

from podkeeper.model.api import WatchEvent, WatchType
from podkeeper.model.errors import AgentError, ApiUnavailable, BadInput, Problem
from podkeeper.model.wire import Wire
from podkeeper.testing.memory_objects import meta_of

K = TypeVar("K", bound=Wire)

NODE_NAME = "spec.nodeName"


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a kind are meant."""

    namespace: str = ""  # empty: all
    fields: tuple[tuple[str, bool, str], ...] = ()  # (path, is or is not, value)

    @property
    def node(self) -> str | None:
        """The one node whose pods are meant; None: those of all."""
        return next((value for path, equal, value in self.fields if path == NODE_NAME and equal), None)

    def matches(self, what: Wire | None) -> bool:
        """Whether an object is meant."""
        if what is None or (self.namespace and meta_of(what).namespace != self.namespace):
            return False
        return all((field_of(what, path) == value) is equal for path, equal, value in self.fields)


def selector_of(kind: type[Wire], namespace: str, text: str) -> Selector:
    """Read a field selector: `spec.nodeName=n1,metadata.name!=web`."""
    fields = []
    for part in filter(None, text.split(",")):
        path, sign, value = part.partition("=")
        if not sign:
            raise BadInput(Problem(f"cannot read field selector {part!r}; right would be spec.nodeName=n1"))
        equal = not path.endswith("!")
        fields.append((path.removesuffix("!"), equal, value.removeprefix("=")))
        field_of(kind(), fields[-1][0])  # raises for a field there is not
    return Selector(namespace, tuple(fields))


def field_of(what: Wire, path: str) -> str:
    """The value of a field as selectors see it: empty when absent."""
    value: object = what
    for name in path.split("."):
        if not isinstance(value, msgspec.Struct) or name not in (attributes := _attributes(type(value))):
            raise BadInput(Problem(f"cannot select by field {path}: a {type(what).__name__} has none"))
        value = getattr(value, attributes[name])
    return "" if value is None else str(value)


@cache
def _attributes(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object; without `new` it was removed (and `old` bears the version of that)."""

    version: int
    old: Wire | None
    new: Wire | None

    def seen_by(self, selector: Selector) -> WatchEvent[Wire] | None:
        """What a watcher is told: an object that comes to be meant is added, one no longer meant is deleted."""
        before, after = selector.matches(self.old), selector.matches(self.new)
        what = self.new if self.new is not None else self.old
        assert what is not None
        match before, after:
            case True, True:
                return WatchEvent(WatchType.MODIFIED, what, str(self.version))
            case False, True:
                return WatchEvent(WatchType.ADDED, what, str(self.version))
            case True, False:
                return WatchEvent(WatchType.DELETED, what, str(self.version))
            case _:
                return None


@dataclass(slots=True)
class Pace:
    """How the server's streams flow."""

    delay_seconds: float = 0.0
    stalled: bool = False  # nothing comes, and nothing breaks either
    bookmark_seconds: float = 60.0
    queue_limit: int = 100_000


class Watch(Generic[K]):
    """One stream, for one consumer."""

    def __init__(
        self,
        kind: type[K],
        selector: Selector,
        pace: Pace,
        opening: AbstractAsyncContextManager[object],
        version: Callable[[], int],
    ) -> None:
        self._kind = kind
        self.selector = selector
        self._pace = pace
        self._opening: AbstractAsyncContextManager[object] | None = opening
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, WatchEvent[Wire]]] = deque()
        self._wake = asyncio.Event()
        self._end: AgentError | StopAsyncIteration | None = None

    def __aiter__(self) -> "Watch[K]":
        return self

    async def __anext__(self) -> WatchEvent[K]:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            async with opening:
                pass
        bookmark_at = self._loop.time() + self._pace.bookmark_seconds
        while True:
            now = self._loop.time()
            if self._end is not None and not (self._queue and isinstance(self._end, StopAsyncIteration)):
                raise self._end
            if self._pace.stalled and self._end is None:  # who ends a stream says first what it held back
                await self._woken(None)
            elif self._queue:
                due, event = self._queue[0]
                if due <= now:
                    self._queue.popleft()
                    return cast(WatchEvent[K], event)
                await self._woken(due)
            elif now >= bookmark_at:
                return self._bookmark()
            else:
                await self._woken(bookmark_at)

    async def aclose(self) -> None:
        """Stop watching."""
        self.close(StopAsyncIteration())

    def put(self, change: Change) -> None:
        """Hand on a change, if it concerns this watcher."""
        event = change.seen_by(self.selector)
        if event is not None:
            self.put_event(event)

    def put_event(self, event: WatchEvent[Wire]) -> None:
        """Hand on an event."""
        if self._end is not None:
            return
        if len(self._queue) >= self._pace.queue_limit:
            self.close(ApiUnavailable("cannot go on: the watcher does not keep up"))
            return
        last = self._queue[-1][0] if self._queue else 0.0
        self._queue.append((max(last, self._loop.time() + self._pace.delay_seconds), event))
        self._wake.set()

    def bookmark(self) -> None:
        """Tell the newest version now."""
        self.put_event(cast("WatchEvent[Wire]", self._bookmark()))

    def close(self, end: AgentError | StopAsyncIteration) -> None:
        """End the stream, or break it: what a broken one still held is lost."""
        if self._end is None:
            self._end = end
            self._wake.set()

    def wake(self) -> None:
        """Look again: the pace has changed."""
        self._wake.set()

    def _bookmark(self) -> WatchEvent[K]:
        version = str(self._version())
        what = msgspec.convert({"metadata": {"resourceVersion": version}}, self._kind)
        return WatchEvent(WatchType.BOOKMARK, what, version)

    async def _woken(self, until: float | None) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return
