"""The sync loop alone: order of messages, due syncs, yields to other tasks, health of the runtime."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise

import pytest

from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import (
    API_SOURCE,
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodUID,
    PodUpdate,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.loop_harness import never, pod

WEB, DB = PodUID("web"), PodUID("db")
DIED = LifecycleEvent(WEB, LifecycleEventType.CONTAINER_DIED, "c1")
READY = ProbeUpdate(ProbeKind.READINESS, WEB, "fake://1", ProbeResult.SUCCESS)

pytestmark = pytest.mark.usefixtures("no_errors")


def additions(number: int) -> PodUpdate:
    return PodUpdate(Op.ADD, tuple(pod(f"pod-{each}") for each in range(number)), API_SOURCE)


class LoopModules:
    """A loop, and all modules that it calls. Must be created inside a virtual loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.calls: list[tuple[float, str]] = []
        self.sources_ready = True
        self.costly = False
        self.failing = False
        self.handled = 0  # pods of updates
        self.health_seen: set[str | None] = set()  # while pods of updates are handled
        self.late: list[PodUID] = []
        self.deadline: float | None = None  # the time of the next deadline
        self.is_healthy: Callable[[], bool] = lambda: False
        self.passed_sources_ready: Callable[[], bool] = lambda: False
        self.trouble: Callable[[], Awaitable[None]] | None = None
        self.ready = True
        self.health_checks: list[float] = []
        self.inbox = LoopInbox(clock=self.clock)
        self.loop = SyncLoop(
            handlers=stand_in(SyncHandlers, self),
            inbox=self.inbox,
            deadlines=stand_in(ActiveDeadlines, self),
            housekeeping=stand_in(Housekeeping, self),
            runtime_state=RuntimeState(self),
            clock=self.clock,
        )

    def record(self, what: str) -> None:
        self.calls.append((round(self.clock.monotonic(), 3), what))

    def names(self) -> list[str]:
        return [what for _, what in self.calls]

    # Handlers.

    def all_sources_ready(self) -> bool:
        return self.sources_ready

    def config(self, update: PodUpdate) -> Iterator[bool]:
        self.record(f"config of {len(update.pods)}")
        if self.failing:
            raise ZeroDivisionError
        for _ in update.pods:
            self.handled += 1
            self.health_seen.add(self.loop.health())
            yield self.costly

    def lifecycle(self, event: LifecycleEvent) -> None:
        self.record(f"lifecycle {event.uid}")

    def probe(self, update: ProbeUpdate) -> None:
        self.record(f"probe {update.uid}")

    def retry(self, uid: PodUID) -> None:
        self.record(f"retry {uid}")

    def wake_successor(self, name: str) -> None:
        self.record(f"left {name}")

    # Deadlines.

    def past(self) -> list[PodUID]:
        if self.deadline is None or self.clock.monotonic() < self.deadline:
            return []
        self.deadline = None
        return self.late

    def seconds_to_next(self) -> float | None:
        return None if self.deadline is None else self.deadline - self.clock.monotonic()

    # Housekeeping.

    async def run(self, is_healthy: Callable[[], bool], all_sources_ready: Callable[[], bool]) -> None:
        self.is_healthy, self.passed_sources_ready = is_healthy, all_sources_ready
        await never()

    # The runtime.

    async def health(self) -> RuntimeHealth:
        self.health_checks.append(round(self.clock.monotonic(), 3))
        if self.trouble is not None:
            await self.trouble()
        return RuntimeHealth(runtime_ready=self.ready, message="" if self.ready else "starting")


def run_scenario(
    scenario: Callable[[LoopModules], Awaitable[None]], prepare: Callable[[LoopModules], None] | None = None
) -> None:
    async def run() -> None:
        harness = LoopModules()
        if prepare is not None:
            prepare(harness)
        running = asyncio.create_task(harness.loop.run())
        await asyncio.sleep(0.01)
        harness.calls.clear()
        await scenario(harness)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    simulate(run())


# Messages.


def test_messages_are_handled_in_order_and_successors_of_static_pods_first() -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.put(READY)
        harness.inbox.put(additions(2))
        harness.inbox.put(DIED)
        harness.inbox.static_pod_ended("dns_ns")
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert harness.names() == ["left dns_ns", "probe web", "config of 2", "lifecycle web"]

    run_scenario(scenario)


@pytest.mark.parametrize(
    "put",
    [
        lambda harness: harness.inbox.put(additions(1)),
        lambda harness: harness.inbox.put(DIED),
        lambda harness: harness.inbox.put(READY),
        lambda harness: harness.inbox.static_pod_ended("dns_ns"),
    ],
    ids=["config", "lifecycle", "probe", "left"],
)
def test_any_message_wakes_the_loop(put: Callable[[LoopModules], None]) -> None:
    async def scenario(harness: LoopModules) -> None:
        for _ in range(2):
            harness.calls.clear()
            put(harness)
            await asyncio.sleep(0.01)
            assert len(harness.calls) == 1

    run_scenario(scenario)


def test_messages_that_cannot_be_handled_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.failing = True
        harness.inbox.put(additions(3))
        harness.inbox.put(DIED)
        await asyncio.sleep(0.01)
        assert harness.names() == ["config of 3", "lifecycle web"]

    run_scenario(scenario)
    caplog.clear()


async def portions(harness: LoopModules, done: Callable[[], int]) -> set[int]:
    """Return how many pods are handled between two yields, until nothing more is handled."""
    seen = [done()]
    for _ in range(200):
        await asyncio.sleep(0)
        if done() != seen[-1]:
            seen.append(done())
    return {later - sooner for sooner, later in pairwise(seen)}


@pytest.mark.parametrize("costly, most", [(False, 32), (True, 1)])
def test_the_loop_yields_after_every_32_pods_and_each_slow_one(costly: bool, most: int) -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.costly = costly
        harness.inbox.put(additions(32 * 3))
        assert await portions(harness, lambda: harness.handled) == {most}

    run_scenario(scenario)


def test_the_loop_yields_after_every_32_messages() -> None:
    async def scenario(harness: LoopModules) -> None:
        for _ in range(96):
            harness.inbox.put(DIED)
        assert await portions(harness, lambda: len(harness.calls)) == {32}

    run_scenario(scenario)


def test_the_loop_yields_after_every_32_due_syncs() -> None:
    async def scenario(harness: LoopModules) -> None:
        for number in range(96):
            harness.inbox.enqueue(PodUID(f"pod-{number}"), 1)
        await asyncio.sleep(1)
        assert harness.calls == []
        await asyncio.sleep(0.001)
        assert await portions(harness, lambda: len(harness.calls)) == {32}

    run_scenario(scenario)


def test_an_update_pauses_while_the_runtime_is_unhealthy() -> None:
    async def scenario(harness: LoopModules) -> None:
        async def fail_later() -> None:
            if harness.handled == 0:
                harness.inbox.put(additions(100))
                while harness.handled < 10:
                    await asyncio.sleep(0)
            raise RuntimeUnavailable("no socket")

        harness.costly, harness.trouble = True, fail_later
        await asyncio.sleep(5)
        handled = harness.handled
        assert 10 <= handled < 20
        await asyncio.sleep(5)
        assert harness.handled == handled
        harness.trouble = None
        await asyncio.sleep(5)
        assert harness.handled == 100
        assert harness.health_seen == {None}

    run_scenario(scenario)


# Due syncs.


def test_due_syncs_and_deadlines_sync_each_pod_once() -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.enqueue(WEB, 1)
        harness.inbox.enqueue(DB, 0.5)
        harness.late, harness.deadline = [WEB, PodUID("late")], 1.0
        await asyncio.sleep(1.5)
        assert harness.calls == [(0.511, "retry db"), (1.0, "retry web"), (1.0, "retry late"), (1.011, "retry web")]
        harness.calls.clear()
        harness.inbox.queue.enqueue(WEB, -1)
        harness.late, harness.deadline = [DB, WEB], 0.0
        assert list(harness.loop.tick()) == [False, False]
        assert harness.names() == ["retry web", "retry db"]

    run_scenario(scenario)


def test_a_sync_due_earlier_wakes_the_loop() -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        harness.inbox.enqueue(DB, 2)
        await asyncio.sleep(25)
        assert harness.calls == [(3.011, "retry db"), (20.011, "retry web")]

    run_scenario(scenario)


def test_overdue_syncs_run_at_once() -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        harness.inbox.enqueue(DB, -5)
        await asyncio.sleep(1)
        assert harness.calls == [(1.011, "retry db")]

    run_scenario(scenario)


def test_a_deadline_in_an_update_wakes_the_loop() -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        harness.late, harness.deadline = [DB], 7.0
        harness.inbox.put(additions(1))
        await asyncio.sleep(9)
        assert harness.calls == [(1.01, "config of 1"), (7.0, "retry db")]

    run_scenario(scenario)


@pytest.mark.parametrize(
    "delay, due",
    [
        pytest.param(29.75, 29.76, id="a near sync is exact"),
        pytest.param(30.0, 30.5, id="a far sync runs together with others"),
        pytest.param(59.99, 60.0, id="at the full second"),
        pytest.param(60.25, 60.5, id="at the half second"),
    ],
)
def test_far_syncs_run_together(delay: float, due: float) -> None:
    async def scenario(harness: LoopModules) -> None:
        harness.inbox.enqueue(WEB, delay)
        assert harness.inbox.queue.next_due() == pytest.approx(due, abs=1e-6)
        await asyncio.sleep(due + 1)
        assert harness.calls == [(round(due + 0.001, 3), "retry web")]

    run_scenario(scenario)


# The runtime as a whole.


async def _down() -> None:
    raise RuntimeUnavailable("no socket")


async def _broken() -> None:
    raise ZeroDivisionError


def not_ready(harness: LoopModules) -> None:
    harness.ready = False


TROUBLES: dict[str, tuple[Callable[[LoopModules], None], float, str]] = {
    "not ready": (not_ready, 0, "the runtime is not ready: starting"),
    "down": (lambda harness: setattr(harness, "trouble", _down), 0, "the runtime does not answer: no socket"),
    "hangs": (lambda harness: setattr(harness, "trouble", never), 10, "the runtime does not answer within 10 s"),
    "broken": (
        lambda harness: setattr(harness, "trouble", _broken),
        0,
        "the health check of the runtime failed unexpectedly",
    ),
}


@pytest.mark.parametrize("disturb, timeout, text", TROUBLES.values(), ids=TROUBLES.keys())
def test_messages_and_due_syncs_wait_until_the_runtime_is_healthy(
    disturb: Callable[[LoopModules], None], timeout: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: LoopModules) -> None:
        assert harness.loop.health() is None
        assert harness.is_healthy()
        disturb(harness)
        await asyncio.sleep(5 + timeout)
        assert harness.loop.health() == text
        assert not harness.is_healthy()
        harness.inbox.put(DIED)
        harness.inbox.enqueue(WEB, 0.1)
        await asyncio.sleep(3 + timeout)
        assert harness.calls == []
        harness.ready, harness.trouble = True, None
        await asyncio.sleep(5 + timeout)
        assert harness.loop.health() is None
        assert sorted(harness.names()) == ["lifecycle web", "retry web"]

    run_scenario(scenario)
    caplog.clear()


def test_the_loop_is_unhealthy_before_the_runtime_has_answered() -> None:
    async def run() -> None:
        harness = LoopModules()
        assert harness.loop.health() == "the runtime has not answered yet"

    simulate(run())


def test_housekeeping_can_query_whether_all_sources_are_ready() -> None:
    async def scenario(harness: LoopModules) -> None:
        assert harness.passed_sources_ready()
        harness.sources_ready = False
        assert (harness.is_healthy(), harness.passed_sources_ready()) == (True, False)

    run_scenario(scenario)


def test_the_runtime_is_checked_every_5_seconds_and_more_often_while_unhealthy() -> None:
    async def scenario(harness: LoopModules) -> None:
        await asyncio.sleep(10)
        not_ready(harness)
        await asyncio.sleep(19)
        harness.ready = True
        await asyncio.sleep(9)
        not_ready(harness)
        await asyncio.sleep(7)
        pauses = [round(later - sooner, 3) for sooner, later in pairwise(harness.health_checks)]
        assert pauses == [5, 5, 5, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5, 0.1, 0.2, 0.4, 0.8, 1.6]

    run_scenario(scenario)
