"""Background tasks: work that continues after the sync that started it.

    sync --spawn--> task in this group --future--> the sync waits, and may stop waiting

A cancelled sync must end soon, but some of its work must continue, for example the stop of a container, or an image
pull that other pods also wait for. Such work runs in one task group that belongs to the agent. The caller gets a
future. If the caller waits with `asyncio.wait` or `asyncio.shield`, its cancellation only ends the wait. If the caller
awaits the future itself, its cancellation also cancels the work, and the caller does not wait for the end of the work.

An exception reaches only the callers that wait. An unexpected error is also logged here. When the agent stops, all work
is cancelled, and later work is cancelled at once.
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
    """`Background.spawn`."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Future[T]:
        """Start work that continues if its caller is cancelled. Cancelling the future cancels the work."""


class Background:
    """The task group of background work. Work that is spawned before `run` starts with it."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._early: list[Callable[[], None]] | None = []  # work that starts with `run`; None: `run` was called

    async def run(self) -> None:
        """Run work until cancelled. Return after all of it has ended."""
        if self._early is None:
            raise RuntimeError("cannot run the background tasks twice")
        async with asyncio.TaskGroup() as group:
            early, self._early, self._group = self._early, None, group
            try:
                for start in early:
                    start()
                await asyncio.Event().wait()
            finally:
                self._group = None

    def give_up(self) -> None:
        """Cancel the work that was spawned before `run`, if `run` was never called."""
        early, self._early = self._early or (), None
        for start in early:
            start()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start work and return a future with its result. Cancelling the future cancels the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._early is not None:
            self._early.append(partial(self._start, work, future))
        else:
            self._start(work, future)
        return future

    def _start(self, work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
        if self._group is None or future.cancelled():
            work.close()
            future.cancel()
            return
        task = self._group.create_task(_run_work(work, future))
        future.add_done_callback(partial(_future_done, task))
        task.add_done_callback(lambda _: _task_done(work, future))


async def _run_work(work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
    """Await work and set the result of its future. Only a cancellation is raised."""
    try:
        result = await work
    except Exception as error:
        if not isinstance(error, AgentError):
            log.exception("unexpected error in background work")
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _future_done(task: asyncio.Task[None], future: asyncio.Future[T]) -> None:
    if future.cancelled():
        task.cancel()
    else:
        future.exception()  # mark it as retrieved, so that asyncio does not log an error without a waiting caller


def _task_done(work: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> None:
    """Release work and future of a task that was cancelled before its first step."""
    work.close()
    future.cancel()
