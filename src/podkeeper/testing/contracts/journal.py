"""What every journal promises: order, and what survives a crash."""

import asyncio
from contextlib import suppress
from typing import Protocol

from podkeeper.ports.journal import Journal
from podkeeper.testing.contracts.contract import Contract


class JournalSubject(Protocol):
    """A journal that can be opened, and that can crash at any instant."""

    async def open(self) -> Journal:
        """The journal, with all that survived so far."""

    async def crash(self) -> None:
        """Lose whatever a crash may lose. The journal opened before is not used any more."""


JOURNAL: Contract[JournalSubject] = Contract()


@JOURNAL.promises
async def what_is_written_is_there(subject: JournalSubject) -> None:
    """`load` tells every write so far, the latest of each key, synced or not."""
    journal = await subject.open()
    assert dict(journal.load()) == {}
    journal.put("a", b"1")
    journal.put("b", b"")
    journal.put("a", b"2")
    assert dict(journal.load()) == {"a": b"2", "b": b""}
    await journal.sync()
    assert dict(journal.load()) == {"a": b"2", "b": b""}


@JOURNAL.promises
async def what_is_dropped_is_forgotten(subject: JournalSubject) -> None:
    """`drop` forgets a key; an unknown one is forgotten already."""
    journal = await subject.open()
    journal.put("a", b"1")
    journal.drop("a")
    journal.drop("unknown")
    assert dict(journal.load()) == {}
    await journal.sync()
    assert dict(journal.load()) == {}


@JOURNAL.promises
async def a_purge_changes_nothing_that_is_there(subject: JournalSubject) -> None:
    """`purge` concerns only replaced and dropped values: all others stay, and survive a crash after the next sync."""
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


@JOURNAL.promises
async def what_was_loaded_does_not_change(subject: JournalSubject) -> None:
    """What `load` returned is as of then: later writes do not show in it."""
    journal = await subject.open()
    journal.put("a", b"1")
    before = journal.load()
    journal.put("b", b"2")
    assert dict(before) == {"a": b"1"}


@JOURNAL.promises
async def what_was_synced_survives(subject: JournalSubject) -> None:
    """A crash keeps every write, and every drop, before the last finished sync."""
    journal = await subject.open()
    journal.put("kept", b"1")
    journal.put("dropped", b"2")
    await journal.sync()
    journal.drop("dropped")
    journal.put("kept", bytes(range(256)))
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"kept": bytes(range(256))}


@JOURNAL.promises
async def of_what_was_not_synced_a_first_part_survives(subject: JournalSubject) -> None:
    """A crash never keeps a later write without an earlier one, and never half a value."""
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


@JOURNAL.promises
async def it_goes_on_after_a_crash(subject: JournalSubject) -> None:
    """A journal opened after a crash takes writes, and keeps them through the next one."""
    journal = await subject.open()
    journal.put("a", b"1")
    await journal.sync()
    await subject.crash()
    journal = await subject.open()
    journal.put("b", b"2")
    await journal.sync()
    await subject.crash()
    assert dict((await subject.open()).load()) == {"a": b"1", "b": b"2"}


@JOURNAL.promises
async def a_sync_of_nothing_succeeds(subject: JournalSubject) -> None:
    """`sync` with nothing to make durable returns."""
    journal = await subject.open()
    await journal.sync()
    await journal.sync()
    assert dict(journal.load()) == {}


@JOURNAL.promises
async def many_may_sync_at_once(subject: JournalSubject) -> None:
    """Whoever has synced is safe, however many do so at the same time."""
    journal = await subject.open()

    async def write(number: int) -> None:
        for step in range(number % 3):
            await asyncio.sleep(0.001 * step)
        journal.put(f"k{number}", b"%d" % number)
        await journal.sync()

    await asyncio.gather(*(write(number) for number in range(50)))
    await subject.crash()
    assert dict((await subject.open()).load()) == {f"k{number}": b"%d" % number for number in range(50)}


@JOURNAL.promises
async def a_sync_that_is_given_up_harms_nobody(subject: JournalSubject) -> None:
    """Cancelling a sync neither loses a write nor disturbs another's sync."""
    journal = await subject.open()
    journal.put("a", b"1")
    impatient = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    journal.put("b", b"2")
    patient = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    impatient.cancel()
    with suppress(asyncio.CancelledError):
        await impatient
    await patient
    assert dict(journal.load()) == {"a": b"1", "b": b"2"}
    await subject.crash()
    assert dict((await subject.open()).load()) == {"a": b"1", "b": b"2"}


@JOURNAL.promises
async def what_is_dropped_may_come_back(subject: JournalSubject) -> None:
    """The last word on a key counts, and the same word twice is one."""
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
