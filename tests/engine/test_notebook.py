"""Notes that survive a restart, and the word when they are safe."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from podkeeper.engine.notebook import Notebook
from podkeeper.model.errors import TryLater
from podkeeper.testing.virtual_time import simulate


@dataclass
class FakeJournal:
    """A dictionary whose every sync takes the next of some seconds; None: it refuses."""

    notes: dict[str, bytes] = field(default_factory=dict)
    syncs: list[float | None] = field(default_factory=list)
    begun: int = 0
    durable: dict[str, bytes] = field(default_factory=dict)

    def load(self) -> Mapping[str, bytes]:
        return dict(self.notes)

    def put(self, key: str, value: bytes) -> None:
        self.notes[key] = value

    def drop(self, key: str) -> None:
        self.notes.pop(key, None)

    async def sync(self) -> None:
        seconds = self.syncs[self.begun] if self.begun < len(self.syncs) else 0.25
        self.begun += 1
        writing = dict(self.notes)
        await asyncio.sleep(seconds or 0)
        if seconds is None:
            raise TryLater("cannot write: the disk is full")
        self.durable = writing


def test_old_notes_are_given_out_once_and_stay_in_the_journal() -> None:
    async def scenario() -> None:
        journal = FakeJournal({"status/a": b"1", "status/b": b"2", "else/a": b"3"})
        notebook = Notebook(journal, "status/")
        assert sorted(notebook.old_keys()) == ["a", "b"]
        assert [notebook.take("a"), notebook.take("a"), notebook.take("c")] == [b"1", None, None]
        notebook.write("b", b"4")
        notebook.drop("c")
        assert list(notebook.old_keys()) == []
        assert journal.notes == {"status/a": b"1", "status/b": b"4", "else/a": b"3"}

    simulate(scenario())


def test_many_who_wait_share_a_sync() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        notebook = Notebook(journal, "n/")

        async def write(key: str, at: float) -> None:
            await asyncio.sleep(at)
            notebook.write(key, b"")
            await notebook.settle(key)
            assert f"n/{key}" in journal.durable

        async with asyncio.TaskGroup() as group:
            for index in range(100):
                group.create_task(write(f"early-{index}", 0))
                group.create_task(write(f"late-{index}", 0.1))
        assert journal.begun == 2  # one for the first who came, and one for all who wrote meanwhile

    _, seconds = simulate(scenario())
    assert seconds == 0.5


def test_nobody_waits_for_what_is_safe_or_unknown_or_without_a_journal() -> None:
    async def scenario() -> None:
        notebook, without = Notebook(FakeJournal(), "n/"), Notebook(None, "n/")
        notebook.write("a", b"")
        without.write("a", b"")
        await notebook.settle()
        for book in (notebook, without):
            for key in ("a", "unknown", None):
                await book.settle(key)
            await book.try_again()

    _, seconds = simulate(scenario())
    assert seconds == 0.25


def test_a_hung_disk_is_waited_for_with_patience_and_tried_again() -> None:
    async def scenario() -> None:
        journal = FakeJournal(syncs=[1e6, None])
        notebook = Notebook(journal, "n/")
        for key, seconds in (("a", 1.0), ("b", 1.0)):  # hangs, then refuses
            notebook.write(key, b"")
            await notebook.settle(key)
            assert asyncio.get_running_loop().time() == seconds
            await notebook.settle()
        assert journal.durable == {}
        await notebook.try_again()
        assert journal.durable == {"n/a": b"", "n/b": b""}
        await notebook.try_again()
        assert journal.begun == 3

    simulate(scenario())


def test_when_the_one_who_syncs_is_cancelled_another_goes_on() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        notebook = Notebook(journal, "n/")
        notebook.write("a", b"")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(notebook.settle("a"))
            await asyncio.sleep(0.1)
            group.create_task(notebook.settle("a"))
            await asyncio.sleep(0.1)
            first.cancel()
        assert journal.durable == {"n/a": b""}

    _, seconds = simulate(scenario())
    assert 0.4 < seconds < 0.5
