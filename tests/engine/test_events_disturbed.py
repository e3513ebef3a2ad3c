"""The event recorder, with an event at every await and a failure of every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.errors import AlreadyExists, ApiUnavailable, Conflict
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.engine.test_events import WEB, EventsHarness, event


@dataclass
class Disturbed:
    base: EventsHarness

    def record(self, message: str) -> None:
        self.base.recorder.record(event(message), WEB)

    def expire(self) -> None:
        """Remove all events, like the API server after --event-ttl."""
        self.base.api.events.clear()

    def written(self) -> object:
        """Return the newest count of each event. An expired event may or may not exist again."""
        return sorted((message or "", count or 0) for _, count, message in self.base.api.shown() if message != "first")

    def check(self) -> None:
        assert self.base.recorder.dropped == 0

    async def nothing_is_left_and_the_next_event_is_counted(self) -> None:
        calls = len(self.base.api.calls)
        await self.base.recorder.flush()
        assert len(self.base.api.calls) == calls
        before = {message: count or 0 for _, count, message in self.base.api.shown()}
        self.record("second")
        await asyncio.sleep(1)
        after = {message: count or 0 for _, count, message in self.base.api.shown()}
        assert after["second"] >= max(2, before.get("second", 0) + 1)


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Disturbed]:
    harness = Disturbed(EventsHarness(WEB, calls=calls, clock=FixedJitterClock()))
    async with harness.base.running():
        yield harness


async def record(harness: Disturbed) -> None:
    harness.record("second")
    await asyncio.sleep(0.01)
    harness.record("second")
    await asyncio.sleep(0.01)


RECORDING = OperationTest(
    setup=set_up,
    run=record,
    state=Disturbed.written,
    check=Disturbed.check,
    afterwards=Disturbed.nothing_is_left_and_the_next_event_is_counted,
    settle_seconds=3,
)
EVENTS: dict[str, Event[Disturbed]] = {
    "the event is repeated": lambda harness: harness.record("second"),
    "another event": lambda harness: harness.record("third"),
    "pending events are flushed": lambda harness: harness.base.recorder.flush(),
}


def test_every_event_while_one_is_written() -> None:
    interleave(RECORDING, EVENTS, in_call_order=True, cancel=False)  # a second harness would be counted
    # The next write creates the event again, whether it expired before or after the last write.
    forgotten = OperationTest(
        setup=set_up, run=record, state=lambda _: None, afterwards=RECORDING.afterwards, settle_seconds=3
    )
    interleave(forgotten, {"the events expire": Disturbed.expire}, cancel=False)


def test_every_call_fails_once() -> None:
    # The event is dropped if these answers contradict each other or reject it.
    refusals = [("api", "create", AlreadyExists), ("api", "patch", Conflict)]
    fail_each_call(RECORDING, leave_out=refusals)


def test_the_backoff_after_a_failure_doubles_and_a_success_resets_it() -> None:
    async def once(harness: Disturbed) -> None:
        harness.record("third")
        await asyncio.sleep(20)
        harness.record("third")

    again = OperationTest(setup=set_up, run=once, state=lambda _: None, settle_seconds=20)
    pauses = check_backoff_resets(again, "api", "create", ApiUnavailable, lambda harness: record_new(harness))
    assert pauses == pytest.approx([0.5, 1, 2, 4])


async def record_new(harness: Disturbed) -> None:
    harness.expire()
    harness.record("third")
