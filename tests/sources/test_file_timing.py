"""The times of the file source's scans, with and without inotify events, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from podkeeper.sources.file import FileSource
from podkeeper.sources.manifest_paths import WatchPoint
from podkeeper.sources.watch import ManifestWatch
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.sources.static_listener import InlineExecutor, Receiver, pod_text, running

Times = list[float]


def recording_watch(times: Times) -> Callable[[], ManifestWatch]:
    """Return a function that opens watches which record the time of each scan."""

    class Noting(ManifestWatch):
        def set_points(self, points: Iterable[WatchPoint]) -> str | None:
            now = round(asyncio.get_running_loop().time(), 3)
            if now not in times:
                times.append(now)
            return super().set_points(points)

    return Noting


def play(path: Path, work: Callable[[Receiver, Times], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        receiver, times = Receiver(), Times()
        source = FileSource([path, path], "n1", VirtualClock(), open_watch=recording_watch(times), **options)
        assert source.name == "file"
        async with running(source, receiver):
            await work(receiver, times)

    simulate(scenario())


@pytest.mark.parametrize("options, expected", [({}, [0, 20.01, 40.02]), ({"period_seconds": 15.0}, [0, 15.01, 30.02])])
def test_files_are_scanned_every_20_seconds(options: dict[str, float], expected: Times, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def work(receiver: Receiver, times: Times) -> None:
        await asyncio.sleep(45)
        assert (times[:3], receiver.names(), len(receiver.updates)) == (expected, ["web"], 1)
        assert {update.source for update in receiver.updates} == {"file"}

    play(tmp_path, work, **options)


def test_a_change_is_scanned_at_once_and_an_open_file_after_a_second_without_writes(tmp_path: Path) -> None:
    async def work(receiver: Receiver, times: Times) -> None:
        await asyncio.sleep(5)
        (tmp_path / "web.yaml").write_text(pod_text("web"))
        await asyncio.sleep(1)
        assert (times, receiver.names()) == ([0, 5], ["web"])
        with (tmp_path / "db.yaml").open("w") as file:
            file.write(pod_text("db"))
            file.flush()
            await asyncio.sleep(0.9)
            assert receiver.names() == ["web"]
            await asyncio.sleep(0.2)
            assert (times, receiver.names()) == ([0, 5, 7], ["db", "web"])

    play(tmp_path, work)


def test_a_removed_file_is_scanned_again_after_the_removal_time(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def work(receiver: Receiver, times: Times) -> None:
        await asyncio.sleep(5)
        (tmp_path / "web.yaml").unlink()
        await asyncio.sleep(0.1)
        assert receiver.names() == ["web"]
        await asyncio.sleep(0.2)
        assert receiver.names() == []
        assert times[:2] == [0, 5]

    play(tmp_path, work)


def test_without_a_watch_the_period_finds_changes(tmp_path: Path) -> None:
    def no_watch() -> ManifestWatch:
        raise OSError(24, "Too many open files")

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        receiver = Receiver()
        source = FileSource([tmp_path], "n1", VirtualClock(), open_watch=no_watch, report=receiver.report)
        async with running(source, receiver):
            await asyncio.sleep(1)
            assert receiver.names() == []
            (tmp_path / "web.yaml").write_text(pod_text("web"))
            await asyncio.sleep(18)
            assert receiver.names() == []
            await asyncio.sleep(30)
            assert receiver.names() == ["web"]

    simulate(scenario())
