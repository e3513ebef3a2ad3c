"""Run one operation of a module from scratch in virtual time, with events at chosen moments.

`interleave` and `failures` use this module. An `OperationTest` describes the operation and how to check its end state.
A `Run` executes it once.
"""

import asyncio
import inspect
import sysconfig
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, TypeVarTuple

from podkeeper.testing.port_calls import AT_ONCE, PortCall, PortCalls, is_allowed
from podkeeper.testing.virtual_time import Stuck, VirtualLoop, simulate

S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LIMIT_SECONDS = 3600.0
"""An operation that takes longer in virtual time fails its run."""
MOST_CALLBACKS = 50_000
"""A run with more callbacks counts as a hot loop."""
RETRIES = 20
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/"
SHOWN_FAILURES = 5

COUNTS: Counter[str] = Counter()
"""The number of runs in this process, by kind. The test suite prints the sums."""

Event = Callable[[S], object]
"""A function that acts on the subject. If it returns an awaitable, the awaitable runs as a separate task."""


def _no_check(_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class OperationTest(Generic[S]):
    """One operation of a module, its setup, and how to check the end state."""

    setup: Callable[[PortCalls], AbstractAsyncContextManager[S]]
    """Build the module from scratch, with ports from `PortCalls.watch`. The other callables receive its result."""
    run: Callable[[S], Awaitable[object]]
    """The operation. If it raises an `AgentError` or the injected error, it runs again after `retry_seconds`."""
    state: Callable[[S], object]
    """Return the end state as a comparable value. Omit values that may differ between runs: times, numbers of calls."""
    check: Callable[[S], None] = _no_check
    """Assert the invariants of the module at the end of every run."""
    afterwards: Callable[[S], Awaitable[None]] | None = None
    """Assert that the module still works at the end of every run. Called after `state`, without injected failures."""
    settle_seconds: float = 0.0
    """Virtual time between the end of the operation and the call of `state`."""
    retry_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The extent of one `interleave` or `fail_each_call`."""

    places: int  # number of awaits (`interleave`) or port calls (`fail_each_call`)
    runs: int


@dataclass(slots=True)
class Failures:
    """The runs that failed."""

    what: str
    found: list[str] = field(default_factory=list)

    def add(self, where: str, problem: str) -> None:
        self.found.append(f"{where}:\n    {problem}")

    def judge(self, where: str, ended: "Ended", expected: Sequence[object]) -> None:
        """Add a failure unless the run ended in one of the expected states."""
        if ended.problem:
            self.add(where, ended.problem)
        elif ended.state not in expected:
            states = " or ".join(dict.fromkeys(map(repr, expected)))
            self.add(where, f"ends as {ended.state!r}\n    expected {states}")

    def report(self, runs: int) -> None:
        """Raise AssertionError if a run failed."""
        if self.found:
            shown = "\n".join(self.found[:SHOWN_FAILURES])
            raise AssertionError(f"{len(self.found)} of {runs} runs with {self.what} failed:\n{shown}")


# The loop.


class SteppingLoop(VirtualLoop):
    """A virtual loop that calls `before_callback` with the number of each callback, counted since `count_from_here`."""

    def __init__(self) -> None:
        super().__init__()
        self.before_callback: Callable[[int], None] | None = None
        self.counted = 0
        self._all = 0

    def count_from_here(self, before_callback: Callable[[int], None]) -> None:
        """Call `before_callback` before each callback from now on, numbered from 0."""
        self.counted = 0
        self.before_callback = before_callback

    def stop_counting(self) -> None:
        self.before_callback = None

    def _run_ready(self, ready: deque[Any]) -> None:
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            self._all += 1
            if self.before_callback is not None:
                number = self.counted
                self.counted += 1
                self.before_callback(number)
            if not handle._cancelled:  # the event that `before_callback` delivered may have cancelled it
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._report(error, handle)
            if self._all == MOST_CALLBACKS:  # only once, so that the tasks can still end
                raise AssertionError(f"more than {MOST_CALLBACKS} callbacks: a hot loop")

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Run a function as a callback of the loop: like a worker thread, but at a deterministic moment."""
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
    problem: str = ""  # why the run failed, other than a wrong end state
    awaits: int = 0
    where: tuple[str, ...] = ()  # what the operation awaited when each event arrived
    calls: tuple[PortCall, ...] = ()  # to watched ports, without those of `setup` and `afterwards`


class Run(Generic[S]):
    """One run of an operation, with events at some of its awaits."""

    def __init__(
        self, operation: OperationTest[S], calls: PortCalls, injected: tuple[type[Exception], ...] = ()
    ) -> None:
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
        """Deliver each event just before the callback with its number. None cancels the operation.

        `at_once`: port calls of the events do not suspend, so that the events overtake the operation.
        """
        self.at_once = at_once

        async def play(subject: S, loop: SteppingLoop) -> int:
            task = self.task = loop.create_task(self._until_done(subject))

            def arrive(number: int) -> None:
                for at, event in schedule:
                    if at == number:
                        self.where.append(_where(task))
                        self._deliver(event, subject, task)

            loop.count_from_here(arrive)
            await self._outcome(task)
            loop.stop_counting()
            counted = loop.counted
            if self.cancelled:
                if not task.cancelled():
                    raise AssertionError("the operation was cancelled but did not end as cancelled")
                await self._until_done(subject)
            return counted

        return self._ended(play)

    def in_order(self, steps: Sequence[Event[S] | None]) -> Ended:
        """Run the events and the operation (None) one after the other."""

        async def play(subject: S, loop: SteppingLoop) -> int:
            for step in steps:
                if step is None:
                    await self._until_done(subject)
                else:
                    self._deliver(step, subject, None)
                    await self._events_done()
                await asyncio.sleep(self.operation.settle_seconds)
            return 0

        return self._ended(play)

    def _deliver(self, event: Event[S] | None, subject: S, task: "asyncio.Task[object] | None") -> None:
        if event is None:
            assert task is not None
            self.cancelled = task.cancel() or self.cancelled
            return
        try:
            result = event(subject)
        except Exception as error:  # raised from `step`, it would end the loop
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
        # asyncio only logs an error in a callback, so a run with such an error would pass.
        loop.set_exception_handler(self._note_bug)

        async def scenario() -> Ended:
            async with self.operation.setup(self.calls) as subject:
                before = len(self.calls.log)
                async with _limit(self._unfinished):
                    awaits = await play(subject, loop)
                    await self._events_done()
                    await asyncio.sleep(self.operation.settle_seconds)
                # Before `check` and `afterwards`, whose calls must not be counted or fail.
                self.calls.stop()
                self.operation.check(subject)
                made = tuple(logged.call for logged in self.calls.log[before:])
                state = self.operation.state(subject)
                if self.operation.afterwards is not None:
                    async with _limit():
                        await self.operation.afterwards(subject)
                return Ended(state, "", awaits, tuple(self.where), made)

        try:
            ended = simulate(scenario(), loop)[0]
        except (Stuck, AssertionError) as error:
            ended = Ended(problem=f"{type(error).__name__}: {error}", where=tuple(self.where))
        except Exception as error:
            ended = Ended(problem=f"unexpected {_flat(error)}", where=tuple(self.where))
        return replace(ended, problem=ended.problem or self.problem)

    def _note_bug(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record errors that asyncio only logs: an error in a callback or an exception that was never retrieved."""
        error = context.get("exception")
        if error is not None and not is_allowed(error, self.injected):
            self.problem = self.problem or f"{context['message']}: {_flat(error)}"

    async def _until_done(self, subject: S) -> object:
        """Run the operation. Retry it while it raises an allowed error."""
        for attempt in range(RETRIES + 1):
            try:
                return await self.operation.run(subject)
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
        """Return where the unfinished operation and events wait."""
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
    """Raise AssertionError if the block takes longer than LIMIT_SECONDS. The message includes `unfinished()`."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS) as limit:
            yield
    except TimeoutError as error:
        # A TimeoutError of the operation itself is not the time limit.
        if not limit.expired():
            raise
        waits = f": {where}" if (where := unfinished()) else ""
        raise AssertionError(f"not finished after {LIMIT_SECONDS:g} virtual seconds{waits}") from error


def _flat(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_flat(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _where(task: "asyncio.Task[object]") -> str:
    """Return the innermost line outside asyncio and these modules at which a task waits."""
    place = "its start"
    waiting: Any = task.get_coro()
    while inspect.iscoroutine(waiting) or inspect.isgenerator(waiting):
        frame = waiting.cr_frame if inspect.iscoroutine(waiting) else waiting.gi_frame
        if frame is not None and (path := _relative_path(frame.f_code.co_filename)):
            place = f"{path}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        waiting = waiting.cr_await if inspect.iscoroutine(waiting) else waiting.gi_yieldfrom
    return place


def _relative_path(file: str) -> str:
    """Return the end of a file's path. Empty for the standard library and these modules."""
    if file.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in file:
        return ""
    for folder in ("/podkeeper/", "/tests/"):
        _, found, path = file.rpartition(folder)
        if found:
            return "" if path in ("testing/operations.py", "testing/port_calls.py") else path
    return "/".join(file.split("/")[-2:])
