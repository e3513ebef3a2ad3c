"""Checkpoints, with an event at every await and a failure of every sync."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.scripted_journal import ScriptedJournal


@dataclass
class Harness:
    checkpoints: Checkpoints
    journal: ScriptedJournal
    settled_early: list[str] = field(default_factory=list)

    async def write(self, key: str, value: bytes) -> None:
        self.checkpoints.write(key, value)
        await self.checkpoints.settle(key)
        if f"n/{key}" in self.journal.values and self.journal.durable.get(f"n/{key}", b"") < value:
            self.settled_early.append(key)

    async def settle_all(self) -> None:
        written = set(self.journal.values)
        await self.checkpoints.settle()
        if not self.journal.durable.keys() >= written & self.journal.values.keys():
            self.settled_early.append("all")

    def stored(self) -> object:
        return self.journal.values

    def nothing_settled_early(self) -> None:
        assert not self.settled_early

    async def the_rest_becomes_durable(self) -> None:
        await self.checkpoints.try_again()
        assert self.journal.durable == self.journal.values
        syncs = self.journal.begun
        await self.checkpoints.try_again()
        assert self.journal.begun == syncs


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    journal = ScriptedJournal({"n/old": b"1"}, durable={"n/old": b"1"})
    yield Harness(Checkpoints(calls.watch("journal", journal), "n/"), journal)


WRITING = OperationTest(
    setup=set_up,
    run=lambda harness: harness.write("a", b"1"),
    state=Harness.stored,
    check=Harness.nothing_settled_early,
    afterwards=Harness.the_rest_becomes_durable,
)
EVENTS: dict[str, Event[Harness]] = {
    "the value is written again": lambda harness: harness.write("a", b"2"),
    "another value is written": lambda harness: harness.write("b", b"1"),
    "another caller waits for all values": Harness.settle_all,
}
RARE_EVENTS: dict[str, Event[Harness]] = {
    "the value is dropped": lambda harness: harness.checkpoints.drop("a"),
    "a retry": lambda harness: harness.checkpoints.try_again(),
}


def test_every_event_while_a_value_is_made_durable() -> None:
    interleave(WRITING, EVENTS, depth=2)
    interleave(WRITING, RARE_EVENTS, cancel=False)


def test_every_sync_fails_once() -> None:
    # After a failed sync a value counts as settled without being durable, so that the disk delays no caller.
    fail_each_call(OperationTest(setup=set_up, run=WRITING.run, state=WRITING.state, afterwards=WRITING.afterwards))
