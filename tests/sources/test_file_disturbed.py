"""The file source with an event at every await and a failure at every call: its last updates match the files.

The files are real, and the kernel reports changes while the test runs in virtual time: inotify never waits.
"""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from podkeeper.ports.source import Source
from podkeeper.sources.file import PERIOD_SECONDS, FileSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestReader
from podkeeper.sources.manifest_scan import REMOVAL_SECONDS, ManifestScanner
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.sources.watch import ManifestWatch
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import BEGINNING
from tests.sources.static_harness import StaticHarness, manifest

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class ReusedWatch(ManifestWatch):
    """An inotify instance for many runs, because closing one takes the kernel about 10 ms."""

    unused: ClassVar[list["ReusedWatch"]] = []
    in_use: ClassVar[set["ReusedWatch"]] = set()

    @classmethod
    def open(cls) -> "ReusedWatch":
        watch = cls.unused.pop() if cls.unused else cls()
        cls.in_use.add(watch)
        return watch

    def close(self) -> None:
        self.set_points(())
        self.drain(0.0)
        self.unfinished(math.inf)  # forget unfinished files
        self.lost = False
        self.in_use.remove(self)
        self.unused.append(self)


class Harness(StaticHarness):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup, directory: Path) -> None:
        self.directory = directory
        super().__init__(calls, group)
        self.clock.jump(time.time() - BEGINNING.timestamp())  # a file's age is compared with the wall clock

    def build(self, objects: LocalObjects, stored_manifests: StoredManifests) -> Source:
        return FileSource(
            [self.directory],
            "n1",
            self.clock,
            objects=objects,
            stored_manifests=stored_manifests,
            open_watch=ReusedWatch.open,
        )

    def write(self, name: str, image: str) -> None:
        """Write a manifest. Each image has another length, so that two quick writes differ by size."""
        (self.directory / name).write_text(manifest(name, image))

    def damage(self, name: str) -> None:
        (self.directory / name).write_text("kind: Pod\nmetadata: [\n")

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def move_away_for_a_moment(self) -> None:
        """Move the file away and move another one into its place later, as some editors do."""
        file, away = self.directory / "moves", self.directory / ".away"
        if not file.exists():
            return
        self.never_removed = "moves"
        file.rename(away)
        asyncio.get_running_loop().call_later(REMOVAL_SECONDS / 2, self._move_back)

    def _move_back(self) -> None:
        away = self.directory / ".away"
        if away.exists():
            away.rename(self.directory / "moves")

    def swap_directory(self) -> None:
        """Replace the directory and all of its files."""
        self.directory.rename(self.directory.with_suffix(".old"))
        self.directory.mkdir()
        for old in self.directory.with_suffix(".old").iterdir():
            (self.directory / old.name).write_text(old.read_text())

    def problems(self) -> tuple[str, ...]:
        assert isinstance(self.source, FileSource)
        return tuple(problem.message for problem in self.source.problems())


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory(prefix="manifests-", dir=MEMORY) as name:
        directory = Path(name, "m")
        directory.mkdir()
        async with asyncio.TaskGroup() as group:
            made = Harness(calls, group, directory)
            made.write("stays", "v1")
            made.write("goes", "v1")
            made.write("moves", "v1")
            yield made
            made.stop()


async def change_pods(harness: Harness) -> None:
    """Send all files, add one, remove one, and move one away for a moment."""
    harness.start()
    await asyncio.sleep(1)
    harness.write("comes", "v1")
    harness.remove("goes")
    harness.move_away_for_a_moment()
    await asyncio.sleep(1)


async def changes_arrive_until_the_source_stops(harness: Harness) -> None:
    harness.refusals = 0  # in case no update was refused
    harness.write("stays", "v4.4.4.4")
    await asyncio.sleep(1)
    assert harness.received()["stays"] == "v4.4.4.4"  # found by inotify, because the period has not passed
    harness.check()
    assert harness.problems() == ()
    assert harness.journal.unsynced_writes == 0
    harness.stop()
    harness.write("late", "v1")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    assert "late" not in harness.received()
    assert ReusedWatch.in_use == set()


LIVE = OperationTest(
    setup=open_harness,
    run=change_pods,
    state=lambda harness: (harness.received(), harness.problems()),
    check=Harness.check,
    afterwards=changes_arrive_until_the_source_stops,
    settle_seconds=2 * PERIOD_SECONDS,
)
EVENTS: dict[str, Event[Harness]] = {
    "a file changes": lambda harness: harness.write("stays", "v3.3.3"),
    "a file goes": lambda harness: harness.remove("stays"),
    "a file becomes invalid": lambda harness: harness.damage("stays"),
    "a file is away for a moment": Harness.move_away_for_a_moment,
    "the directory is swapped": Harness.swap_directory,
    "an update is refused": Harness.refuse,
    "the source runs again": Harness.run_again,
    "the agent restarts": Harness.start,
}


def test_every_event_at_every_await() -> None:
    interleave(LIVE, EVENTS, cancel=False)


def test_a_scan_that_starts_after_the_source_was_stopped_leaves_no_watch_open(tmp_path: Path) -> None:
    scanner = ManifestScanner((str(tmp_path),), ManifestReader("n1", has_store=False), open_watch=ReusedWatch.open)
    scanner.close()
    scanner.scan(0, 0.0)  # in a thread that was late
    assert ReusedWatch.in_use == set()


def test_every_call_fails_once() -> None:
    fail_each_call(LIVE)
