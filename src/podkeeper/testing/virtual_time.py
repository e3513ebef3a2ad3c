"""Event loop in virtual time: its clock jumps to the next timer.

    result, seconds = simulate(scenario())

Hours of virtual time pass in milliseconds, and elapsed seconds are exact. If no task can run and no timer is set, the
loop raises `Stuck` with the waiting tasks instead of hanging. Sockets and pipes work: without a timer, the loop waits
for them. Real subprocesses do not work, because the clock jumps to the next timer before they answer. Use fakes.

The loop has its own step (`_run_once`) and its own handles. They do what asyncio does, in the same order, but faster.
"""

import asyncio
import heapq
import random
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(AssertionError):
    """No task can run and no timer is set."""


# asyncio's loop and handles took a quarter of the CPU time of a simulation.
class _Handle(asyncio.Handle):
    """An `asyncio.Handle` that is cheaper to create, because it does not support debug mode."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: Any, loop: asyncio.AbstractEventLoop, context: Context):
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """An `asyncio.TimerHandle` that is cheaper to create and to cancel."""

    __slots__ = ()

    _loop: "VirtualLoop"
    _callback: Any
    _args: Any
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: "VirtualLoop",
        context: Context,
    ):
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        """Cancel the timer. The loop removes it later."""
        if not self._cancelled:
            if self._scheduled:
                self._loop._timer_cancelled_count += 1
            self._cancelled = True
            self._callback = self._args = None


class _Due(float):
    """The time of a timer, with the timer. Floats are compared in C, timer handles in Python."""

    __slots__ = ("handle",)

    handle: _TimerHandle


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0."""

    _asyncgens: weakref.WeakSet[Any]
    _ready: deque[Any]  # handles
    _timer_cancelled_count: int
    _clock_resolution: float
    _closed: bool
    _stopping: bool
    _selector: Any
    _process_events: Callable[[Any], None]
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._due: list[_Due] = []
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._prune_at = 1000
        super().__init__()
        self._files = self._selector._fd_to_key  # not `get_map()`, whose length is computed in Python

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual_now

    def idle_seconds(self) -> float:
        """Return for how many seconds nothing will happen: 0 if a callback is ready or no timer is set."""
        if self._ready or not self._due or self._due[0].handle._cancelled:
            return 0.0
        return max(float(self._due[0]) - self._virtual_now, 0.0)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: Any = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task and record it. asyncio has one set for the tasks of all loops, so a search in it is slow."""
        task = super().create_task(coro, name=name, context=context)
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._prune_at:
            self._tasks = [each for each in self._tasks if each() is not None]
            self._prune_at = 2 * len(self._tasks) + 1000
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next step."""
        if self._closed:
            self._check_closed()
        return self._call_soon(callback, args, context)

    def _call_soon(self, callback: Callable[..., object], args: Any, context: Context | None) -> asyncio.Handle:
        """Add a callback. asyncio calls this method for callbacks of other threads."""
        handle = _Handle(callback, args, self, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after some virtual seconds."""
        return self.call_at(self._virtual_now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        if self._closed:
            self._check_closed()
        timer = _TimerHandle(when, callback, args, self, copy_context() if context is None else context)
        due = _Due(when)
        due.handle = timer
        heapq.heappush(self._due, due)
        return timer

    def end_tasks(self) -> None:
        """Cancel all tasks, run the callbacks that are left and close the asynchronous generators."""
        tasks = [task for each in self._tasks if (task := each()) is not None and not task.done()]
        for task in tasks:
            task.cancel()
        if tasks or self._ready:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if self._asyncgens or self._ready:
            self.run_until_complete(self.shutdown_asyncgens())

    def _run_once(self) -> None:
        """Run one step as asyncio's base class does: all callbacks that are ready, in order.

        Timers with equal times run in the order in which the heap yields them. That order is part of the history of a
        simulation, so cancelled timers are removed exactly when asyncio removes them.
        """
        due, ready, pop = self._due, self._ready, heapq.heappop
        # The thresholds of asyncio's base_events.
        if len(due) > 100 and self._timer_cancelled_count / len(due) > 0.5:
            kept = []
            for each in due:
                if each.handle._cancelled:
                    each.handle._scheduled = False
                else:
                    kept.append(each)
            heapq.heapify(kept)
            due = self._due = kept
            self._timer_cancelled_count = 0
        else:
            while due and due[0].handle._cancelled:
                self._timer_cancelled_count -= 1
                pop(due).handle._scheduled = False
        has_files = len(self._files) > 1  # more than the wake-up pipe, to which only other threads write
        if has_files:
            self._process_events(self._selector.select(0))
        if not ready and not self._stopping:
            if due:
                # Adding differences would accumulate rounding errors.
                self._virtual_now = max(self._virtual_now, float(due[0]))
            else:
                self._wait_for_files(has_files)
        end = self._virtual_now + self._clock_resolution
        while due and due[0] < end:
            timer = pop(due).handle
            timer._scheduled = False
            ready.append(timer)
        self._run_ready(ready)

    def _wait_for_files(self, has_files: bool) -> None:
        """Wait for a file or another thread. Raise Stuck if there is no file and no thread has called the loop."""
        events = self._selector.select(None if has_files else 0)
        if not events:
            waiting = "\n".join(f"  {task}" for task in asyncio.all_tasks(self)) or "  (no task)"
            raise Stuck(f"no task can run and no timer is set after {self._virtual_now:g} s:\n{waiting}")
        self._process_events(events)

    def _run_ready(self, ready: deque[Any]) -> None:
        """Run the callbacks that are ready now, but not those that they add."""
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._report(error, handle)

    def _report(self, error: BaseException, handle: asyncio.Handle) -> None:
        message = f"unexpected error in callback {handle!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})


def idle_seconds() -> float:
    """Return for how many seconds nothing will happen in the running loop. 0 if it is not a virtual one."""
    loop = asyncio.get_running_loop()
    return loop.idle_seconds() if isinstance(loop, VirtualLoop) else 0.0


def simulate(scenario: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> tuple[T, float]:
    """Run a coroutine in virtual time. Return its result and the elapsed virtual seconds."""
    loop = loop or VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(scenario)
        return result, loop.time()
    finally:
        # Before the loop is closed, because tasks that are destroyed while pending only cause warnings, and their
        # cleanup would not run.
        loop.end_tasks()
        asyncio.set_event_loop(None)
        loop.close()


class VirtualClock:
    """The clock port for a virtual loop. Wall time can jump, and randomness is seeded."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, seed: int = 0) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._wall = BEGINNING
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """Return the wall time: the start of 2026 plus the loop's time plus all jumps so far."""
        return self._wall + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()

    def fraction(self) -> float:
        return self._random.random()

    def jump(self, seconds: float) -> None:
        """Move the wall clock. Timers are not affected."""
        self._wall += timedelta(seconds=seconds)


class FixedJitterClock(VirtualClock):
    """A virtual clock with a constant fraction, so that jitter is known."""

    def __init__(self, fraction: float = 0.0) -> None:
        super().__init__()
        self._fraction = fraction

    def fraction(self) -> float:
        return self._fraction
