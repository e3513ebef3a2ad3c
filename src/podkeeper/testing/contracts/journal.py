"""Contract of the journal port: order of writes, and which writes survive a crash."""

import asyncio
from contextlib import suppress
from typing import Protocol

from podkeeper.ports.journal import Journal
from podkeeper.testing.contracts.contract import Contract


class JournalSubject(Protocol):
    """A journal that can be opened and can crash at any time."""

    async def open(self) -> Journal:
        """Open the journal with all writes that survived so far."""

    async def crash(self) -> None:
        """Lose the writes that a crash may lose. The scenario does not use the open journal again."""


JOURNAL: Contract[JournalSubject] = Contract()


@JOURNAL.scenario
async def load_returns_all_writes(subject: JournalSubject) -> None:
    """`load` returns the latest value of each key, including writes that are not synced yet."""
    journal = await subject.open()
    assert dict(journal.load()) == {}
    journal.put("a", b"1")
    journal.put("b", b"")
    journal.put("a", b"2")
    assert dict(journal.load()) == {"a": b"2", "b": b""}
    await journal.sync()
    assert dict(journal.load()) == {"a": b"2", "b": b""}


@JOURNAL.scenario
async def a_dropped_key_is_not_loaded(subject: JournalSubject) -> None:
    """`drop` removes a key. Dropping an unknown key is a no-op."""
    journal = await subject.open()
    journal.put("a", b"1")
    journal.drop("a")
    journal.drop("unknown")
    assert dict(journal.load()) == {}
    await journal.sync()
    assert dict(journal.load()) == {}


@JOURNAL.scenario
async def purge_keeps_all_current_values(subject: JournalSubject) -> None:
    """`purge` affects only replaced and dropped values.

    All current values remain. They survive a crash after the next sync.
    """
    journal = await subject.open()
    journal.put("a", b"1")
    journal.put("b", b"2")
    await journal.sync()
    journal.drop("a")
    journal.purge()
    journal.put("c", b"3")
    assert dict(journal.load()) == {"b": b"2", "c": b"3"}
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"b": b"2", "c": b"3"}


@JOURNAL.scenario
async def a_loaded_mapping_does_not_change(subject: JournalSubject) -> None:
    """`load` returns a snapshot. Later writes do not appear in it."""
    journal = await subject.open()
    journal.put("a", b"1")
    before = journal.load()
    journal.put("b", b"2")
    assert dict(before) == {"a": b"1"}


@JOURNAL.scenario
async def synced_writes_survive_a_crash(subject: JournalSubject) -> None:
    """After a crash, the journal holds every put and drop made before the last completed sync."""
    journal = await subject.open()
    journal.put("kept", b"1")
    journal.put("dropped", b"2")
    await journal.sync()
    journal.drop("dropped")
    journal.put("kept", bytes(range(256)))
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"kept": bytes(range(256))}


@JOURNAL.scenario
async def unsynced_writes_survive_in_order(subject: JournalSubject) -> None:
    """A crash may lose unsynced writes.

    If a write survives, all earlier writes survive, too. Each value survives completely or not at all.
    """
    journal = await subject.open()
    journal.put("base", b"0")
    await journal.sync()
    for number in range(10):
        journal.put(f"k{number}", b"v" * 1000)
    await subject.crash()
    survived = dict((await subject.open()).load())
    assert survived.pop("base") == b"0"
    assert set(survived) == {f"k{number}" for number in range(len(survived))}
    assert set(survived.values()) <= {b"v" * 1000}


@JOURNAL.scenario
async def the_journal_can_be_written_after_a_crash(subject: JournalSubject) -> None:
    """A journal opened after a crash accepts writes, and they survive the next crash."""
    journal = await subject.open()
    journal.put("a", b"1")
    await journal.sync()
    await subject.crash()
    journal = await subject.open()
    journal.put("b", b"2")
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"a": b"1", "b": b"2"}


@JOURNAL.scenario
async def a_sync_without_writes_succeeds(subject: JournalSubject) -> None:
    """`sync` returns if there is nothing to sync."""
    journal = await subject.open()
    await journal.sync()
    await journal.sync()
    assert dict(journal.load()) == {}


@JOURNAL.scenario
async def concurrent_syncs_are_safe(subject: JournalSubject) -> None:
    """Many tasks may call `sync` at the same time. When a call returns, the writes made before it are durable."""
    journal = await subject.open()

    async def write(number: int) -> None:
        for step in range(number % 3):
            await asyncio.sleep(0.001 * step)
        journal.put(f"k{number}", b"%d" % number)
        await journal.sync()

    await asyncio.gather(*(write(number) for number in range(50)))
    await subject.crash()
    assert dict((await subject.open()).load()) == {f"k{number}": b"%d" % number for number in range(50)}


@JOURNAL.scenario
async def a_cancelled_sync_loses_nothing(subject: JournalSubject) -> None:
    """Cancelling a sync does not lose a write and does not affect other syncs."""
    journal = await subject.open()
    journal.put("a", b"1")
    cancelled = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    journal.put("b", b"2")
    completed = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    await completed
    assert dict(journal.load()) == {"a": b"1", "b": b"2"}
    await subject.crash()
    assert dict((await subject.open()).load()) == {"a": b"1", "b": b"2"}


@JOURNAL.scenario
async def the_last_write_of_a_key_wins(subject: JournalSubject) -> None:
    """The last put or drop of a key determines its value. Repeating a put has no further effect."""
    journal = await subject.open()
    journal.put("a", b"1")
    await journal.sync()
    journal.drop("a")
    journal.put("a", b"1")
    journal.put("a", b"1")
    journal.put("b", b"2")
    journal.drop("b")
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"a": b"1"}
