"""Checkpoints: values that survive a restart, and waiting until they are durable."""

import asyncio
from collections.abc import Awaitable

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.testing.virtual_time import simulate
from tests.engine.scripted_journal import ScriptedJournal


def test_a_purge_is_settled_with_the_next_sync() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal()
        checkpoints = Checkpoints(journal, "x/")
        checkpoints.purge()
        assert (journal.purges, journal.begun) == (1, 0)
        await checkpoints.settle()
        assert (journal.purges, journal.begun) == (1, 1)
        Checkpoints(None, "x/").purge()  # without a journal there is nothing to purge

    simulate(scenario())


def test_old_values_are_returned_once_and_stay_in_the_journal() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal({"status/a": b"1", "status/b": b"2", "else/a": b"3"})
        checkpoints = Checkpoints(journal, "status/")
        assert sorted(checkpoints.old_keys()) == ["a", "b"]
        assert [checkpoints.take("a"), checkpoints.take("a"), checkpoints.take("c")] == [b"1", None, None]
        checkpoints.write("b", b"4")
        checkpoints.drop("c")
        assert list(checkpoints.old_keys()) == []
        assert journal.values == {"status/a": b"1", "status/b": b"4", "else/a": b"3"}

    simulate(scenario())


def test_concurrent_callers_share_a_sync() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal()
        checkpoints = Checkpoints(journal, "n/")

        async def write(key: str, at: float) -> None:
            await asyncio.sleep(at)
            checkpoints.write(key, b"")
            await checkpoints.settle(key)
            assert f"n/{key}" in journal.durable

        async with asyncio.TaskGroup() as group:
            for index in range(100):
                group.create_task(write(f"early-{index}", 0))
                group.create_task(write(f"late-{index}", 0.1))
        assert journal.begun == 2  # one for the first caller, and one for all writes during it

    _, seconds = simulate(scenario())
    assert seconds == 0.5


def test_settling_a_durable_or_unknown_key_or_without_a_journal_does_not_wait() -> None:
    async def scenario() -> None:
        checkpoints, without = Checkpoints(ScriptedJournal(), "n/"), Checkpoints(None, "n/")
        checkpoints.write("a", b"")
        without.write("a", b"")
        await checkpoints.settle()
        for each in (checkpoints, without):
            for key in ("a", "unknown", None):
                await each.settle(key)
            await each.try_again()

    _, seconds = simulate(scenario())
    assert seconds == 0.25


def test_a_hung_disk_delays_settling_until_the_timeout_and_is_retried() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal(syncs=[1e6, None])
        checkpoints = Checkpoints(journal, "n/")
        for key, seconds in (("a", 1.0), ("b", 1.0)):  # hangs, then fails
            checkpoints.write(key, b"")
            await checkpoints.settle(key)
            assert asyncio.get_running_loop().time() == seconds
            await checkpoints.settle()
        assert journal.durable == {}
        await checkpoints.try_again()
        assert journal.durable == {"n/a": b"", "n/b": b""}
        await checkpoints.try_again()
        assert journal.begun == 3

    simulate(scenario())


def test_another_caller_syncs_if_the_first_one_is_cancelled() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal()
        checkpoints = Checkpoints(journal, "n/")
        checkpoints.write("a", b"")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(checkpoints.settle("a"))
            await asyncio.sleep(0.1)
            group.create_task(checkpoints.settle("a"))
            await asyncio.sleep(0.1)
            first.cancel()
        assert journal.durable == {"n/a": b""}

    _, seconds = simulate(scenario())
    assert 0.4 < seconds < 0.5


def durable(checkpoints: Checkpoints, *keys: str) -> list[bool]:
    return [checkpoints.is_durable(key) for key in keys]


async def seconds_of(waiting: Awaitable[None]) -> float:
    """Return the duration of a call."""
    begin = asyncio.get_running_loop().time()
    await waiting
    return asyncio.get_running_loop().time() - begin


def test_a_write_is_durable_after_a_sync_that_started_after_it() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal()
        checkpoints = Checkpoints(journal, "n/")
        assert durable(checkpoints, "a", "b") == [True, True]  # no write could be lost
        checkpoints.write("a", b"1")
        assert durable(checkpoints, "a", "b") == [False, True]
        async with asyncio.TaskGroup() as group:
            group.create_task(checkpoints.settle("a"))
            await asyncio.sleep(0.1)
            checkpoints.write("b", b"1")
        assert durable(checkpoints, "a", "b") == [True, False]  # b was written after the start of this sync
        checkpoints.write("a", b"2")
        assert durable(checkpoints, "a", "b") == [False, False]
        await checkpoints.settle("b")
        assert durable(checkpoints, "a", "b") == [True, True]
        assert (journal.begun, journal.durable) == (2, {"n/a": b"2", "n/b": b"1"})

    simulate(scenario())


def test_settling_waits_only_for_its_own_key() -> None:
    async def scenario() -> list[float]:
        checkpoints = Checkpoints(ScriptedJournal(syncs=[0.25, 0.5]), "n/")
        checkpoints.write("a", b"")
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(seconds_of(checkpoints.settle("a")))]
            await asyncio.sleep(0.125)
            checkpoints.write("b", b"")
            waits += [group.create_task(seconds_of(checkpoints.settle(key))) for key in ("a", "b", None, "c")]
        return [task.result() for task in waits]

    assert simulate(scenario())[0] == [0.25, 0.125, 0.625, 0.625, 0]


def test_settling_a_dropped_key_does_not_wait() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal({"n/old": b"1"})
        checkpoints = Checkpoints(journal, "n/")
        checkpoints.write("a", b"1")
        await checkpoints.settle()
        checkpoints.drop("a")
        checkpoints.drop("old")
        assert checkpoints.take("old") is None
        assert durable(checkpoints, "a", "old") == [True, True]
        assert await seconds_of(checkpoints.settle("a")) == 0
        assert journal.durable == {"n/old": b"1", "n/a": b"1"}
        assert await seconds_of(checkpoints.settle()) == 0.25
        assert (journal.begun, journal.durable) == (2, {})
        checkpoints.write("b", b"1")
        checkpoints.drop("b")
        assert checkpoints.is_durable("b")
        assert await seconds_of(checkpoints.settle("b")) == 0

    simulate(scenario())


def test_try_again_does_not_sync_during_a_sync_or_without_need() -> None:
    async def scenario() -> None:
        journal = ScriptedJournal(syncs=[0.5, 0.5])
        checkpoints = Checkpoints(journal, "n/")
        assert await seconds_of(checkpoints.try_again()) == 0
        checkpoints.write("a", b"")
        async with asyncio.TaskGroup() as group:
            group.create_task(checkpoints.settle())
            await asyncio.sleep(0.25)
            assert await seconds_of(checkpoints.try_again()) == 0
        assert await seconds_of(checkpoints.try_again()) == 0
        assert journal.begun == 1
        checkpoints.write("a", b"")
        assert await seconds_of(checkpoints.try_again()) == 0.5
        assert (journal.begun, checkpoints.is_durable("a")) == (2, True)

    simulate(scenario())


def test_a_failed_sync_delays_a_caller_once_and_is_retried() -> None:
    async def scenario() -> list[object]:
        found: list[object] = []
        for journal in (
            ScriptedJournal(syncs=[1e6, 1e6]),
            ScriptedJournal(syncs=[None, None]),
            ScriptedJournal(bug=True),
        ):
            checkpoints = Checkpoints(journal, "n/")
            checkpoints.write("a", b"")
            waits = [await seconds_of(checkpoints.settle("a")) for _ in range(2)]
            again = await seconds_of(checkpoints.try_again())
            before = checkpoints.is_durable("a")
            journal.bug, journal.syncs = False, []
            await checkpoints.try_again()
            found.append((waits, again, before, checkpoints.is_durable("a")))
        return found

    hangs, fails = ([1.0, 0], 1.0, False, True), ([0, 0], 0, False, True)
    assert simulate(scenario())[0] == [hangs, fails, fails]


def test_without_a_journal_nothing_is_stored_and_everything_is_durable() -> None:
    async def scenario() -> None:
        checkpoints = Checkpoints(None, "n/")
        checkpoints.write("a", b"1")
        assert durable(checkpoints, "a", "b") == [True, True]
        assert (checkpoints.take("a"), list(checkpoints.old_keys())) == (None, [])
        checkpoints.drop("a")
        await checkpoints.settle()

    assert simulate(scenario())[1] == 0
