"""The guarded runtime, with an event at every await of a call and a failure of every call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from podkeeper.engine.guard import GuardedRuntime, Limits
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock

ONE_EACH = Limits(start_slots=1, stop_slots=1, pull_slots=1)
SOON = 1.0  # far less than any lease: a slot that is lost shows as a longer wait


class Underneath(FakeRuntime):
    """A fake runtime that knows which pods have a change under way, and for whom one began too late."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.under_way: Counter[str] = Counter()
        self.side_by_side: list[str] = []
        self.abandoned: set[str] = set()
        self.too_late: list[str] = []

    async def run_sandbox(self, config: SandboxConfig) -> str:
        name = config.pod.metadata.name or ""
        if self.under_way[name]:
            self.side_by_side.append(name)
        if name in self.abandoned:
            self.too_late.append(name)
        self.under_way[name] += 1
        try:
            await asyncio.sleep(0)
            return await super().run_sandbox(config)
        finally:
            self.under_way[name] -= 1


@dataclass
class Stage:
    guard: GuardedRuntime
    runtime: Underneath
    running: asyncio.Task[None]
    callers: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)

    async def start(self, name: str) -> str:
        """What a sync does: it must not end while its call is under way."""
        try:
            return await self.guard.run_sandbox(sandbox(name))
        finally:
            if self.runtime.under_way[name]:
                self.left_behind.append(name)

    async def call(self, name: str) -> None:
        """Make a call whose caller can be cancelled."""
        self.callers[name] = asyncio.ensure_future(self.start(name))
        await asyncio.wait({self.callers[name]})

    async def cancel(self, name: str) -> None:
        """Cancel a caller. When it has ended, nothing of it may begin any more."""
        caller = self.callers.get(name)
        if caller is not None and caller.cancel():
            await asyncio.wait({caller})
            self.runtime.abandoned.add(name)

    def sandboxes(self) -> frozenset[str]:
        return frozenset(call.about for call in self.runtime.ledger if call.operation == "run_sandbox")

    def holds(self) -> None:
        assert self.left_behind == []
        assert self.runtime.side_by_side == []
        assert self.runtime.too_late == []

    async def all_slots_are_free(self) -> None:
        """Calls of every kind begin at once, more of them than there are slots. No call counts as under way."""
        self.runtime.abandoned.clear()
        async with asyncio.timeout(SOON):
            await asyncio.gather(self.start("x"), self.start("y"), self.guard.pull_image("i:1"))
            await self.guard.stop_sandbox("none")
            await self.guard.remove_container("none")
        self.runtime.faults.clear()
        await asyncio.sleep(ONE_EACH.pull_slow_seconds)
        assert self.guard.slow_calls() == ()


def sandbox(name: str) -> SandboxConfig:
    return SandboxConfig(pod=Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}")), attempt=0)


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    clock = VirtualClock()
    runtime = Underneath(clock)
    guard = GuardedRuntime(calls.watch("runtime", runtime), clock=clock, limits=ONE_EACH)
    running = asyncio.ensure_future(guard.run())
    await asyncio.sleep(0)
    try:
        yield Stage(guard, runtime, running)
    finally:
        running.cancel()
        await asyncio.wait({running})


@asynccontextmanager
async def busy_stage(calls: PortCalls) -> AsyncIterator[Stage]:
    """The only slot is taken by a call that has not ended, and another caller waits for it."""
    async with stage(calls) as empty:
        under_way = [asyncio.ensure_future(empty.call(name)) for name in ("db", "mail")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield empty
        await asyncio.wait(under_way)


async def start_web(stage: Stage) -> None:
    await stage.start("web")


async def pull(stage: Stage) -> None:
    await stage.guard.pull_image("app:v1")


async def inspect(stage: Stage) -> None:
    await stage.guard.pod_record(PodUID("uid-web"))


OTHERS: dict[str, Event[Stage]] = {
    "another pod starts": lambda stage: stage.call("db"),
    "an image is pulled": pull,
    "the pod is inspected": inspect,
    "a sandbox is stopped": lambda stage: stage.guard.stop_sandbox("none"),
}
CANCELLATIONS: dict[str, Event[Stage]] = {
    "the call under way is cancelled": lambda stage: stage.cancel("db"),
    "the call that waits is cancelled": lambda stage: stage.cancel("mail"),
    "both are cancelled": lambda stage: asyncio.gather(stage.cancel("db"), stage.cancel("mail")),
}


@pytest.mark.parametrize("run", [start_web, pull, inspect])
def test_every_call_beside_others(run: Callable[[Stage], Awaitable[None]]) -> None:
    operation = Operation(
        stage=stage, run=run, state=lambda _: None, check=Stage.holds, afterwards=Stage.all_slots_are_free
    )
    interleave(operation, OTHERS)


def test_a_call_that_waits_for_a_slot_beside_cancelled_callers() -> None:
    operation = Operation(
        stage=busy_stage,
        run=start_web,
        state=lambda stage: "uid-web" in stage.sandboxes(),
        check=Stage.holds,
        afterwards=Stage.all_slots_are_free,
    )
    interleave(operation, CANCELLATIONS)


def test_a_call_that_hangs_until_its_deadline() -> None:
    @asynccontextmanager
    async def hanging(calls: PortCalls) -> AsyncIterator[Stage]:
        async with stage(calls) as empty:
            empty.runtime.faults.hang("run_sandbox", "uid-web")
            yield empty

    async def start(stage: Stage) -> None:
        await stage.guard.run_sandbox(sandbox("web"))

    def answer(stage: Stage) -> None:
        stage.runtime.faults.clear()

    operation = Operation(stage=hanging, run=start, state=lambda _: None, afterwards=Stage.all_slots_are_free)
    interleave(operation, {**OTHERS, "the runtime answers after all": answer}, cancel=False)


@pytest.mark.parametrize("on", [stage, busy_stage])
def test_a_guard_that_stops_lets_no_caller_wait(
    on: Callable[[PortCalls], AbstractAsyncContextManager[Stage]],
) -> None:
    async def start_if_possible(stage: Stage) -> None:
        with suppress(RuntimeUnavailable):
            await stage.guard.run_sandbox(sandbox("web"))

    def stop(stage: Stage) -> None:
        stage.running.cancel()

    def nothing_is_under_way(stage: Stage) -> None:
        assert not +stage.runtime.under_way

    async def no_call_is_slow(stage: Stage) -> None:
        await asyncio.sleep(ONE_EACH.lease_seconds)
        assert stage.guard.slow_calls() == ()

    operation = Operation(
        stage=on,
        run=start_if_possible,
        state=lambda _: None,
        check=nothing_is_under_way,
        afterwards=no_call_is_slow,
    )
    interleave(operation, {"the guard stops": stop}, cancel=False)


@pytest.mark.parametrize("run", [start_web, pull, inspect])
def test_every_call_fails_once(run: Callable[[Stage], Awaitable[None]]) -> None:
    operation = Operation(
        stage=stage, run=run, state=lambda _: None, check=Stage.holds, afterwards=Stage.all_slots_are_free
    )
    fail_each_call(operation)
