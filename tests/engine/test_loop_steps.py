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


class Neighbours:
    """A loop, and all modules that it calls. Must be created inside a virtual loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.calls: list[tuple[float, str]] = []
        self.sources_ready = True
        self.costly = False
        self.failing = False
        self.handled = 0  # pods of updates
        self.health_seen: set[str | None] = set()  # while pods of updates were handled
        self.late: list[PodUID] = []
        self.deadline: float | None = None  # when the next one passes
        self.is_healthy: Callable[[], bool] = lambda: False
        self.all_heard: Callable[[], bool] = lambda: False
        self.trouble: Callable[[], Awaitable[None]] | None = None
        self.ready = True
        self.asked: list[float] = []
        self.inbox = LoopInbox(clock=self.clock)
        self.loop = SyncLoop(
            handlers=stand_in(SyncHandlers, self),
            inbox=self.inbox,
            deadlines=stand_in(ActiveDeadlines, self),
            housekeeping=stand_in(Housekeeping, self),
            runtime_state=RuntimeState(self),
            clock=self.clock,
        )

    def note(self, what: str) -> None:
        self.calls.append((round(self.clock.monotonic(), 3), what))

    def names(self) -> list[str]:
        return [what for _, what in self.calls]

    # Handlers.

    def all_sources_ready(self) -> bool:
        return self.sources_ready

    def config(self, update: PodUpdate) -> Iterator[bool]:
        self.note(f"config of {len(update.pods)}")
        if self.failing:
            raise ZeroDivisionError
        for _ in update.pods:
            self.handled += 1
            self.health_seen.add(self.loop.health())
            yield self.costly

    def lifecycle(self, event: LifecycleEvent) -> None:
        self.note(f"lifecycle {event.uid}")

    def probe(self, update: ProbeUpdate) -> None:
        self.note(f"probe {update.uid}")

    def retry(self, uid: PodUID) -> None:
        self.note(f"retry {uid}")

    def wake_successor(self, name: str) -> None:
        self.note(f"left {name}")

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
        self.is_healthy, self.all_heard = is_healthy, all_sources_ready
        await never()

    # The runtime.

    async def health(self) -> RuntimeHealth:
        self.asked.append(round(self.clock.monotonic(), 3))
        if self.trouble is not None:
            await self.trouble()
        return RuntimeHealth(runtime_ready=self.ready, message="" if self.ready else "starting")


def play(story: Callable[[Neighbours], Awaitable[None]], prepare: Callable[[Neighbours], None] | None = None) -> None:
    async def life() -> None:
        it = Neighbours()
        if prepare is not None:
            prepare(it)
        running = asyncio.create_task(it.loop.run())
        await asyncio.sleep(0.01)
        it.calls.clear()
        await story(it)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    simulate(life())


# News.


def test_messages_are_handled_in_order_and_successors_of_static_pods_first() -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.put(READY)
        it.inbox.put(additions(2))
        it.inbox.put(DIED)
        it.inbox.static_pod_ended("dns_ns")
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert it.names() == ["left dns_ns", "probe web", "config of 2", "lifecycle web"]

    play(story)


@pytest.mark.parametrize(
    "tell",
    [
        lambda it: it.inbox.put(additions(1)),
        lambda it: it.inbox.put(DIED),
        lambda it: it.inbox.put(READY),
        lambda it: it.inbox.static_pod_ended("dns_ns"),
    ],
    ids=["config", "lifecycle", "probe", "left"],
)
def test_any_message_wakes_the_loop(tell: Callable[[Neighbours], None]) -> None:
    async def story(it: Neighbours) -> None:
        for _ in range(2):
            it.calls.clear()
            tell(it)
            await asyncio.sleep(0.01)
            assert len(it.calls) == 1

    play(story)


def test_messages_that_cannot_be_handled_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def story(it: Neighbours) -> None:
        it.failing = True
        it.inbox.put(additions(3))
        it.inbox.put(DIED)
        await asyncio.sleep(0.01)
        assert it.names() == ["config of 3", "lifecycle web"]

    play(story)
    caplog.clear()


async def portions(it: Neighbours, done: Callable[[], int]) -> set[int]:
    """Return how many pods are handled between two yields, until nothing more is handled."""
    seen = [done()]
    for _ in range(200):
        await asyncio.sleep(0)
        if done() != seen[-1]:
            seen.append(done())
    return {later - sooner for sooner, later in pairwise(seen)}


@pytest.mark.parametrize("costly, most", [(False, 32), (True, 1)])
def test_everybody_else_may_run_after_every_32_pods_and_after_each_costly_one(costly: bool, most: int) -> None:
    async def story(it: Neighbours) -> None:
        it.costly = costly
        it.inbox.put(additions(32 * 3))
        assert await portions(it, lambda: it.handled) == {most}

    play(story)


def test_other_tasks_may_run_after_every_32_messages() -> None:
    async def story(it: Neighbours) -> None:
        for _ in range(96):
            it.inbox.put(DIED)
        assert await portions(it, lambda: len(it.calls)) == {32}

    play(story)


def test_other_tasks_may_run_after_every_32_due_syncs() -> None:
    async def story(it: Neighbours) -> None:
        for number in range(96):
            it.inbox.enqueue(PodUID(f"pod-{number}"), 1)
        await asyncio.sleep(1)
        assert it.calls == []
        await asyncio.sleep(0.001)
        assert await portions(it, lambda: len(it.calls)) == {32}

    play(story)


def test_an_update_pauses_while_the_runtime_is_unhealthy() -> None:
    async def story(it: Neighbours) -> None:
        async def fail_later() -> None:
            if it.handled == 0:
                it.inbox.put(additions(100))
                while it.handled < 10:
                    await asyncio.sleep(0)
            raise RuntimeUnavailable("no socket")

        it.costly, it.trouble = True, fail_later
        await asyncio.sleep(5)
        handled = it.handled
        assert 10 <= handled < 20
        await asyncio.sleep(5)
        assert it.handled == handled
        it.trouble = None
        await asyncio.sleep(5)
        assert it.handled == 100
        assert it.health_seen == {None}

    play(story)


# Turns.


def test_due_syncs_and_deadlines_sync_each_pod_once() -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.enqueue(WEB, 1)
        it.inbox.enqueue(DB, 0.5)
        it.late, it.deadline = [WEB, PodUID("late")], 1.0
        await asyncio.sleep(1.5)
        assert it.calls == [(0.511, "retry db"), (1.0, "retry web"), (1.0, "retry late"), (1.011, "retry web")]
        it.calls.clear()
        it.inbox.queue.enqueue(WEB, -1)
        it.late, it.deadline = [DB, WEB], 0.0
        assert list(it.loop.tick()) == [False, False]
        assert it.names() == ["retry web", "retry db"]

    play(story)


def test_a_sync_due_earlier_wakes_the_loop() -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        it.inbox.enqueue(DB, 2)
        await asyncio.sleep(25)
        assert it.calls == [(3.011, "retry db"), (20.011, "retry web")]

    play(story)


def test_overdue_syncs_run_at_once() -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        it.inbox.enqueue(DB, -5)
        await asyncio.sleep(1)
        assert it.calls == [(1.011, "retry db")]

    play(story)


def test_a_deadline_that_an_update_brings_is_not_slept_through() -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.enqueue(WEB, 20)
        await asyncio.sleep(1)
        it.late, it.deadline = [DB], 7.0
        it.inbox.put(additions(1))
        await asyncio.sleep(9)
        assert it.calls == [(1.01, "config of 1"), (7.0, "retry db")]

    play(story)


@pytest.mark.parametrize(
    "delay, due",
    [
        pytest.param(29.75, 29.76, id="a near turn is exact"),
        pytest.param(30.0, 30.5, id="a turn that is far off is taken with others"),
        pytest.param(59.99, 60.0, id="at the full second"),
        pytest.param(60.25, 60.5, id="at the half second"),
    ],
)
def test_far_syncs_run_together(delay: float, due: float) -> None:
    async def story(it: Neighbours) -> None:
        it.inbox.enqueue(WEB, delay)
        assert it.inbox.queue.next_due() == pytest.approx(due, abs=1e-6)
        await asyncio.sleep(due + 1)
        assert it.calls == [(round(due + 0.001, 3), "retry web")]

    play(story)


# The runtime as a whole.


async def _down() -> None:
    raise RuntimeUnavailable("no socket")


async def _broken() -> None:
    raise ZeroDivisionError


def not_ready(it: Neighbours) -> None:
    it.ready = False


TROUBLES: dict[str, tuple[Callable[[Neighbours], None], float, str]] = {
    "not ready": (not_ready, 0, "the runtime is not ready: starting"),
    "down": (lambda it: setattr(it, "trouble", _down), 0, "the runtime does not answer: no socket"),
    "hangs": (lambda it: setattr(it, "trouble", never), 10, "the runtime does not answer within 10 s"),
    "broken": (lambda it: setattr(it, "trouble", _broken), 0, "the health check of the runtime failed unexpectedly"),
}


@pytest.mark.parametrize("disturb, patience, text", TROUBLES.values(), ids=TROUBLES.keys())
def test_messages_and_due_syncs_wait_until_the_runtime_is_healthy(
    disturb: Callable[[Neighbours], None], patience: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(it: Neighbours) -> None:
        assert it.loop.health() is None
        assert it.is_healthy()
        disturb(it)
        await asyncio.sleep(5 + patience)
        assert it.loop.health() == text
        assert not it.is_healthy()
        it.inbox.put(DIED)
        it.inbox.enqueue(WEB, 0.1)
        await asyncio.sleep(3 + patience)
        assert it.calls == []
        it.ready, it.trouble = True, None
        await asyncio.sleep(5 + patience)
        assert it.loop.health() is None
        assert sorted(it.names()) == ["lifecycle web", "retry web"]

    play(story)
    caplog.clear()


def test_the_loop_is_unhealthy_before_the_runtime_has_answered() -> None:
    async def life() -> None:
        it = Neighbours()
        assert it.loop.health() == "the runtime has not answered yet"

    simulate(life())


def test_housekeeping_can_query_whether_all_sources_are_ready() -> None:
    async def story(it: Neighbours) -> None:
        assert it.all_heard()
        it.sources_ready = False
        assert (it.is_healthy(), it.all_heard()) == (True, False)

    play(story)


def test_the_runtime_is_checked_every_5_seconds_and_more_often_while_unhealthy() -> None:
    async def story(it: Neighbours) -> None:
        await asyncio.sleep(10)
        not_ready(it)
        await asyncio.sleep(19)
        it.ready = True
        await asyncio.sleep(9)
        not_ready(it)
        await asyncio.sleep(7)
        pauses = [round(later - sooner, 3) for sooner, later in pairwise(it.asked)]
        assert pauses == [5, 5, 5, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5, 0.1, 0.2, 0.4, 0.8, 1.6]

    play(story)
