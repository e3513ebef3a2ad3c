"""PLEG and its cache, with an event at every await of an inspection and a failure of every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from podkeeper.engine.pleg import PlegTiming
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerState
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_pleg import DB, EXITED, RUNNING, SYNC, WEB, PlegHarness, Runtime

PACE = PlegTiming(relist_seconds=60, poll_seconds=1, trust_after_seconds=0.5, inspection_slots=1)
SOON = 0.25  # less than any relist: what was announced is seen by now
RELISTED = 200.0  # what was not announced is seen by now, whatever failed before
TOLD = {
    RUNNING: LifecycleEventType.CONTAINER_STARTED,
    EXITED: LifecycleEventType.CONTAINER_DIED,
    None: LifecycleEventType.CONTAINER_REMOVED,
}


@dataclass
class Harness:
    harness: PlegHarness
    runtime: Runtime
    running: asyncio.Task[None]
    history: list[ContainerState | None] = field(default_factory=lambda: [RUNNING])  # the states of WEB so far

    def put(self, uid: PodUID, state: ContainerState | None, tell: bool = True) -> None:
        if uid == WEB:
            self.history.append(state)
        self.runtime.put(uid, state, tell=tell)

    async def inspect(self) -> None:
        """What a sync does after its own action: it must see the pod as it is from now on."""
        past = len(self.history) - 1
        seen = await self.harness.cache.get_newer_than(WEB, self.harness.moment())
        assert (seen.containers[0].state if seen.containers else None) in self.history[past:]

    async def act(self, state: ContainerState | None) -> None:
        """What the syncer does: it stops or removes a container, and no event announces that; then it inspects."""
        self.put(WEB, state, tell=False)
        await self.inspect()

    def state(self, uid: PodUID) -> ContainerState | None:
        return self.runtime.pods.get(uid, {}).get("app")

    def cached(self) -> list[list[ContainerState]]:
        return [[found.state for found in self.harness.cache.get(uid).containers] for uid in (WEB, DB)]

    def as_the_runtime(self) -> None:
        """The cache equals the runtime, so does the last event of each pod, and no event is sent twice in a row."""
        for uid, cached in zip((WEB, DB), self.cached(), strict=True):
            state = self.state(uid)
            assert cached == ([] if state is None else [state])
            # A pod whose inspection failed is synced again, which is not a change.
            told = [event.type for _, event, _ in self.harness.told if event.uid == uid and event.type is not SYNC]
            assert all(one is not other for one, other in pairwise(told)), told
            if told:
                assert told[-1] is TOLD[state]
        for _, event, record in self.harness.told:  # the cache has the state that the event reports
            assert event.type is not LifecycleEventType.CONTAINER_STARTED or record.containers

    async def goes_on(self) -> None:
        """The next change is seen at once, when a broken stream has had its time to come back."""
        await asyncio.sleep(5)
        for state in (EXITED, RUNNING):
            self.put(WEB, state)
            await asyncio.sleep(SOON)
            self.as_the_runtime()


def stage_with(*pods: PodUID) -> Callable[[PortCalls], AbstractAsyncContextManager[Harness]]:
    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Harness]:
        runtime = Runtime()
        runtime.look_seconds, runtime.list_seconds = 0.02, 0.04  # the answer is taken half-way
        for uid in pods:
            runtime.put(uid, RUNNING)
        harness = PlegHarness(calls.watch("runtime", runtime), PACE)
        running = asyncio.ensure_future(harness.pleg.run())
        await asyncio.sleep(2.5)  # the event stream is trusted by now, and the relists are slow
        harness.told.clear()
        yield Harness(harness, runtime, running)
        running.cancel()
        await asyncio.wait({running})

    return stage


async def start(stage: Harness) -> None:
    stage.put(WEB, RUNNING)
    await asyncio.sleep(SOON)


async def exit_(stage: Harness) -> None:
    stage.put(WEB, EXITED)
    await asyncio.sleep(SOON)


async def remove(stage: Harness) -> None:
    stage.put(WEB, None)
    await asyncio.sleep(SOON)


async def break_stream(stage: Harness) -> None:
    """The stream breaks: a relist follows."""
    stage.runtime.break_streams()
    await asyncio.sleep(SOON)


ANNOUNCED: dict[str, Event[Harness]] = {
    "the container runs": lambda stage: stage.put(WEB, RUNNING),
    "the container exits": lambda stage: stage.put(WEB, EXITED),
    "the pod is removed": lambda stage: stage.put(WEB, None),
    "another pod changes": lambda stage: stage.put(DB, EXITED),
    "the pod is inspected": Harness.inspect,
    "the container is stopped by us": lambda stage: stage.act(EXITED),
    "the pod is removed by us": lambda stage: stage.act(None),
    "the stream breaks": lambda stage: stage.runtime.break_streams(),
    "the wall clock jumps": lambda stage: stage.harness.clock.jump(-3600),
}
LOST: dict[str, Event[Harness]] = {
    "the container exits unannounced": lambda stage: stage.put(WEB, EXITED, tell=False),
    "the pod is removed unannounced": lambda stage: stage.put(WEB, None, tell=False),
}


@pytest.mark.parametrize("run", [exit_, break_stream, Harness.inspect])
def test_a_change_with_an_event_is_detected_at_once(run: Callable[[Harness], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=stage_with(WEB, DB),
        run=run,
        state=lambda stage: None,
        check=Harness.as_the_runtime,
        afterwards=Harness.goes_on,
        settle_seconds=SOON,
    )
    interleave(operation, ANNOUNCED, cancel=run is Harness.inspect)


@pytest.mark.parametrize("run", [break_stream, Harness.inspect])
def test_a_change_without_an_event_is_detected_by_the_next_relist(run: Callable[[Harness], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=stage_with(WEB, DB),
        run=run,
        state=lambda stage: None,
        check=Harness.as_the_runtime,
        afterwards=Harness.goes_on,
        settle_seconds=RELISTED,
    )
    interleave(operation, LOST, cancel=False)


@pytest.mark.parametrize("run", [exit_, remove, break_stream, Harness.inspect])
def test_every_call_fails_once(run: Callable[[Harness], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=stage_with(WEB, DB),
        run=run,
        state=Harness.cached,
        check=Harness.as_the_runtime,
        afterwards=Harness.goes_on,
        settle_seconds=RELISTED,
    )
    fail_each_call(operation)


def test_the_pauses_after_failures_are_short_again_after_a_success() -> None:
    def backoff(method: str, again: Callable[[Harness], Awaitable[object]]) -> list[float]:
        operation = OperationTest(setup=unborn, run=start, state=lambda stage: None, settle_seconds=30)
        return check_backoff_resets(operation, "runtime", method, RuntimeUnavailable, again)

    @asynccontextmanager
    async def unborn(calls: PortCalls) -> AsyncIterator[Harness]:
        runtime = Runtime()
        harness = PlegHarness(calls.watch("runtime", runtime), PACE)
        running = asyncio.ensure_future(harness.pleg.run())
        yield Harness(harness, runtime, running)
        running.cancel()
        await asyncio.wait({running})

    assert backoff("list_pods", break_stream) == [1, 2, 4, 8]
    assert backoff("pod_record", exit_) == [1, 2, 4, 8]
    assert backoff("events", break_stream) == [1, 2, 4, 8]
