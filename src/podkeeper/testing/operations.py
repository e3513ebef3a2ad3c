"""Run one operation of a module from scratch in virtual time, with events at chosen moments.

`interleave` and `failures` are built on this: an `Operation` describes what runs and how to judge its end, a `Run` runs
it once.
"""

import asyncio
import heapq
import inspect
import sysconfig
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, TypeVarTuple

from podkeeper.testing.port_calls import AT_ONCE, PortCall, PortCalls, is_allowed
from podkeeper.testing.virtual_time import Stuck, VirtualLoop, simulate

S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LIMIT_SECONDS = 3600.0
"""An operation that takes longer, in virtual time, counts as endless."""
MOST_CALLBACKS = 50_000
"""A run with more callbacks counts as a hot loop."""
RETRIES = 20
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/"
SHOWN_FAILURES = 5

COUNTS: Counter[str] = Counter()
"""How many disturbed runs this process has made, by kind. The test suite prints the sums."""

Event = Callable[[S], object]
"""What arrives: a plain call, or one that returns an awaitable, which runs as a task of its own."""


def _holds(_: object) -> None:
    """Check nothing."""


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[S]):
    """One operation of a module, the stage it runs on, and how to judge the end."""

    stage: Callable[[PortCalls], AbstractAsyncContextManager[S]]
    """Build the module from scratch over fakes that are watched by the given `PortCalls`."""
    run: Callable[[S], Awaitable[object]]
    """The operation. If it raises an `AgentError` or the injected error, it is run again after `retry_seconds`."""
    state: Callable[[S], object]
    """The end state, as a value that can be compared. Leave out what may differ: times, counts of calls."""
    check: Callable[[S], None] = _holds
    """Assert the invariants of the module, at the end of every run."""
    afterwards: Callable[[S], Awaitable[None]] | None = None
    """What must still work at the end of every run, after `state` was taken. Assert it here. No call fails any more."""
    settle_seconds: float = 0.0
    """How long the module goes on, in virtual time, before the state is taken."""
    retry_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Explored:
    """What `interleave` or `fail_each_call` did."""

    places: int  # awaits, or calls of ports
    runs: int


@dataclass(slots=True)
class Failures:
    """The runs that failed."""

    what: str
    found: list[str] = field(default_factory=list)

    def add(self, where: str, problem: str) -> None:
        """Note that a run failed."""
        self.found.append(f"{where}:\n    {problem}")

    def judge(self, where: str, ended: "Ended", expected: Sequence[object]) -> None:
        """Add a failure unless a run ended in one of the expected states."""
        if ended.problem:
            self.add(where, ended.problem)
        elif ended.state not in expected:
            states = " or ".join(dict.fromkeys(map(repr, expected)))
            self.add(where, f"ends as {ended.state!r}\n    expected {states}")

    def report(self, runs: int) -> None:
        """Raise AssertionError if there are any."""
        if self.found:
            shown = "\n".join(self.found[:SHOWN_FAILURES])
            raise AssertionError(f"{len(self.found)} of {runs} runs with {self.what} failed:\n{shown}")


# The loop.


class _StepHandle(asyncio.Handle):
    """A callback that the loop announces."""

    _loop: "SteppingLoop"

    def _run(self) -> None:
        self._loop.step()
        if not self.cancelled():  # by an event that has just arrived
            super()._run()
        self._loop.check_hot_loop()


class _StepTimer(asyncio.TimerHandle):
    """A timer whose callback the loop announces."""

    _loop: "SteppingLoop"
    _scheduled: bool

    def _run(self) -> None:
        self._loop.step()
        if not self.cancelled():  # by an event that has just arrived
            super()._run()
        self._loop.check_hot_loop()


class SteppingLoop(VirtualLoop):
    """A virtual loop that calls `before_callback` with the number of each callback, counted since `count_from_here`."""

    _ready: Any

    def __init__(self) -> None:
        super().__init__()
        self.before_callback: Callable[[int], None] | None = None
        self.counted = 0
        self._all = 0

    def count_from_here(self, before_callback: Callable[[int], None]) -> None:
        """Announce callbacks from now on."""
        self.counted = 0
        self.before_callback = before_callback

    def stop_counting(self) -> None:
        """Announce no more callbacks."""
        self.before_callback = None

    def step(self) -> None:
        """Announce a callback."""
        self._all += 1
        if self.before_callback is not None:
            number = self.counted
            self.counted += 1
            self.before_callback(number)

    def check_hot_loop(self) -> None:
        """Raise AssertionError once, so that the tasks can still end."""
        if self._all == MOST_CALLBACKS:
            raise AssertionError(f"more than {MOST_CALLBACKS} callbacks: a hot loop")

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Run a function in the loop, as a callback of its own: like a thread, but at a moment that is known."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(_settle, future, None, error)
            else:
                self.call_soon(_settle, future, result, None)

        self.call_soon(work)
        return future

    def _call_soon(
        self, callback: Callable[..., object], args: Sequence[Any], context: Context | None
    ) -> asyncio.Handle:
        handle = _StepHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer."""
        timer = _StepTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer


def _settle(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():  # cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


# One run.


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    state: object = None
    problem: str = ""  # why it counts as failed, whatever the state
    awaits: int = 0
    where: tuple[str, ...] = ()  # what the operation awaited when each event arrived
    calls: tuple[PortCall, ...] = ()  # to watched ports, without those of the stage and of `afterwards`


class Run(Generic[S]):
    """One run of an operation, with events at some of its awaits."""

    def __init__(self, operation: Operation[S], calls: PortCalls, injected: tuple[type[Exception], ...] = ()) -> None:
        self.operation = operation
        self.calls = calls
        self.injected = injected
        self.where: list[str] = []
        self.problem = ""
        self.task: asyncio.Task[object] | None = None  # the operation
        self.tasks: list[asyncio.Task[object]] = []  # events
        self.cancelled = False
        self.at_once = False

    def in_between(self, schedule: Sequence[tuple[int, Event[S] | None]], *, at_once: bool = False) -> Ended:
        """Deliver each event just before the callback of its number. None stands for cancelling the operation.

        `at_once`: the port calls of the events do not suspend, so that the events overtake the operation.
        """
        self.at_once = at_once

        async def play(stage: S, loop: SteppingLoop) -> int:
            task = self.task = loop.create_task(self._until_done(stage))

            def arrive(number: int) -> None:
                for at, event in schedule:
                    if at == number:
                        self.where.append(_where(task))
                        self._deliver(event, stage, task)

            loop.count_from_here(arrive)
            await self._outcome(task)
            loop.stop_counting()
            counted = loop.counted
            if self.cancelled:
                if not task.cancelled():
                    raise AssertionError("the operation was cancelled and went on as if it had not been")
                await self._until_done(stage)
            return counted

        return self._ended(play)

    def in_order(self, steps: Sequence[Event[S] | None]) -> Ended:
        """Do one thing after the other. None stands for the operation."""

        async def play(stage: S, loop: SteppingLoop) -> int:
            for step in steps:
                if step is None:
                    await self._until_done(stage)
                else:
                    self._deliver(step, stage, None)
                    await self._events_done()
                await asyncio.sleep(self.operation.settle_seconds)
            return 0

        return self._ended(play)

    def _deliver(self, event: Event[S] | None, stage: S, task: "asyncio.Task[object] | None") -> None:
        if event is None:
            assert task is not None
            self.cancelled = task.cancel() or self.cancelled
            return
        try:
            result = event(stage)
        except Exception as error:  # in the loop's hook an exception would end the loop
            if not is_allowed(error, self.injected):
                self.problem = self.problem or f"the event raised {_flat(error)}"
            return
        if inspect.isawaitable(result):
            context = copy_context()
            context.run(AT_ONCE.set, self.at_once)
            work = self._event_or_allowed_error(result)
            self.tasks.append(asyncio.get_running_loop().create_task(work, context=context))

    def _ended(self, play: Callable[[S, SteppingLoop], Awaitable[int]]) -> Ended:
        loop = SteppingLoop()
        loop.set_exception_handler(self._note_bug)

        async def scenario() -> Ended:
            async with self.operation.stage(self.calls) as stage:
                before = len(self.calls.log)
                async with _limit(self._unfinished):
                    awaits = await play(stage, loop)
                    await self._events_done()
                    await asyncio.sleep(self.operation.settle_seconds)
                self.calls.stop()
                self.operation.check(stage)
                made = tuple(happened.call for happened in self.calls.log[before:])
                state = self.operation.state(stage)
                if self.operation.afterwards is not None:
                    async with _limit():
                        await self.operation.afterwards(stage)
                return Ended(state, "", awaits, tuple(self.where), made)

        try:
            ended = simulate(scenario(), loop)[0]
        except (Stuck, AssertionError) as error:
            ended = Ended(problem=f"{type(error).__name__}: {error}", where=tuple(self.where))
        except Exception as error:
            ended = Ended(problem=f"unexpected {_flat(error)}", where=tuple(self.where))
        return replace(ended, problem=ended.problem or self.problem)

    def _note_bug(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note what asyncio only logs: an error in a callback, or one that no task has retrieved."""
        error = context.get("exception")
        if error is not None and not is_allowed(error, self.injected):
            self.problem = self.problem or f"{context['message']}: {_flat(error)}"

    async def _until_done(self, stage: S) -> object:
        """Run the operation. Retry it while it raises an error that it may raise."""
        for attempt in range(RETRIES + 1):
            try:
                return await self.operation.run(stage)
            except Exception as error:
                if not is_allowed(error, self.injected):
                    raise
                if attempt == RETRIES:
                    raise AssertionError(f"still failing after {RETRIES} retries: {_flat(error)}") from error
                await asyncio.sleep(self.operation.retry_seconds)
        raise AssertionError("unreachable")

    async def _event_or_allowed_error(self, event: Awaitable[object]) -> object:
        try:
            return await event
        except Exception as error:
            if not is_allowed(error, self.injected):
                raise
            return None

    def _unfinished(self) -> str:
        """Return where the operation and the events wait that have not ended."""
        waiting = [f"the operation at {_where(self.task)}"] if self.task is not None and not self.task.done() else []
        waiting += [f"an event at {_where(task)}" for task in self.tasks if not task.done()]
        return ", ".join(waiting)

    async def _outcome(self, task: "asyncio.Task[object]") -> None:
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _events_done(self) -> None:
        for task in self.tasks:
            await task


@asynccontextmanager
async def _limit(unfinished: Callable[[], str] = lambda: "") -> AsyncIterator[None]:
    """Raise AssertionError if the block takes longer than LIMIT_SECONDS, with what is `unfinished` then."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        waits = f": {where}" if (where := unfinished()) else ""
        raise AssertionError(f"not finished after {LIMIT_SECONDS:g} virtual seconds{waits}") from error


def _flat(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_flat(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _where(task: "asyncio.Task[object]") -> str:
    """Return the innermost line, outside of asyncio and these tools, that a task awaits."""
    place = "the start"
    waiting: Any = task.get_coro()
    while inspect.iscoroutine(waiting) or inspect.isgenerator(waiting):
        frame = waiting.cr_frame if inspect.iscoroutine(waiting) else waiting.gi_frame
        if frame is not None and (inside := _inside(frame.f_code.co_filename)):
            place = f"{inside}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        waiting = waiting.cr_await if inspect.iscoroutine(waiting) else waiting.gi_yieldfrom
    return place


def _inside(file: str) -> str:
    """Return the end of a file's path. Empty for Python's own files and these tools."""
    if file.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in file:
        return ""
    for folder in ("/podkeeper/", "/tests/"):
        _, found, path = file.rpartition(folder)
        if found:
            return "" if path in ("testing/operations.py", "testing/port_calls.py") else path
    return "/".join(file.split("/")[-2:])
