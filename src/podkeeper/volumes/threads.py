"""File work that may hang, in threads: one call per pod at a time, each with a deadline, none in another's way.

A call that hangs (a dead file server, a device that does not answer) holds one thread and its own pod, and nobody
else: threads are made per call, because a pool is soon full of the hung; at most a few run at a time, but one that has
become slow no longer counts. A call that misses its deadline goes on: the next one for the same pod waits for its end,
so the two never work on the same files. The threads do not keep the process alive.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from podkeeper.model.errors import CallTimedOut, TryLater

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
SLOW_SECONDS = 1.0
AT_ONCE = 4


Start = Callable[[Callable[[], None], str], None]
"""Runs a function in a thread of the given name. Raises RuntimeError if no thread can be started."""


def start_daemon(body: Callable[[], None], name: str) -> None:
    """Start a thread that does not keep the process alive."""
    threading.Thread(target=body, name=name, daemon=True).start()


class _Call:
    """A call that is waiting for its thread, or has one."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.end.add_done_callback(_look_at)


class Threads:
    """Runs blocking work, one at a time for each key."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS, start: Start = start_daemon) -> None:
        self._patience_seconds = patience_seconds
        self._start = start
        self._calls: dict[str, _Call] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, key: str, what: str, work: Callable[[], T]) -> T:
        """Do some work once no other of this key is being done. Raises CallTimedOut, and what the work raises."""
        waiting_for = what
        try:
            async with asyncio.timeout(self._patience_seconds) as deadline:
                while (earlier := self._calls.get(key)) is not None:
                    waiting_for = earlier.what
                    await asyncio.wait({earlier.end})
                waiting_for = what
                call = self._calls[key] = _Call(what)
                await self._begin(key, call, work)
                # Whoever is cancelled only stops waiting: no work is left half done.
                result: T = await asyncio.shield(call.end)
                return result
        except TimeoutError:
            if not deadline.expired():  # the work's own: a file server may say so too
                raise
            raise CallTimedOut(f"cannot {what}: no end of `{waiting_for}` in {self._patience_seconds:g} s") from None

    async def _begin(self, key: str, call: _Call, work: Callable[[], T]) -> None:
        try:
            await self._slots.acquire()
        except BaseException:
            del self._calls[key]
            call.end.cancel()
            raise
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_SECONDS, self._slots.release)

        def ended(result: T | None, error: BaseException | None) -> None:
            if not slow.cancelled() and loop.time() < slow.when():
                slow.cancel()
                self._slots.release()
            del self._calls[key]
            if error is not None:
                call.end.set_exception(error)
            else:
                call.end.set_result(result)

        def body() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended, result, error)

        try:
            self._start(body, f"volumes: {call.what}")
        except RuntimeError as error:
            ended(None, TryLater(f"cannot {call.what}: {error}"))


def _look_at(end: "asyncio.Future[Any]") -> None:
    """A call whose caller has gone may fail unheard."""
    if not end.cancelled():
        end.exception()
