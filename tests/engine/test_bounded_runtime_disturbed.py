"""`BoundedRuntime` with an event at every await of a call, and with a failure of every call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime, CallLimits
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing import build
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock

ONE_EACH = CallLimits(start_slots=1, stop_slots=1, pull_slots=1)
SOON = 1.0  # far less than any lease: a slot that is lost shows as a longer wait


class RecordingRuntime(FakeRuntime):
    """A fake runtime that records pods with two concurrent changes and changes that began after their caller ended."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.in_flight: Counter[str] = Counter()
        self.concurrent: list[str] = []
        self.abandoned: set[str] = set()
        self.after_cancel: list[str] = []

    async def run_sandbox(self, config: SandboxConfig) -> str:
        name = config.pod.metadata.name or ""
        if self.in_flight[name]:
            self.concurrent.append(name)
        if name in self.abandoned:
            self.after_cancel.append(name)
        self.in_flight[name] += 1
        try:
            await asyncio.sleep(0)
            return await super().run_sandbox(config)
        finally:
            self.in_flight[name] -= 1


@dataclass
class Setup:
    bounded: BoundedRuntime
    runtime: RecordingRuntime
    running: asyncio.Task[None]
    callers: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    left_in_flight: list[str] = field(default_factory=list)

    async def start(self, name: str) -> str:
        """Start a pod as a sync does. The sync must not end while its call is in flight."""
        try:
            return await self.bounded.run_sandbox(sandbox(name))
        finally:
            if self.runtime.in_flight[name]:
                self.left_in_flight.append(name)

    async def call(self, name: str) -> None:
        """Make a call whose caller can be cancelled."""
        self.callers[name] = asyncio.ensure_future(self.start(name))
        await asyncio.wait({self.callers[name]})

    async def cancel(self, name: str) -> None:
        """Cancel a caller. After its end no call of it may begin."""
        caller = self.callers.get(name)
        if caller is not None and caller.cancel():
            await asyncio.wait({caller})
            self.runtime.abandoned.add(name)

    def sandboxes(self) -> frozenset[str]:
        return frozenset(call.about for call in self.runtime.call_log if call.operation == "run_sandbox")

    def holds(self) -> None:
        assert self.left_in_flight == []
        assert self.runtime.concurrent == []
        assert self.runtime.after_cancel == []

    async def all_slots_are_free(self) -> None:
        """Check that calls of every kind begin at once, and that no call is in flight afterwards."""
        self.runtime.abandoned.clear()
        async with asyncio.timeout(SOON):
            await asyncio.gather(self.start("x"), self.start("y"), self.bounded.pull_image("i:1"))
            await self.bounded.stop_sandbox("none")
            await self.bounded.remove_container("none")
        self.runtime.faults.clear()
        await asyncio.sleep(ONE_EACH.pull_slow_seconds)
        assert self.bounded.slow_calls() == ()


def sandbox(name: str) -> SandboxConfig:
    return SandboxConfig(pod=build.pod(name, namespace="ns", uid=f"uid-{name}"), attempt=0)


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    clock = VirtualClock()
    runtime = RecordingRuntime(clock)
    bounded = BoundedRuntime(calls.watch("runtime", runtime), clock=clock, limits=ONE_EACH)
    running = asyncio.ensure_future(bounded.run())
    await asyncio.sleep(0)
    try:
        yield Setup(bounded, runtime, running)
    finally:
        running.cancel()
        await asyncio.wait({running})


@asynccontextmanager
async def busy_setup(calls: PortCalls) -> AsyncIterator[Setup]:
    """One call holds the only slot, and another caller waits for it."""
    async with setup(calls) as empty:
        in_flight = [asyncio.ensure_future(empty.call(name)) for name in ("db", "mail")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield empty
        await asyncio.wait(in_flight)


async def start_web(setup: Setup) -> None:
    await setup.start("web")


async def pull(setup: Setup) -> None:
    await setup.bounded.pull_image("app:v1")


async def inspect(setup: Setup) -> None:
    await setup.bounded.pod_record(PodUID("uid-web"))


OTHERS: dict[str, Event[Setup]] = {
    "another pod starts": lambda setup: setup.call("db"),
    "an image is pulled": pull,
    "the pod is inspected": inspect,
    "a sandbox is stopped": lambda setup: setup.bounded.stop_sandbox("none"),
}
CANCELLATIONS: dict[str, Event[Setup]] = {
    "the call in flight is cancelled": lambda setup: setup.cancel("db"),
    "the waiting call is cancelled": lambda setup: setup.cancel("mail"),
    "both are cancelled": lambda setup: asyncio.gather(setup.cancel("db"), setup.cancel("mail")),
}


@pytest.mark.parametrize("run", [start_web, pull, inspect])
def test_every_call_with_other_calls_at_every_await(run: Callable[[Setup], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=setup, run=run, state=lambda _: None, check=Setup.holds, afterwards=Setup.all_slots_are_free
    )
    interleave(operation, OTHERS)


def test_a_call_that_waits_for_a_slot_while_other_callers_are_cancelled() -> None:
    operation = OperationTest(
        setup=busy_setup,
        run=start_web,
        state=lambda setup: "uid-web" in setup.sandboxes(),
        check=Setup.holds,
        afterwards=Setup.all_slots_are_free,
    )
    interleave(operation, CANCELLATIONS)


def test_a_call_that_hangs_until_its_deadline() -> None:
    @asynccontextmanager
    async def hanging(calls: PortCalls) -> AsyncIterator[Setup]:
        async with setup(calls) as empty:
            empty.runtime.faults.hang("run_sandbox", "uid-web")
            yield empty

    async def start(setup: Setup) -> None:
        await setup.bounded.run_sandbox(sandbox("web"))

    def answer(setup: Setup) -> None:
        setup.runtime.faults.clear()

    operation = OperationTest(setup=hanging, run=start, state=lambda _: None, afterwards=Setup.all_slots_are_free)
    interleave(operation, {**OTHERS, "the runtime answers late": answer}, cancel=False)


@pytest.mark.parametrize("on", [setup, busy_setup])
def test_no_caller_waits_after_the_bounded_runtime_has_stopped(
    on: Callable[[PortCalls], AbstractAsyncContextManager[Setup]],
) -> None:
    async def start_if_possible(setup: Setup) -> None:
        with suppress(RuntimeUnavailable):
            await setup.bounded.run_sandbox(sandbox("web"))

    def stop(setup: Setup) -> None:
        setup.running.cancel()

    def nothing_is_in_flight(setup: Setup) -> None:
        assert not +setup.runtime.in_flight

    async def no_call_is_slow(setup: Setup) -> None:
        await asyncio.sleep(ONE_EACH.lease_seconds)
        assert setup.bounded.slow_calls() == ()

    operation = OperationTest(
        setup=on,
        run=start_if_possible,
        state=lambda _: None,
        check=nothing_is_in_flight,
        afterwards=no_call_is_slow,
    )
    interleave(operation, {"the bounded runtime stops": stop}, cancel=False)


@pytest.mark.parametrize("run", [start_web, pull, inspect])
def test_every_call_fails_once(run: Callable[[Setup], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=setup, run=run, state=lambda _: None, check=Setup.holds, afterwards=Setup.all_slots_are_free
    )
    fail_each_call(operation)
