"""The journal in a file, with an event at every await and a failure at every disk write."""

import asyncio
import errno
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from podkeeper.journal.disk import JournalFile
from podkeeper.journal.file import FileJournal
from podkeeper.journal.lock import JournalLock
from podkeeper.journal.records import read
from podkeeper.model.errors import TryLater
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest, Run
from podkeeper.testing.port_calls import PortCalls

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class LoopThread:
    """Writes in the event loop, in its own callback."""

    def do(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def end(self) -> None:
        pass


class Disk(JournalFile):
    """A file whose writes fail as ordered: the first `before` of them work, the next `failures` do not.

    A failing write leaves half of its bytes, or all of them without confirming that they are durable.
    """

    before = 0
    failures = 0
    whole = False

    def append(self, records: bytes) -> bool:
        if self._fails():
            with open(self.path, "r+b") as file:
                file.seek(self.size)
                file.write(records if self.whole else records[: len(records) // 2])
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().append(records)

    def rewrite(self, entries: Mapping[str, bytes]) -> None:
        if self._fails():
            if self.whole:
                size, identity = self.size, self._identity
                super().rewrite(entries)
                self.size, self._identity = size, identity
            raise OSError(errno.EIO, "input/output error")
        super().rewrite(entries)

    def _fails(self) -> bool:
        self.before -= 1
        return -self.failures <= self.before < 0


@dataclass
class Harness:
    journal: FileJournal
    disk: Disk

    written: list[tuple[str, bytes | None]] = field(default_factory=lambda: [("old", b"0")])

    async def write(self, key: str, value: bytes | None) -> None:
        self.put(key, value)
        mark = len(self.written)
        await self.journal.sync()
        found = self.on_disk().get(key)
        newest = [value for other, value in self.written[mark - 1 :] if other == key]
        assert found in newest, f"{key} is {found!r} on disk after a sync, expected one of {newest}"

    def on_disk(self) -> Mapping[str, bytes]:
        return read(self.disk.path.read_bytes()).entries

    def put(self, key: str, value: bytes | None) -> None:
        self.written.append((key, value))
        if value is None:
            self.journal.drop(key)
        else:
            self.journal.put(key, value)


def writing(
    *, spare_bytes: int = 1 << 20, before: int = 0, failures: int = 0, whole: bool = False
) -> OperationTest[Harness]:
    @asynccontextmanager
    async def harness(_: PortCalls) -> AsyncIterator[Harness]:
        with tempfile.TemporaryDirectory(prefix="journal-", dir=MEMORY) as name:
            disk = Disk(Path(name, "journal"))
            disk.rewrite({"old": b"0"})
            disk.before, disk.failures, disk.whole = before, failures, whole
            lock = JournalLock.take(Path(name, "lock"))
            yield Harness(FileJournal(disk, lock, {"old": b"0"}, spare_bytes, LoopThread()), disk)
            lock.release()

    return OperationTest(
        setup=harness,
        run=lambda harness: harness.write("a", b"1"),
        state=lambda harness: harness.journal.load(),
        afterwards=everything_becomes_durable,
    )


async def everything_becomes_durable(harness: Harness) -> None:
    harness.disk.failures = 0
    await harness.write("last", b"word")
    assert harness.on_disk() == harness.journal.load()  # what a restart finds
    assert harness.disk.size == harness.disk.path.stat().st_size  # no byte of a failed write is left


EVENTS: dict[str, Event[Harness]] = {
    "the key is written": lambda harness: harness.put("a", b"newer"),
    "the key is dropped": lambda harness: harness.put("a", None),
    "an old key is dropped": lambda harness: harness.put("old", None),
    "another key is written and synced": lambda harness: harness.write("b", b"2"),
    "the key is written and synced": lambda harness: harness.write("a", b"3"),
}
# Appending; rewriting with every sync.
SPARE_BYTES = (1 << 20, -(1 << 20))


@pytest.mark.parametrize("spare_bytes", SPARE_BYTES)
def test_every_event_at_every_await(spare_bytes: int) -> None:
    interleave(writing(spare_bytes=spare_bytes), EVENTS, depth=2 if spare_bytes > 0 else 1)


def test_a_sync_during_a_failing_write_waits_for_its_own() -> None:
    failed: list[str] = []

    async def sync(harness: Harness, key: str) -> None:
        harness.put(key, b"1")
        try:
            await harness.journal.sync()
        except TryLater:
            failed.append(key)

    async def two_rounds(harness: Harness) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sync(harness, "first"))
            await asyncio.sleep(0)  # its round begins
            group.create_task(sync(harness, "second"))

    assert Run(replace(writing(failures=1), run=two_rounds), PortCalls()).in_between(()).problem == ""
    assert failed == ["first"]


@pytest.mark.parametrize("spare_bytes", SPARE_BYTES)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("failures", [1, 2])
def test_every_event_at_every_await_of_a_write_that_fails(spare_bytes: int, whole: bool, failures: int) -> None:
    """The failed records must reach the disk with the next sync, before everything that was written since."""
    interleave(writing(spare_bytes=spare_bytes, failures=failures, whole=whole), EVENTS)


@pytest.mark.parametrize("spare_bytes", SPARE_BYTES)
@pytest.mark.parametrize("before", range(4))
def test_any_one_of_several_writes_fails(spare_bytes: int, before: int) -> None:
    async def several(harness: Harness) -> None:
        for key, value in (("a", b"1"), ("a", None), ("a", b"2"), ("b", b"3")):
            await harness.write(key, value)

    operation = replace(writing(spare_bytes=spare_bytes, before=before, failures=1), run=several)
    interleave(operation, {"the key is dropped": EVENTS["the key is dropped"]}, cancel=False)
