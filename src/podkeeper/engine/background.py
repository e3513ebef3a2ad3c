"""Work that outlives the pass which began it.

    a pass --spawn--> work goes on here --future--> the pass waits, and may stop waiting

A pass that is cancelled must end soon, and yet some of what it began must not end with it: a container that was asked
to stop goes on stopping, an image that three pods wait for goes on being pulled. Such work runs here, in one task
group that the application owns. Whoever waits holds a future: `asyncio.wait` and `asyncio.shield` only stop waiting;
awaiting the future itself, and being cancelled, cancels the work too, without waiting for its end.

What work raises reaches those who wait and nobody else; a bug is logged once, here. When the agent stops, all work
is cancelled, and so is whatever is spawned after that.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from podkeeper.model.errors import AgentError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Spawn(Protocol):
    """Starts work that outlives its caller."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Future[T]:
        """Start some work. A caller that shields the future may stop waiting for it."""


class Background:
    """Where work goes on while `run` runs. What is spawned before that begins with it."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._early: list[Callable[[], None]] | None = []  # what to begin as soon as `run` does

    async def run(self) -> None:
        """Let work go on until cancelled; returns once the last of it has ended."""
        if self._early is None:
            raise RuntimeError("cannot run the background twice")
        async with asyncio.TaskGroup() as group:
            early, self._early, self._group = self._early, None, group
            try:
                for begin in early:
                    begin()
                await asyncio.Event().wait()
            finally:
                self._group = None

    def give_up(self) -> None:
        """The agent is no more: what waited for `run` to begin is cancelled, should that never have come to it."""
        early, self._early = self._early or (), None
        for begin in early:
            begin()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Begin some work. Its end is told by the future; cancelling that cancels the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._early is not None:
            self._early.append(partial(self._begin, work, future))
        else:
            self._begin(work, future)
        return future

    def _begin(self, work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
        if self._group is None or future.cancelled():
            work.close()
            future.cancel()
            return
        task = self._group.create_task(_until_end(work, future))
        future.add_done_callback(partial(_settled, task))
        task.add_done_callback(lambda _: _let_go(work, future))


async def _until_end(work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
    """Do some work and tell its end. The boundary: nothing but a cancellation goes further."""
    try:
        result = await work
    except Exception as error:
        if not isinstance(error, AgentError):
            log.exception("work in the background failed in an unforeseen way")
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _settled(task: asyncio.Task[None], future: asyncio.Future[T]) -> None:
    """Whoever cancels the future wants no more of the work."""
    if future.cancelled():
        task.cancel()
    else:
        future.exception()  # looked at: that nobody waits any more is no news


def _let_go(work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
    """A task that is cancelled before its first step tells nobody itself."""
    work.close()
    future.cancel()
