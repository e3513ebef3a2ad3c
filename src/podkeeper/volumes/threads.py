"""Run file operations that may hang in threads.

One call per key at a time, each with a timeout.

A hanging call (a dead file server, a broken device) blocks one thread and its own pod, and no other. The number of
concurrent calls is limited, but a call that runs longer than `SLOW_SECONDS` does not count. A call that times out
continues, and the next call with the same key waits for its end.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from podkeeper.concurrency.slots import Slots
from podkeeper.concurrency.threads import Start, in_thread, start_daemon
from podkeeper.model.errors import CallTimedOut, TryLater

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0
SLOW_SECONDS = 1.0  # after this time, a call no longer counts against the limit
MAX_CALLS = 4


class _ThreadCall:
    """A call that waits for a thread or runs in one."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # an error is a result, too


class Threads:
    """Runs blocking functions, one at a time for each key."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS, start: Start = start_daemon) -> None:
        self._timeout_seconds = timeout_seconds
        self._start = start
        self._calls: dict[str, _ThreadCall] = {}
        # A call that hangs on a dead file server must not hold a slot, so a slow call gives its slot back.
        self._slots: Slots[_ThreadCall] = Slots(MAX_CALLS, lease_seconds=SLOW_SECONDS)

    async def run(self, key: str, what: str, work: Callable[[], T]) -> T:
        """Run a function after the running one with the same key. `what` is its name in errors.

        A cancelled caller stops waiting, but the function continues. Raises CallTimedOut and its errors.
        """
        waiting_for = what
        try:
            async with asyncio.timeout(self._timeout_seconds) as deadline:
                # The earlier call may have timed out and still run. Two calls must never work on the same files.
                while (earlier := self._calls.get(key)) is not None:
                    waiting_for = earlier.what
                    await asyncio.wait({earlier.end})
                waiting_for = what
                call = self._calls[key] = _ThreadCall(what)
                await self._begin(key, call, work)
                # Shield, because a thread cannot be cancelled.
                result: T | BaseException = await asyncio.shield(call.end)
                if isinstance(result, BaseException):
                    raise result
                return result
        except TimeoutError:
            if not deadline.expired():  # raised by the function itself, such as ETIMEDOUT of a file server
                raise
            raise CallTimedOut(f"cannot {what}: `{waiting_for}` did not end in {self._timeout_seconds:g} s") from None

    async def _begin(self, key: str, call: _ThreadCall, work: Callable[[], object]) -> None:
        try:
            await self._slots.acquire(call)
        except BaseException:
            del self._calls[key]
            call.end.cancel()
            raise
        try:
            # A new thread for each call, because hanging calls would soon fill a pool. It does not keep the process
            # alive.
            thread = in_thread(work, f"volumes: {call.what}", self._start)
        except RuntimeError as error:
            self._finish(key, call, TryLater(f"cannot {call.what}: {error}"))
        else:
            thread.add_done_callback(lambda done: self._finish(key, call, done.result()))

    def _finish(self, key: str, call: _ThreadCall, result: object) -> None:
        self._slots.give_back(call)
        del self._calls[key]
        call.end.set_result(result)
