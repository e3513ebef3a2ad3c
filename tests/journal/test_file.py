"""The journal in a file: group commit, compaction, damage, disk errors."""

import asyncio
import logging
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podkeeper.journal.disk import Durability
from podkeeper.journal.errors import JournalInUse, JournalUnusable
from podkeeper.journal.file import FileJournal
from podkeeper.journal.records import HEADER, encode, encode_all, read, record_size
from podkeeper.model.errors import TryLater
from tests.journal.disks import Disk

KILOBYTE = bytes(1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system with 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "podkeeper-test", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def written(path: Path, *rounds: dict[str, bytes]) -> None:
    """A journal with these entries, with a sync after each batch."""
    journal = FileJournal.open(path)
    for entries in rounds:
        for key, value in entries.items():
            journal.put(key, value)
        await journal.sync()
    await journal.close()


def reopened(path: Path) -> dict[str, bytes]:
    journal = FileJournal.open(path)
    entries = dict(journal.load())
    asyncio.run(journal.close())
    return entries


class CountingThread:
    """A thread that counts its writes."""

    def __init__(self) -> None:
        self.writes = 0
        self._pool = ThreadPoolExecutor(1)

    def do(self, work: Callable[[], None]) -> None:
        self.writes += 1
        self._pool.submit(work)

    def end(self) -> None:
        self._pool.shutdown(wait=False)


def test_nothing_is_written_before_a_sync(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        await journal.sync()
        size = path.stat().st_size
        journal.put("b", b"2")
        assert path.stat().st_size == size
        await journal.sync()
        assert path.stat().st_size == journal.size == size + record_size("b", b"2")
        await journal.close()

    asyncio.run(scenario())


def test_files_are_readable_only_by_the_agents_user(path: Path) -> None:
    asyncio.run(written(path, {"a": b"1"}))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_concurrent_syncs_share_a_write(path: Path) -> None:
    async def scenario() -> int:
        thread = CountingThread()
        journal = FileJournal.open(path, thread=thread)

        async def write(number: int) -> None:
            journal.put(f"k{number}", KILOBYTE)
            await journal.sync()

        await asyncio.gather(*(write(number) for number in range(500)))
        await journal.close()
        return thread.writes

    assert asyncio.run(scenario()) <= 2  # one for the first sync, one for all others
    assert len(reopened(path)) == 500


def test_equal_entries_and_empty_syncs_do_not_write(path: Path) -> None:
    async def scenario() -> int:
        thread = CountingThread()
        journal = FileJournal.open(path, thread=thread)
        for _ in range(5):
            journal.put("a", b"1")
            journal.drop("unknown")
            await journal.sync()
        await journal.close()
        return thread.writes

    assert asyncio.run(scenario()) == 1


def test_the_loop_does_not_wait_for_the_disk(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        syncing = asyncio.ensure_future(journal.sync())
        await asyncio.sleep(0)
        assert not syncing.done()  # it is under way in a thread, and we are here
        assert "journal" in {thread.name for thread in threading.enumerate()}
        await syncing
        await journal.close()

    asyncio.run(scenario())


def test_the_file_size_is_bounded(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path, spare_bytes=20_000)
        for number in range(300):
            journal.put(f"k{number % 10}", b"%05d" % number * 200)
            await journal.sync()
            assert path.stat().st_size <= 10_500 + 20_000 + 10_500
        before = dict(journal.load())
        for number in range(10):
            journal.drop(f"k{number}")
        await journal.sync()
        assert len(before) == 10
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {}
    assert sorted(it.name for it in path.parent.iterdir()) == ["journal", "journal.lock"]


def test_pending_records_are_bounded_without_a_sync(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        await journal.sync()
        for number in range(100_000):
            journal.put("k", b"%d" % number)
        await journal.sync()
        assert journal.size < 100
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"k": b"99999"}


def test_a_torn_end_is_cut_off_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(written(path, {"a": b"1"}))
    whole = path.read_bytes()
    path.write_bytes(whole + encode("b", b"2")[:-1])
    assert reopened(path) == {"a": b"1"}
    assert path.read_bytes() == whole
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.args == (path, len(whole), len(encode("b", b"2")) - 1)


def test_a_damaged_file_is_kept_and_the_entries_before_the_damage_are_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = encode_all({"a": b"1", "b": b"2"})
    damaged = good + b"X" + encode("c", b"3") + encode("a", b"4")
    path.parent.mkdir()
    for number in (1, 2):
        path.write_bytes(damaged)
        assert reopened(path) == {"a": b"1", "b": b"2"}
        assert path.read_bytes() == good
        assert path.with_name(f"journal.damaged-{number}").read_bytes() == damaged
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert [record.args for record in caplog.records] == [
        (path, len(good), 2),
        (path.with_name("journal.damaged-1"),),
        (path, len(good), 2),
        (path.with_name("journal.damaged-2"),),
    ]


def test_writing_continues_after_a_damaged_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"rubbish" + encode_all({"a": b"1"}))
    asyncio.run(written(path, {"b": b"2"}))
    assert reopened(path) == {"b": b"2"}


def test_an_interrupted_rewrite_is_ignored(path: Path) -> None:
    asyncio.run(written(path, {"a": b"1"}))
    path.with_name("journal.new").write_bytes(encode_all({"a": b"2"})[:-1])
    assert reopened(path) == {"a": b"1"}
    assert not path.with_name("journal.new").exists()


def test_a_journal_of_another_version_is_not_changed(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"podkeeper journal 2\nof tomorrow")
    for _ in range(2):  # the lock is free again after the first
        with pytest.raises(JournalUnusable, match="version 2"):
            FileJournal.open(path)
    assert path.read_bytes() == b"podkeeper journal 2\nof tomorrow"


def test_a_path_that_cannot_be_a_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnusable, match="not a directory"):
        FileJournal.open(tmp_path / "file" / "journal")
    (tmp_path / "journal").mkdir()
    with pytest.raises(JournalUnusable, match="is a directory"):
        FileJournal.open(tmp_path / "journal")


MEDDLING = {
    "removed": lambda path: path.unlink(),
    "replaced": lambda path: (path.with_name("other").write_bytes(b"?" * 1000), path.with_name("other").rename(path)),
    "truncated": lambda path: os.truncate(path, 5),
    "added to": lambda path: path.write_bytes(path.read_bytes() + b"x" * 100),
}


@pytest.mark.parametrize("meddle", MEDDLING.values(), ids=MEDDLING.keys())
def test_a_file_changed_by_others_is_rewritten(path: Path, meddle: object) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        await journal.sync()
        assert callable(meddle)
        meddle(path)
        journal.put("b", b"2")
        await journal.sync()
        assert path.read_bytes() == encode_all({"a": b"1", "b": b"2"})
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": b"2"}


def test_a_removed_directory_is_created_again(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        await journal.sync()
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
        journal.put("b", b"2")
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": b"2"}


def test_a_full_disk_is_reported_and_the_entries_are_kept(small_disk: Path) -> None:
    path, ballast = small_disk / "journal", small_disk / "ballast"

    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("before", b"1")
        await journal.sync()
        ballast.write_bytes(bytes(56 * 1024))
        journal.put("during", bytes(8000))
        for number in range(3):  # every sync raises, each time
            journal.put(f"more{number}", bytes(100))
            failures = await asyncio.gather(journal.sync(), journal.sync(), return_exceptions=True)
            assert [type(it) for it in failures] == [TryLater, TryLater]
            assert "free space" in str(failures[0])
            assert str(path) in str(failures[0])
        ballast.unlink()
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert {key: len(value) for key, value in reopened(path).items()} == {
        "before": 1, "during": 8000, "more0": 100, "more1": 100, "more2": 100,
    }  # fmt: skip


def test_a_disk_too_full_for_a_rewrite_keeps_the_old_file(small_disk: Path) -> None:
    path, ballast = small_disk / "journal", small_disk / "ballast"

    async def scenario() -> None:
        journal = FileJournal.open(path, spare_bytes=1000)
        journal.put("a", bytes(9000))
        await journal.sync()
        ballast.write_bytes(bytes(48 * 1024))
        journal.put("a", bytes(9001))
        journal.put("a", bytes(9002))
        with pytest.raises(TryLater, match="free space"):
            await journal.sync()
        assert not path.with_name("journal.new").exists()
        ballast.unlink()
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": bytes(9002)}


def test_a_read_only_file_system_is_reported_and_the_entries_are_kept(small_disk: Path) -> None:
    path = small_disk / "journal"

    async def remount(how: str) -> None:
        await asyncio.to_thread(subprocess.run, ["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        await journal.sync()
        await remount("ro")
        journal.put("b", b"2")
        with pytest.raises(TryLater, match="read-write"):
            await journal.sync()
        await remount("rw")
        await journal.sync()
        await journal.close()
        await remount("ro")
        assert dict(FileJournal.open(path).load()) == {"a": b"1", "b": b"2"}  # an agent can begin on it, too

    asyncio.run(scenario())


def test_a_directory_without_write_permission_is_reported(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")

    async def scenario() -> None:
        journal = FileJournal.open(path)
        path.parent.chmod(0o500)
        journal.put("a", b"1")
        with pytest.raises(TryLater, match=f"give user {os.geteuid()} write permission for {path.parent}"):
            await journal.sync()
        path.parent.chmod(0o700)
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1"}


def test_a_partial_write_is_not_durable(path: Path) -> None:
    """A limit on the file size acts like a disk that is full in the middle of a record, even for root."""
    asyncio.run(written(path, {"a": b"1"}))
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("b", bytes(40_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
        try:
            with pytest.raises(TryLater, match="ulimit -f"):
                await journal.sync()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(whole) < path.stat().st_size < 40_000
        path.with_name("crashed").write_bytes(path.read_bytes())
        journal.put("c", b"3")
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": bytes(40_000), "c": b"3"}
    assert reopened(path.with_name("crashed")) == {"a": b"1"}


def test_a_sync_during_a_failed_write_gets_its_own_write(path: Path) -> None:
    asyncio.run(written(path, {"a": b"1"}))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scenario() -> None:
        journal = FileJournal.open(path)

        async def first() -> None:
            try:
                with pytest.raises(TryLater):
                    await journal.sync()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        async def second() -> None:
            journal.put("c", b"3")
            await journal.sync()

        journal.put("b", bytes(40_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
        await asyncio.gather(first(), second())
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": bytes(40_000), "c": b"3"}


def test_entries_written_during_a_failed_write_are_newer(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        for key in ("changed", "dropped", "kept"):
            journal.put(key, b"first")
        await journal.sync()
        journal.put("changed", b"old")
        journal.put("dropped", b"old")
        journal.drop("kept")
        disk.gate.clear()
        disk.verdicts = [False]
        syncing = asyncio.ensure_future(journal.sync())
        await asyncio.sleep(0)  # the round is under way
        journal.put("changed", b"new")
        journal.drop("dropped")
        journal.put("kept", b"new")
        disk.gate.set()
        with pytest.raises(TryLater):
            await syncing
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"changed": b"new", "kept": b"new"}


def test_many_failed_writes_lose_no_entry_and_keep_the_order(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        journal.put("base", b"0")
        await journal.sync()
        for number in range(5):
            journal.put("last", b"%d" % number)
            journal.put(f"k{number}", b"")
            disk.verdicts = [False]
            with pytest.raises(TryLater):
                await journal.sync()
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"base": b"0", "last": b"4", **{f"k{number}": b"" for number in range(5)}}


@pytest.mark.parametrize("spare_bytes", [0, 1 << 20], ids=["rewritten each time", "appended to"])
def test_synced_entries_survive_a_power_cut(path: Path, spare_bytes: int) -> None:
    disk = Disk(path.parent.parent)

    def survived() -> dict[str, bytes]:
        return read(disk.after_a_power_cut(path)).entries

    async def scenario() -> None:
        journal = FileJournal.open(path, spare_bytes=spare_bytes, durability=disk)
        for number in range(6):
            journal.put("a", bytes([number]) * 100)
            journal.put(f"b{number}", b"x")
            await journal.sync()
            assert survived() == journal.load()
        journal.drop("a")
        await journal.sync()
        assert survived() == journal.load()
        await journal.close()

    asyncio.run(scenario())


REFUSALS = {
    "the new file": [False],
    "the directory": [True, False],
    "both, one after the other": [False, True, False],
    "the directory, twice": [True, False, True, False],
}


@pytest.mark.parametrize("verdicts", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_power_cut_at_any_time_keeps_synced_entries(path: Path, verdicts: list[bool]) -> None:
    """A rewrite syncs the new file and then the directory. Each may fail, and a power cut may follow."""
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, spare_bytes=0, durability=disk)
        journal.put("a", b"1" * 100)
        await journal.sync()
        before = journal.load()
        for number in (2, 3, 4):
            journal.put("a", b"%d" % number * 100)
        disk.verdicts = list(verdicts)
        for _ in range(verdicts.count(False)):
            with pytest.raises(TryLater):
                await journal.sync()
            assert read(disk.after_a_power_cut(path)).entries in (before, journal.load())
        await journal.sync()
        assert read(disk.after_a_power_cut(path)).entries == journal.load()
        await journal.close()

    asyncio.run(scenario())


def test_a_file_that_replaces_a_removed_one_is_not_appended_to_before_its_name_is_durable(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        journal.put("a", b"1")
        await journal.sync()
        path.unlink()
        journal.put("b", b"2")
        disk.verdicts = [True, False]  # the file, and the directory
        with pytest.raises(TryLater):
            await journal.sync()
        await journal.sync()
        assert read(disk.after_a_power_cut(path)).entries == {"a": b"1", "b": b"2"}
        await journal.close()

    asyncio.run(scenario())


def test_a_write_may_fail_after_a_rewrite_became_necessary(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, spare_bytes=1000, durability=disk)
        journal.put("a", b"0")
        await journal.sync()
        journal.put("a", b"1")
        disk.verdicts = [False]
        disk.gate.clear()
        syncing = asyncio.ensure_future(journal.sync())
        await asyncio.sleep(0)
        for number in range(100):
            journal.put("a", b"%d" % number * 100)
        disk.gate.set()
        with pytest.raises(TryLater):
            await asyncio.wait_for(syncing, 5)
        await journal.sync()
        assert read(disk.after_a_power_cut(path)).entries == {"a": b"99" * 100}
        await journal.close()

    asyncio.run(scenario())


def test_a_rewrite_contains_the_entries_at_its_start(path: Path) -> None:
    """The loop continues to write entries while the thread writes, so the thread has a copy."""
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        for number in range(2000):
            journal.put(f"k{number}", b"first")
        disk.gate.clear()
        syncing = asyncio.ensure_future(journal.sync())
        await asyncio.sleep(0)
        for number in range(2000, 4000):
            journal.put(f"k{number}", b"second")
        disk.gate.set()
        await syncing
        assert len(read(disk.after_a_power_cut(path)).entries) == 2000
        await journal.sync()
        assert len(read(disk.after_a_power_cut(path)).entries) == 4000
        await journal.close()

    asyncio.run(scenario())


def test_an_unreadable_journal_can_be_opened_later(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(JournalUnusable):
        FileJournal.open(path)
    path.rmdir()
    assert reopened(path) == {}


def test_a_damaged_file_that_could_not_be_kept_aside_is_kept_aside_later(path: Path) -> None:
    asyncio.run(written(path, {"a": b"1"}, {"b": b"2"}))
    damaged = bytearray(path.read_bytes())
    damaged[len(encode_all({"a": b"1"})) - 1] ^= 0xFF
    path.write_bytes(damaged)
    disk = Disk(path.parent.parent)
    disk.take_for_durable(path)
    disk.verdicts = [False]  # the rewritten file

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        assert journal.load() == {}
        assert path.read_bytes() == damaged  # until the new one is durable
        journal.put("c", b"3")
        await journal.sync()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"c": b"3"}
    assert path.with_name("journal.damaged-1").read_bytes() == damaged


def test_a_torn_end_that_could_not_be_cut_off_is_not_appended_to(path: Path) -> None:
    asyncio.run(written(path, {"a": b"1"}))
    path.write_bytes(path.read_bytes() + b"torn")
    disk = Disk(path.parent.parent)
    disk.take_for_durable(path)
    disk.verdicts = [False]  # the cut

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        journal.put("b", b"2")
        await journal.sync()
        assert read(disk.after_a_power_cut(path)).entries == {"a": b"1", "b": b"2"}
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": b"2"}


def test_cancelling_a_sync_does_not_cancel_the_write(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        journal.put("a", b"1")
        disk.gate.clear()
        leaving, staying = (asyncio.ensure_future(journal.sync()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        disk.gate.set()
        await staying
        assert read(path.read_bytes()).entries == {"a": b"1"}
        await journal.close()

    asyncio.run(scenario())


def test_closing_with_a_failing_disk_releases_the_lock(path: Path) -> None:
    disk = Disk(path.parent.parent)

    async def scenario() -> None:
        journal = FileJournal.open(path, durability=disk)
        journal.put("a", b"1")
        await journal.sync()
        journal.put("a", b"2")
        disk.verdicts = [False]
        with pytest.raises(TryLater):
            await journal.close()

    asyncio.run(scenario())
    assert reopened(path)["a"] in (b"1", b"2")


def test_closing_syncs_pending_entries(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1"}


# Rounds at chosen moments, and exact sizes.


class ManualThread:
    """Executes its work when the test calls it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.ended = 0
        self.can_start = True

    def do(self, work: Callable[[], None]) -> None:
        if not self.can_start:
            raise RuntimeError("can't start new thread")
        self.work.append(work)

    def end(self) -> None:
        self.ended += 1

    async def run(self) -> None:
        for work in self.work:
            work()
        self.work.clear()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_closing_during_a_write_keeps_the_lock(path: Path) -> None:
    async def scenario() -> None:
        thread = ManualThread()
        journal = FileJournal.open(path, thread=thread)
        journal.put("a", b"1")
        closing = asyncio.ensure_future(journal.close())
        await settle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert thread.ended == 0
        with pytest.raises(JournalInUse):  # the round still writes
            FileJournal.open(path)
        await thread.run()
        await journal.close()
        assert (thread.ended, thread.work) == (1, [])

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1"}


def test_without_a_thread_the_entries_are_kept_for_the_next_sync(path: Path) -> None:
    async def scenario() -> None:
        thread = ManualThread()
        journal = FileJournal.open(path, thread=thread)
        for key in ("first", "second"):
            journal.put(key, b"1")
            thread.can_start = False
            with pytest.raises(TryLater, match=f"cannot write the journal {path}: cannot start a thread"):
                await journal.sync()
            thread.can_start = True
            syncing = asyncio.ensure_future(journal.sync())
            await settle()
            await thread.run()
            await syncing
            assert read(path.read_bytes()).entries == journal.load()
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"first": b"1", "second": b"1"}


def test_a_write_may_end_after_the_loop_is_closed(path: Path) -> None:
    thread = ManualThread()

    async def scenario() -> None:
        journal = FileJournal.open(path, thread=thread)
        journal.put("a", b"1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await journal.sync()

    asyncio.run(scenario())
    (work,) = thread.work
    work()
    assert read(path.read_bytes()).entries == {"a": b"1"}


def test_an_unexpected_error_is_raised_and_the_entries_are_kept(path: Path) -> None:
    class Odd(Durability):
        error: Exception | None = None

        def data(self, descriptor: int) -> None:
            if self.error is not None:
                raise self.error

    async def scenario() -> None:
        disk = Odd()
        journal = FileJournal.open(path, durability=disk)
        journal.put("a", b"1")
        await journal.sync()
        journal.put("b", b"2")
        disk.error = ZeroDivisionError("odd")
        with pytest.raises(ZeroDivisionError, match="odd"):
            await journal.sync()
        disk.error = OSError(5, "Input/output error")
        with pytest.raises(TryLater, match=f"cannot write the journal {path}: input/output error; the disk may"):
            await journal.sync()
        assert journal.size == len(HEADER) + record_size("a", b"1")
        disk.error = None
        await journal.sync()
        assert journal.size == len(HEADER) + record_size("a", b"1") + record_size("b", b"2")
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1", "b": b"2"}


def sizes(path: Path, spare_bytes: int, *steps: tuple[str, int | None]) -> list[int]:
    """The bytes beyond the header after each step: an entry of so many bytes, or None to drop it; then a sync."""

    async def scenario() -> list[int]:
        journal = FileJournal.open(path, spare_bytes=spare_bytes)
        found = []
        for number, (key, length) in enumerate(steps):
            if length is None:
                journal.drop(key)
            else:
                journal.put(key, bytes([number]) * length)
            await journal.sync()
            assert path.stat().st_size == journal.size
            found.append(journal.size - len(HEADER))
        await journal.close()
        return found

    return asyncio.run(scenario())


# The head of a record has 16 bytes and each key 4, so an entry of 80 bytes takes 100.

COMPACTED: dict[str, tuple[int, list[tuple[str, int | None]], list[int]]] = {
    "garbage up to the spare bytes is kept": (300, [("key1", 80)] * 6, [100, 200, 300, 400, 100, 200]),
    "one spare byte less": (299, [("key1", 80)] * 5, [100, 200, 300, 100, 200]),
    "garbage up to the live bytes is kept": (
        0, [("key1", 80), ("key2", 80), ("key3", 80), *[("key1", 80)] * 4], [100, 200, 300, 400, 500, 600, 300]),
    "a shorter value leaves fewer live bytes": (
        0, [("key1", 180), ("key1", 80), ("key1", 80)], [200, 100, 200]),
    "a longer value leaves more live bytes": (
        0, [("key1", 80), ("key1", 180), ("key1", 180)], [100, 300, 200]),
    "dropped entries are garbage": (
        120, [("key1", 80), ("key2", 80), ("key1", None), ("key2", None)], [100, 200, 220, 0]),
    "nothing live and all of it spare": (240, [("key1", 80), ("key2", 80), ("key1", None), ("key2", None)],
        [100, 200, 220, 240]),
}  # fmt: skip


@pytest.mark.parametrize("spare_bytes, steps, expected", COMPACTED.values(), ids=COMPACTED.keys())
def test_the_file_is_rewritten_when_too_much_of_it_is_obsolete(
    spare_bytes: int, steps: list[tuple[str, int | None]], expected: list[int], path: Path
) -> None:
    assert sizes(path, spare_bytes, *steps) == expected


def test_garbage_from_before_a_restart_counts(path: Path) -> None:
    assert sizes(path, 300, *[("key1", 80)] * 3) == [100, 200, 300]
    assert sizes(path, 300, *[("key1", 40)] * 2) == [360, 60]
    assert sizes(path, 300) == []
    assert path.stat().st_size == len(HEADER) + 60


def test_many_writes_between_two_syncs_make_one_rewrite(path: Path) -> None:
    async def scenario() -> None:
        thread = CountingThread()
        journal = FileJournal.open(path, spare_bytes=300, thread=thread)
        journal.put("key1", bytes(80))
        await journal.sync()
        for number in range(10):
            journal.put("key1", bytes([number]) * 80)
        await journal.sync()
        assert (journal.size - len(HEADER), thread.writes) == (100, 2)
        journal.put("key1", bytes(80))
        await journal.sync()
        assert (journal.size - len(HEADER), thread.writes) == (200, 3)
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"key1": bytes(80)}


def test_load_returns_a_copy(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        journal.put("a", b"1")
        loaded = journal.load()
        assert isinstance(loaded, dict)
        loaded.clear()
        assert journal.load() == {"a": b"1"}
        await journal.close()

    asyncio.run(scenario())
    assert reopened(path) == {"a": b"1"}


def test_a_journal_without_entries_is_not_written(path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal.open(path)
        await journal.sync()
        assert (journal.size, path.exists()) == (0, False)
        journal.put("a", b"1")
        await journal.sync()
        (thread,) = (each for each in threading.enumerate() if each.name == "journal")
        assert thread.daemon  # a disk that hangs must not keep the agent from ending
        await journal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["before", "during a round", "after a failed round"])
def test_after_a_purge_and_a_sync_the_disk_holds_no_dropped_value(path: Path, way: str) -> None:
    async def scenario() -> None:
        disk = Disk(path.parent.parent)
        journal = FileJournal.open(path, durability=disk)
        journal.put("a", b"hush-hush")
        journal.put("b", b"kept")
        await journal.sync()
        journal.drop("a")
        if way == "before":
            journal.purge()
        if way == "during a round":
            syncing = asyncio.ensure_future(journal.sync())
            await asyncio.sleep(0)
            journal.purge()
            await syncing
        if way == "after a failed round":
            journal.purge()
            disk.verdicts = [False]
            with pytest.raises(TryLater):
                await journal.sync()
        await journal.sync()
        assert b"hush-hush" not in path.read_bytes()
        assert dict(journal.load()) == {"b": b"kept"}
        await journal.close()

    asyncio.run(scenario())
