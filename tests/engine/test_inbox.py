"""The loop's inbox: order of messages, count of changes, rounding and wake-ups of scheduled syncs."""

import asyncio
from collections.abc import Callable

import pytest

from podkeeper.engine.inbox import LoopInbox, LoopMessage, StaticPodEnded
from podkeeper.model.messages import (
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodUID,
    PodUpdate,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.testing.virtual_time import VirtualClock, simulate

WEB = PodUID("web")
UPDATE = PodUpdate(Op.ADD, (), "api")
DIED = LifecycleEvent(WEB, LifecycleEventType.CONTAINER_DIED, "c1")
READY = ProbeUpdate(ProbeKind.READINESS, WEB, "fake://1", ProbeResult.SUCCESS)


def inbox() -> LoopInbox:
    return LoopInbox(clock=VirtualClock())


def test_messages_keep_their_order_and_an_ended_static_pod_is_first() -> None:
    async def scenario() -> list[LoopMessage]:
        box = inbox()
        for message in (READY, UPDATE, DIED):
            box.put(message)
        box.static_pod_ended("dns_ns")
        assert len(box) == 4
        return [box.take() for _ in range(4)]

    assert simulate(scenario())[0] == [StaticPodEnded("dns_ns"), READY, UPDATE, DIED]


SENDERS: dict[str, tuple[Callable[[LoopInbox], None], int]] = {
    "an update is a change": (lambda box: box.put(UPDATE), 1),
    "a lifecycle event is a change": (lambda box: box.put(DIED), 1),
    "a probe result is none": (lambda box: box.put(READY), 0),
    "the end of a static pod is none, its state change is counted": (lambda box: box.static_pod_ended("dns_ns"), 0),
    "a scheduled sync is none": (lambda box: box.enqueue(WEB, 1), 0),
}


@pytest.mark.parametrize("send, changes", SENDERS.values(), ids=SENDERS.keys())
def test_changes_count_what_may_require_housekeeping(send: Callable[[LoopInbox], None], changes: int) -> None:
    async def scenario() -> int:
        box = inbox()
        send(box)
        return box.changes

    assert simulate(scenario())[0] == changes


@pytest.mark.parametrize("send", [lambda box: box.put(READY), lambda box: box.static_pod_ended("dns_ns")])
def test_waiting_ends_with_each_message(send: Callable[[LoopInbox], None]) -> None:
    async def scenario() -> None:
        box = inbox()
        for _ in range(2):
            asyncio.get_running_loop().call_later(3, send, box)
            await box.wait()

    assert simulate(scenario())[1] == 6


@pytest.mark.parametrize("delay, due", [(29.9, 30.1), (30.0, 30.5), (30.3, 30.5), (30.4, 31.0)])
def test_far_syncs_are_rounded_up_to_half_a_second(delay: float, due: float) -> None:
    async def scenario() -> float | None:
        box = inbox()
        await asyncio.sleep(0.2)
        box.enqueue(WEB, delay)
        return box.queue.next_due()

    assert simulate(scenario())[0] == pytest.approx(due)


@pytest.mark.parametrize(
    "until, delay, expected",
    [(10.0, 20.0, (True, 10)), (10.0, 5.0, (False, 2)), (None, 5.0, (False, 2))],
    ids=["a later sync changes nothing", "an earlier sync wakes the loop", "any sync wakes a loop without a due time"],
)
def test_the_loop_sleeps_until_a_time_or_an_earlier_sync(
    until: float | None, delay: float, expected: tuple[bool, float]
) -> None:
    async def scenario() -> bool:
        box = inbox()
        asyncio.get_running_loop().call_later(2, box.enqueue, WEB, delay)
        return await box.sleep_until(until)

    assert simulate(scenario()) == expected
