"""Crashes: at every byte of a small history, at random in long ones, and by `kill -9` of a real writer."""

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import TryLater
from tests.journal.disks import Disk

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # the crashes are ours: the disk need not be slow
KEYS = ("a", "b", "status/ü")
Write = tuple[str, bytes | None]

BEGUN: Sequence[Write] = [("base", b"0")]  # a rewrite is renamed when complete, so no reader sees a part of it
HISTORIES: dict[str, Sequence[Sequence[Write]]] = {  # a sync after each inner list
    "a few entries": [BEGUN, [("a", b"1")], [("b", b"22"), ("a", b"333")], [("a", None)]],
    "one batch of many": [
        BEGUN,
        [("a", b"1"), ("b", b""), ("a", None), ("c", b"x" * 40), ("base", None), ("a", b"4"), ("b", None)],
    ],
    "the same key over and over": [BEGUN, *([("a", b"%d" % number)] for number in range(6))],
}


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-journal-", dir=MEMORY) as made:
        yield Path(made)


def after(writes: Sequence[Write]) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    for key, value in writes:
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
    return entries


def apply(journal: FileJournal, write: Write) -> None:
    key, value = write
    if value is None:
        journal.drop(key)
    else:
        journal.put(key, value)


def recovered(path: Path) -> dict[str, bytes]:
    journal = FileJournal.open(path)
    entries = dict(journal.load())
    asyncio.run(journal.close())
    return entries


def lived(path: Path, history: Sequence[Sequence[Write]]) -> list[tuple[int, int]]:
    """Execute a history. Return, for each sync, the file's size and the number of writes so far."""

    async def scenario() -> list[tuple[int, int]]:
        journal = FileJournal.open(path)
        marks = [(0, 0)]
        for writes in history:
            for write in writes:
                apply(journal, write)
            await journal.sync()
            marks.append((path.stat().st_size, marks[-1][1] + len(writes)))
        await journal.close()
        return marks

    return asyncio.run(scenario())


def test_a_crash_at_any_byte_keeps_synced_entries_and_a_prefix_of_the_rest(memory: Path) -> None:
    for name, history in HISTORIES.items():
        path = memory / name / "journal"
        marks = lived(path, history)
        writes = list(itertools.chain(*history))
        whole = path.read_bytes()
        assert len(whole) == marks[-1][0]
        crashed = memory / "crashed"
        for cut in range(len(whole) + 1):
            crashed.write_bytes(whole[:cut])
            durable = max(count for size, count in marks if size <= cut)
            assert recovered(crashed) in [after(writes[:count]) for count in range(durable, len(writes) + 1)]
        assert not list(memory.glob("crashed.damaged*"))


def test_damage_at_any_byte_keeps_a_prefix_and_loses_no_file(memory: Path) -> None:
    path = memory / "journal"
    history = HISTORIES["a few entries"]
    marks = lived(path, history)
    writes = list(itertools.chain(*history))
    whole = path.read_bytes()
    crashed = memory / "crashed"
    for place in range(len(whole)):
        hurt = bytearray(whole)
        hurt[place] ^= 0xFF
        crashed.write_bytes(hurt)
        before = max(count for size, count in marks if size <= place)
        assert recovered(crashed) in [after(writes[:count]) for count in range(before, len(writes) + 1)]
        aside = crashed.with_name("crashed.damaged-1")
        if place < marks[-2][0]:  # not in the last record: others come after it
            assert aside.read_bytes() == bytes(hurt)
            aside.unlink()
        assert not aside.exists()


class JournalMachine(RuleBasedStateMachine):
    """A journal beside a dictionary. A crash may hit anywhere between the last sync and now."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(prefix="podkeeper-journal-", dir=MEMORY)
        self.loop = asyncio.new_event_loop()
        self.lives = 0
        self.disk = Disk(Path(self.root.name))
        self.durable: dict[str, bytes] = {}
        self.since: list[Write] = []

    @initialize(spare_bytes=st.sampled_from([0, 100, 1024 * 1024]))
    def begin(self, spare_bytes: int) -> None:
        self.spare_bytes = spare_bytes
        self.journal = self.opened()

    @rule(key=st.sampled_from(KEYS), value=st.none() | st.binary(max_size=60))
    def write(self, key: str, value: bytes | None) -> None:
        apply(self.journal, (key, value))
        self.since.append((key, value))

    @rule()
    def sync(self) -> None:
        self.loop.run_until_complete(self.journal.sync())
        self.durable, self.since = self.now(), []

    @rule(meanwhile=st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=60)), max_size=4))
    def sync_in_vain(self, meanwhile: list[Write]) -> None:
        """Sync on a failing disk. Some writes arrive during the sync."""

        async def scenario() -> None:
            self.disk.verdicts = [False]
            self.disk.gate.clear()
            syncing = asyncio.ensure_future(self.journal.sync())
            await asyncio.sleep(0)
            for write in meanwhile:
                self.write(*write)
            self.disk.gate.set()
            with contextlib.suppress(TryLater):
                await syncing
            self.disk.verdicts = []  # there may have been nothing to sync

        self.loop.run_until_complete(scenario())

    @rule()
    def restart(self) -> None:
        self.sync()
        self.loop.run_until_complete(self.journal.close())
        self.journal = self.opened()

    @rule(progress=st.floats(0, 1))
    def crash(self, progress: float) -> None:
        before = self.path.read_bytes() if self.path.exists() else b""
        self.loop.run_until_complete(self.journal.close())
        whole = self.path.read_bytes() if self.path.exists() else b""
        self.lives += 1
        if whole.startswith(before):
            self.path.write_bytes(whole[: len(before) + round((len(whole) - len(before)) * progress)])
        else:
            self.path.write_bytes(before)
        self.disk.take_for_durable(self.path)
        self.journal = self.opened()
        found = dict(self.journal.load())
        assert found in [self.now(count) for count in range(len(self.since) + 1)]
        self.durable, self.since = found, []

    @invariant()
    def all_is_there(self) -> None:
        if hasattr(self, "journal"):
            assert dict(self.journal.load()) == self.now()

    def opened(self) -> FileJournal:
        return FileJournal.open(self.path, spare_bytes=self.spare_bytes, durability=self.disk)

    def now(self, count: int | None = None) -> dict[str, bytes]:
        return after([*self.durable.items(), *self.since[:count]])

    @property
    def path(self) -> Path:
        return Path(self.root.name) / f"journal-{self.lives}"

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.loop.run_until_complete(self.journal.close())
        self.loop.close()
        self.root.cleanup()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=60, stateful_step_count=25)

WRITER = """
import asyncio, sys
from pathlib import Path
from podkeeper.journal.file import FileJournal

async def write(journal, lane):
    number = 0
    while True:
        number += 1
        journal.put(f"{lane}/last", b"%d" % number)
        journal.put(f"{lane}/{number % 7}", b"%d " % number * 50)
        await journal.sync()
        sys.stdout.write(f"{lane} {number}\\n")
        sys.stdout.flush()

async def main():
    journal = FileJournal.open(Path(sys.argv[1]), spare_bytes=20_000)
    await asyncio.gather(*(write(journal, lane) for lane in "abc"))

asyncio.run(main())
"""


def test_synced_entries_survive_kill_9(tmp_path: Path) -> None:
    path, chance = tmp_path / "journal", random.Random(5)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        synced = {"a": 0, "b": 0, "c": 0}
        try:
            for line in itertools.islice(writer.stdout, chance.randrange(1, 250)):
                lane, number = line.split()
                synced[lane] = int(number)
        finally:
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read()
            writer.stdout.close()
            writer.wait()
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n"):
                lane, number = line.split()
                synced[lane] = int(number)
        found = recovered(path)  # at once: the lock went with the writer
        for lane, count in synced.items():
            last = int(found.get(f"{lane}/last", b"0"))
            assert last in (count, count + 1)
            assert all(found[f"{lane}/{older % 7}"] == b"%d " % older * 50 for older in range(max(1, last - 5), last))
        assert not list(tmp_path.glob("*damaged*"))
        path.unlink(missing_ok=True)
