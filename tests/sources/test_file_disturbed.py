"""The file source, with an event at every await and a failure at every call: in the end it has told what files hold.

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
from podkeeper.sources.contents import Reader
from podkeeper.sources.file import PERIOD_SECONDS, FileSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.survey import GONE_SECONDS, Surveyor
from podkeeper.sources.watch import Watch
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import BEGINNING
from tests.sources.static_stage import StaticStage, manifest

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class ReusedWatch(Watch):
    """An inotify instance that serves many runs: the kernel takes about 10 ms to close one."""

    unused: ClassVar[list["ReusedWatch"]] = []
    in_use: ClassVar[set["ReusedWatch"]] = set()

    @classmethod
    def open(cls) -> "ReusedWatch":
        watch = cls.unused.pop() if cls.unused else cls()
        cls.in_use.add(watch)
        return watch

    def close(self) -> None:
        self.point_at(())
        self.drain(0.0)
        self.unfinished(math.inf)  # forget who was writing
        self.lost = False
        self.in_use.remove(self)
        self.unused.append(self)


class Stage(StaticStage):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup, directory: Path) -> None:
        self.directory = directory
        super().__init__(calls, group)
        self.clock.jump(time.time() - BEGINNING.timestamp())  # a file's age is compared with the wall clock

    def build(self, objects: LocalObjects, notes: ManifestNotes) -> Source:
        return FileSource([self.directory], "n1", self.clock, objects=objects, notes=notes, open_watch=ReusedWatch.open)

    def write(self, name: str, image: str) -> None:
        """Give each image of a pod another length: two writes within one tick of the disk's clock differ by size."""
        (self.directory / name).write_text(manifest(name, image))

    def spoil(self, name: str) -> None:
        (self.directory / name).write_text("kind: Pod\nmetadata: [\n")

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def move_away_for_a_moment(self) -> None:
        """Do what some editors do: move the file away, and move one into its place later."""
        file, away = self.directory / "moves", self.directory / ".away"
        if not file.exists():
            return
        self.never_removed = "moves"
        file.rename(away)
        asyncio.get_running_loop().call_later(GONE_SECONDS / 2, self._move_back)

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
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="manifests-", dir=MEMORY) as name:
        directory = Path(name, "m")
        directory.mkdir()
        async with asyncio.TaskGroup() as group:
            made = Stage(calls, group, directory)
            made.write("stays", "v1")
            made.write("goes", "v1")
            made.write("moves", "v1")
            yield made
            made.stop()


async def live(stage: Stage) -> None:
    """Tell all files, see one come, one go, and one that is away for a moment."""
    stage.start()
    await asyncio.sleep(1)
    stage.write("comes", "v1")
    stage.remove("goes")
    stage.move_away_for_a_moment()
    await asyncio.sleep(1)


async def news_still_arrives_until_it_stops(stage: Stage) -> None:
    stage.refusals = 0  # if no update met it
    stage.write("stays", "v4.4.4.4")
    await asyncio.sleep(1)
    assert stage.told()["stays"] == "v4.4.4.4"  # the kernel reported it: the period has not passed
    stage.check()
    assert stage.problems() == ()
    assert stage.journal.unsynced_writes == 0
    stage.stop()
    stage.write("late", "v1")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    assert "late" not in stage.told()
    assert ReusedWatch.in_use == set()


LIVE = Operation(
    stage=stage,
    run=live,
    state=lambda stage: (stage.told(), stage.problems()),
    check=Stage.check,
    afterwards=news_still_arrives_until_it_stops,
    settle_seconds=2 * PERIOD_SECONDS,
)
EVENTS: dict[str, Event[Stage]] = {
    "a file changes": lambda stage: stage.write("stays", "v3.3.3"),
    "a file goes": lambda stage: stage.remove("stays"),
    "a file is broken": lambda stage: stage.spoil("stays"),
    "a file is away for a moment": Stage.move_away_for_a_moment,
    "the directory is swapped": Stage.swap_directory,
    "an update is refused": Stage.refuse,
    "the source runs again": Stage.run_again,
    "the agent restarts": Stage.start,
}


def test_every_event_at_every_await() -> None:
    interleave(LIVE, EVENTS, cancel=False)


def test_a_survey_that_begins_after_its_source_was_stopped_leaves_no_watch_open(tmp_path: Path) -> None:
    surveyor = Surveyor((str(tmp_path),), Reader("n1", has_store=False), open_watch=ReusedWatch.open)
    surveyor.close()
    surveyor.survey(0, 0.0)  # in a thread that was late
    assert ReusedWatch.in_use == set()


def test_every_call_fails_once() -> None:
    fail_each_call(LIVE)
