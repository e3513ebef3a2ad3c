"""The event recorder, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.errors import AlreadyExists, ApiUnavailable, Conflict
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.engine.test_events import WEB, Desk, event


@dataclass
class Stage:
    desk: Desk

    def record(self, message: str) -> None:
        self.desk.recorder.record(event(message), WEB)

    def expire(self) -> None:
        """The API forgets its events after an hour or so."""
        self.desk.api.events.clear()

    def what_is_written(self) -> object:
        """The newest count of each event. One that expired may be there again or not: nothing is left to write."""
        return sorted((message or "", count or 0) for _, count, message in self.desk.api.shown() if message != "first")

    def is_sound(self) -> None:
        assert self.desk.recorder.dropped == 0

    async def nothing_is_left_and_the_next_event_is_counted(self) -> None:
        calls = len(self.desk.api.calls)
        await self.desk.recorder.flush()
        assert len(self.desk.api.calls) == calls
        before = {message: count or 0 for _, count, message in self.desk.api.shown()}
        self.record("second")
        await asyncio.sleep(1)
        after = {message: count or 0 for _, count, message in self.desk.api.shown()}
        assert after["second"] >= max(2, before.get("second", 0) + 1)


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    it = Stage(Desk(WEB, calls=calls, clock=FixedJitterClock()))
    async with it.desk.running():
        yield it


async def record(stage: Stage) -> None:
    stage.record("second")
    await asyncio.sleep(0.01)
    stage.record("second")
    await asyncio.sleep(0.01)


RECORDING = Operation(
    stage=stage,
    run=record,
    state=Stage.what_is_written,
    check=Stage.is_sound,
    afterwards=Stage.nothing_is_left_and_the_next_event_is_counted,
    settle_seconds=3,
)
EVENTS: dict[str, Event[Stage]] = {
    "the event is repeated": lambda stage: stage.record("second"),
    "another event": lambda stage: stage.record("third"),
    "what waits is written": lambda stage: stage.desk.recorder.flush(),
}


def test_every_event_while_one_is_written() -> None:
    interleave(RECORDING, EVENTS, in_call_order=True, cancel=False)  # a second recording would be counted
    # Whether the last write came before or after the API forgot the event, the next one makes it again.
    forgotten = Operation(
        stage=stage, run=record, state=lambda _: None, afterwards=RECORDING.afterwards, settle_seconds=3
    )
    interleave(forgotten, {"the API forgets its events": Stage.expire}, cancel=False)


def test_every_call_fails_once() -> None:
    # These answers contradict each other, or refuse the event for good: it is dropped then.
    refusals = [("api", "create", AlreadyExists), ("api", "patch", Conflict)]
    fail_each_call(RECORDING, leave_out=refusals)


def test_the_pause_after_a_failure_doubles_and_a_success_resets_it() -> None:
    async def once(stage: Stage) -> None:
        stage.record("third")
        await asyncio.sleep(20)
        stage.record("third")

    again = Operation(stage=stage, run=once, state=lambda _: None, settle_seconds=20)
    pauses = check_backoff_resets(again, "api", "create", ApiUnavailable, lambda stage: record_new(stage))
    assert pauses == pytest.approx([0.5, 1, 2, 4])


async def record_new(stage: Stage) -> None:
    stage.expire()
    stage.record("third")
