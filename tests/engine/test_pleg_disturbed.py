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
from podkeeper.model.runtime import RecordState
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_pleg import DB, EXITED, RUNNING, SYNC, WEB, PlegHarness, Runtime

PACE = PlegTiming(relist_seconds=60, poll_seconds=1, trust_after_seconds=0.5, inspection_slots=1)
SOON = 0.25  # shorter than any relist: changes with an event are detected by then
RELISTED = 200.0  # changes without an event are detected by then, even after failures
EXPECTED_EVENT = {
    RUNNING: LifecycleEventType.CONTAINER_STARTED,
    EXITED: LifecycleEventType.CONTAINER_DIED,
    None: LifecycleEventType.CONTAINER_REMOVED,
}


@dataclass
class DisturbedHarness:
    base: PlegHarness
    runtime: Runtime
    running: asyncio.Task[None]
    history: list[RecordState | None] = field(default_factory=lambda: [RUNNING])  # the states of WEB so far

    def put(self, uid: PodUID, state: RecordState | None, send: bool = True) -> None:
        if uid == WEB:
            self.history.append(state)
        self.runtime.put(uid, state, send=send)

    async def inspect(self) -> None:
        """Inspect the pod as a sync does after its own action. The record must not be older than this call."""
        past = len(self.history) - 1
        seen = await self.base.cache.get_newer_than(WEB, self.base.moment())
        assert (seen.containers[0].state if seen.containers else None) in self.history[past:]

    async def act(self, state: RecordState | None) -> None:
        """Stop or remove a container without an event, as the syncer does, then inspect the pod."""
        self.put(WEB, state, send=False)
        await self.inspect()

    def state(self, uid: PodUID) -> RecordState | None:
        return self.runtime.pods.get(uid, {}).get("app")

    def cached(self) -> list[list[RecordState]]:
        return [[found.state for found in self.base.cache.get(uid).containers] for uid in (WEB, DB)]

    def matches_the_runtime(self) -> None:
        """The cache and the last event of each pod match the runtime. No event is sent twice in a row."""
        for uid, cached in zip((WEB, DB), self.cached(), strict=True):
            state = self.state(uid)
            assert cached == ([] if state is None else [state])
            # A pod whose inspection failed is synced again, which is not a change.
            sent = [event.type for _, event, _ in self.base.sent if event.uid == uid and event.type is not SYNC]
            assert all(one is not other for one, other in pairwise(sent)), sent
            if sent:
                assert sent[-1] is EXPECTED_EVENT[state]
        for _, event, record in self.base.sent:  # the cache has the state that the event reports
            assert event.type is not LifecycleEventType.CONTAINER_STARTED or record.containers

    async def next_changes_are_detected(self) -> None:
        """The next changes are detected at once, after a pause in which a broken stream is opened again."""
        await asyncio.sleep(5)
        for state in (EXITED, RUNNING):
            self.put(WEB, state)
            await asyncio.sleep(SOON)
            self.matches_the_runtime()


def harness_with(*pods: PodUID) -> Callable[[PortCalls], AbstractAsyncContextManager[DisturbedHarness]]:
    @asynccontextmanager
    async def set_up(calls: PortCalls) -> AsyncIterator[DisturbedHarness]:
        runtime = Runtime()
        runtime.inspection_seconds, runtime.list_seconds = 0.02, 0.04  # the answer is taken half-way
        for uid in pods:
            runtime.put(uid, RUNNING)
        harness = PlegHarness(calls.watch("runtime", runtime), PACE)
        running = asyncio.ensure_future(harness.pleg.run())
        await asyncio.sleep(2.5)  # the event stream is trusted by now, and the relists are slow
        harness.sent.clear()
        yield DisturbedHarness(harness, runtime, running)
        running.cancel()
        await asyncio.wait({running})

    return set_up


async def start(harness: DisturbedHarness) -> None:
    harness.put(WEB, RUNNING)
    await asyncio.sleep(SOON)


async def exit_(harness: DisturbedHarness) -> None:
    harness.put(WEB, EXITED)
    await asyncio.sleep(SOON)


async def remove(harness: DisturbedHarness) -> None:
    harness.put(WEB, None)
    await asyncio.sleep(SOON)


async def break_stream(harness: DisturbedHarness) -> None:
    """Break the stream, which causes a relist."""
    harness.runtime.break_streams()
    await asyncio.sleep(SOON)


ANNOUNCED: dict[str, Event[DisturbedHarness]] = {
    "the container runs": lambda harness: harness.put(WEB, RUNNING),
    "the container exits": lambda harness: harness.put(WEB, EXITED),
    "the pod is removed": lambda harness: harness.put(WEB, None),
    "another pod changes": lambda harness: harness.put(DB, EXITED),
    "the pod is inspected": DisturbedHarness.inspect,
    "the container is stopped by us": lambda harness: harness.act(EXITED),
    "the pod is removed by us": lambda harness: harness.act(None),
    "the stream breaks": lambda harness: harness.runtime.break_streams(),
    "the wall clock jumps": lambda harness: harness.base.clock.jump(-3600),
}
LOST: dict[str, Event[DisturbedHarness]] = {
    "the container exits unannounced": lambda harness: harness.put(WEB, EXITED, send=False),
    "the pod is removed unannounced": lambda harness: harness.put(WEB, None, send=False),
}


@pytest.mark.parametrize("run", [exit_, break_stream, DisturbedHarness.inspect])
def test_a_change_with_an_event_is_detected_at_once(run: Callable[[DisturbedHarness], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=harness_with(WEB, DB),
        run=run,
        state=lambda harness: None,
        check=DisturbedHarness.matches_the_runtime,
        afterwards=DisturbedHarness.next_changes_are_detected,
        settle_seconds=SOON,
    )
    interleave(operation, ANNOUNCED, cancel=run is DisturbedHarness.inspect)


@pytest.mark.parametrize("run", [break_stream, DisturbedHarness.inspect])
def test_a_change_without_an_event_is_detected_by_the_next_relist(
    run: Callable[[DisturbedHarness], Awaitable[None]],
) -> None:
    operation = OperationTest(
        setup=harness_with(WEB, DB),
        run=run,
        state=lambda harness: None,
        check=DisturbedHarness.matches_the_runtime,
        afterwards=DisturbedHarness.next_changes_are_detected,
        settle_seconds=RELISTED,
    )
    interleave(operation, LOST, cancel=False)


@pytest.mark.parametrize("run", [exit_, remove, break_stream, DisturbedHarness.inspect])
def test_every_call_fails_once(run: Callable[[DisturbedHarness], Awaitable[None]]) -> None:
    operation = OperationTest(
        setup=harness_with(WEB, DB),
        run=run,
        state=DisturbedHarness.cached,
        check=DisturbedHarness.matches_the_runtime,
        afterwards=DisturbedHarness.next_changes_are_detected,
        settle_seconds=RELISTED,
    )
    fail_each_call(operation)


def test_the_pauses_after_failures_are_short_again_after_a_success() -> None:
    def backoff(method: str, again: Callable[[DisturbedHarness], Awaitable[object]]) -> list[float]:
        operation = OperationTest(setup=without_pods, run=start, state=lambda harness: None, settle_seconds=30)
        return check_backoff_resets(operation, "runtime", method, RuntimeUnavailable, again)

    @asynccontextmanager
    async def without_pods(calls: PortCalls) -> AsyncIterator[DisturbedHarness]:
        runtime = Runtime()
        harness = PlegHarness(calls.watch("runtime", runtime), PACE)
        running = asyncio.ensure_future(harness.pleg.run())
        yield DisturbedHarness(harness, runtime, running)
        running.cancel()
        await asyncio.wait({running})

    assert backoff("list_pods", break_stream) == [1, 2, 4, 8]
    assert backoff("pod_record", exit_) == [1, 2, 4, 8]
    assert backoff("events", break_stream) == [1, 2, 4, 8]
