"""Notes that survive a restart, and the word when they are safe."""

import asyncio
from collections.abc import Awaitable, Mapping
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

    bug: bool = False
    purges: int = 0

    def purge(self) -> None:
        self.purges += 1

    async def sync(self) -> None:
        if self.bug:
            raise ZeroDivisionError
        seconds = self.syncs[self.begun] if self.begun < len(self.syncs) else 0.25
        self.begun += 1
        writing = dict(self.notes)
        await asyncio.sleep(seconds or 0)
        if seconds is None:
            raise TryLater("cannot write: the disk is full")
        self.durable = writing


def test_a_purge_is_settled_with_the_next_sync() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        notebook = Notebook(journal, "x/")
        notebook.purge()
        assert (journal.purges, journal.begun) == (1, 0)
        await notebook.settle()
        assert (journal.purges, journal.begun) == (1, 1)
        Notebook(None, "x/").purge()  # without a journal there is nothing to purge

    simulate(scenario())


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


def durable(notebook: Notebook, *keys: str) -> list[bool]:
    return [notebook.is_durable(key) for key in keys]


async def seconds_of(waiting: Awaitable[None]) -> float:
    """How long something takes."""
    begin = asyncio.get_running_loop().time()
    await waiting
    return asyncio.get_running_loop().time() - begin


def test_a_write_is_durable_once_a_sync_that_began_after_it_has_ended() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        notebook = Notebook(journal, "n/")
        assert durable(notebook, "a", "b") == [True, True]  # nothing was written that could be lost
        notebook.write("a", b"1")
        assert durable(notebook, "a", "b") == [False, True]
        async with asyncio.TaskGroup() as group:
            group.create_task(notebook.settle("a"))
            await asyncio.sleep(0.1)
            notebook.write("b", b"1")
        assert durable(notebook, "a", "b") == [True, False]  # b came too late for this sync
        notebook.write("a", b"2")
        assert durable(notebook, "a", "b") == [False, False]
        await notebook.settle("b")
        assert durable(notebook, "a", "b") == [True, True]
        assert (journal.begun, journal.durable) == (2, {"n/a": b"2", "n/b": b"1"})

    simulate(scenario())


def test_each_waits_for_its_own_note_only() -> None:
    async def scenario() -> list[float]:
        notebook = Notebook(FakeJournal(syncs=[0.25, 0.5]), "n/")
        notebook.write("a", b"")
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(seconds_of(notebook.settle("a")))]
            await asyncio.sleep(0.125)
            notebook.write("b", b"")
            waits += [group.create_task(seconds_of(notebook.settle(key))) for key in ("a", "b", None, "c")]
        return [task.result() for task in waits]

    assert simulate(scenario())[0] == [0.25, 0.125, 0.625, 0.625, 0]


def test_a_dropped_note_is_made_durable_without_a_wait_for_its_key() -> None:
    async def scenario() -> None:
        journal = FakeJournal({"n/old": b"1"})
        notebook = Notebook(journal, "n/")
        notebook.write("a", b"1")
        await notebook.settle()
        notebook.drop("a")
        notebook.drop("old")
        assert notebook.take("old") is None
        assert durable(notebook, "a", "old") == [True, True]
        assert await seconds_of(notebook.settle("a")) == 0
        assert journal.durable == {"n/old": b"1", "n/a": b"1"}
        assert await seconds_of(notebook.settle()) == 0.25
        assert (journal.begun, journal.durable) == (2, {})
        notebook.write("b", b"1")
        notebook.drop("b")
        assert notebook.is_durable("b")
        assert await seconds_of(notebook.settle("b")) == 0

    simulate(scenario())


def test_trying_again_does_not_sync_beside_a_sync_or_without_need() -> None:
    async def scenario() -> None:
        journal = FakeJournal(syncs=[0.5, 0.5])
        notebook = Notebook(journal, "n/")
        assert await seconds_of(notebook.try_again()) == 0
        notebook.write("a", b"")
        async with asyncio.TaskGroup() as group:
            group.create_task(notebook.settle())
            await asyncio.sleep(0.25)
            assert await seconds_of(notebook.try_again()) == 0
        assert await seconds_of(notebook.try_again()) == 0
        assert journal.begun == 1
        notebook.write("a", b"")
        assert await seconds_of(notebook.try_again()) == 0.5
        assert (journal.begun, notebook.is_durable("a")) == (2, True)

    simulate(scenario())


def test_a_disk_that_fails_in_any_way_delays_nobody_twice_and_keeps_its_notes_for_another_try() -> None:
    async def scenario() -> list[object]:
        found: list[object] = []
        for journal in (FakeJournal(syncs=[1e6, 1e6]), FakeJournal(syncs=[None, None]), FakeJournal(bug=True)):
            notebook = Notebook(journal, "n/")
            notebook.write("a", b"")
            waits = [await seconds_of(notebook.settle("a")) for _ in range(2)]
            again = await seconds_of(notebook.try_again())
            before = notebook.is_durable("a")
            journal.bug, journal.syncs = False, []
            await notebook.try_again()
            found.append((waits, again, before, notebook.is_durable("a")))
        return found

    hangs, refuses = ([1.0, 0], 1.0, False, True), ([0, 0], 0, False, True)
    assert simulate(scenario())[0] == [hangs, refuses, refuses]


def test_without_a_journal_nothing_is_kept_and_everything_counts_as_durable() -> None:
    async def scenario() -> None:
        notebook = Notebook(None, "n/")
        notebook.write("a", b"1")
        assert durable(notebook, "a", "b") == [True, True]
        assert (notebook.take("a"), list(notebook.old_keys())) == (None, [])
        notebook.drop("a")
        await notebook.settle()

    assert simulate(scenario())[1] == 0
