"""Event loop of the simulation: virtual time, and late wake-ups of the agent.

Each task of the agent has its agent process in its context (`AGENT_PROCESS`). `delay_wakeups` delays a share of the
wake-ups of a live agent's tasks. Messages between its modules then arrive late and in another order. All delays are
drawn from the seed. Tasks of a dead agent and of the world itself are never delayed.

Tasks are hashed by number. asyncio keeps them in sets, and a task group cancels its tasks in the order of a set. An
order by address would differ in each process.

The loop itself takes a quarter of the CPU time of a run. Therefore it has its own step (`_run_once`) and its own
handles. They do what asyncio does, in the same order, without selector, debug mode and comparisons in Python.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVarTuple

from podkeeper.testing.virtual_time import VirtualLoop

Ts = TypeVarTuple("Ts")


class TaskOwner(Protocol):
    """The process to which a task belongs."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""


AGENT_PROCESS: ContextVar[TaskOwner | None] = ContextVar("life", default=None)


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in each run of a seed."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **settings: Any) -> None:
        self._number = number  # first, because asyncio adds the task to a set in its constructor
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self._number


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

    _loop: "SimLoop"
    _callback: Any
    _args: Any
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: "SimLoop",
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


class SimLoop(VirtualLoop):
    """An event loop in virtual time that can delay the agent's tasks."""

    _ready: deque[Any]  # handles
    _due: list[_Due]
    _timer_cancelled_count: int
    _clock_resolution: float
    _stopping: bool
    _selector: Any
    _process_events: Callable[[Any], None]

    def __init__(self, random: Random) -> None:
        self._due = []
        super().__init__()
        self._random = random
        self._share = 0.0
        self._longest_seconds = 0.0
        numbers = count()
        self.set_task_factory(
            lambda loop, coro, **settings: NumberedTask(coro, number=next(numbers), loop=loop, **settings)
        )

    def delay_wakeups(self, share: float, longest_seconds: float) -> None:
        """Delay this share of the agent's wake-ups from now on, by up to `longest_seconds`. Share 0: none."""
        self._share = share
        self._longest_seconds = longest_seconds

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback soon. A callback of the agent may be delayed."""
        if context is None:
            context = copy_context()
        elif self._share > 0.0:
            process = context.get(AGENT_PROCESS)
            if process is not None and process.alive and self._random.random() < self._share:
                delay = self._random.random() * self._longest_seconds
                return self.call_later(delay, callback, *args, context=context)
        handle = _Handle(callback, args, self, context)
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
        timer = _TimerHandle(when, callback, args, self, copy_context() if context is None else context)
        due = _Due(when)
        due.handle = timer
        heapq.heappush(self._due, due)
        return timer

    def jump_to_next_timer(self) -> None:
        """Move the clock to the next timer."""
        self._virtual_now = max(self._virtual_now, float(self._due[0]))

    def _run_once(self) -> None:
        """Run one step as asyncio's base class does: all callbacks that are ready, in order.

        Timers with equal times run in the order in which the heap yields them. That order is part of a seed's history,
        so cancelled timers are removed exactly when asyncio removes them.
        """
        due, ready, pop = self._due, self._ready, heapq.heappop
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
        if not ready and not self._stopping:
            if not due:
                # Another thread may still wake the loop up. Otherwise this raises Stuck.
                self._process_events(self._selector.select(None))
            elif due[0] > self._virtual_now:
                self._virtual_now = float(due[0])
        end = self._virtual_now + self._clock_resolution
        while due and due[0] < end:
            timer = pop(due).handle
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"unexpected error in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})
