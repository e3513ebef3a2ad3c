"""The notebook, with an event at every await and a failure at every sync."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.notebook import Notebook
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_notebook import FakeJournal


@dataclass
class Stage:
    notebook: Notebook
    journal: FakeJournal
    settled_early: list[str] = field(default_factory=list)

    async def write(self, key: str, note: bytes) -> None:
        self.notebook.write(key, note)
        await self.notebook.settle(key)
        if f"n/{key}" in self.journal.notes and self.journal.durable.get(f"n/{key}", b"") < note:
            self.settled_early.append(key)

    async def settle_all(self) -> None:
        written = set(self.journal.notes)
        await self.notebook.settle()
        if not self.journal.durable.keys() >= written & self.journal.notes.keys():
            self.settled_early.append("all")

    def what_is_noted(self) -> object:
        return self.journal.notes

    def nothing_settled_early(self) -> None:
        assert not self.settled_early

    async def the_rest_becomes_durable(self) -> None:
        await self.notebook.try_again()
        assert self.journal.durable == self.journal.notes
        syncs = self.journal.begun
        await self.notebook.try_again()
        assert self.journal.begun == syncs


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    journal = FakeJournal({"n/old": b"1"}, durable={"n/old": b"1"})
    yield Stage(Notebook(calls.watch("journal", journal), "n/"), journal)


WRITING = Operation(
    stage=stage,
    run=lambda stage: stage.write("a", b"1"),
    state=Stage.what_is_noted,
    check=Stage.nothing_settled_early,
    afterwards=Stage.the_rest_becomes_durable,
)
EVENTS: dict[str, Event[Stage]] = {
    "the note is written again": lambda stage: stage.write("a", b"2"),
    "another note is written": lambda stage: stage.write("b", b"1"),
    "all notes are waited for": Stage.settle_all,
}
RARE_EVENTS: dict[str, Event[Stage]] = {
    "the note is dropped": lambda stage: stage.notebook.drop("a"),
    "a retry": lambda stage: stage.notebook.try_again(),
}


def test_every_event_while_a_note_is_made_durable() -> None:
    interleave(WRITING, EVENTS, depth=2)
    interleave(WRITING, RARE_EVENTS, cancel=False)


def test_every_sync_fails_once() -> None:
    # After a failed sync a note counts as settled, although it is not durable: the disk holds nothing up.
    fail_each_call(Operation(stage=stage, run=WRITING.run, state=WRITING.state, afterwards=WRITING.afterwards))
