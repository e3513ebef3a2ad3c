"""Files as a source in virtual time: when they are looked at without and with news of the kernel."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from podkeeper.sources.file import FileSource
from podkeeper.sources.places import Point
from podkeeper.sources.watch import Watch
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.sources.static_listener import InlineExecutor, Listener, pod_text, running

Times = list[float]


def watch_noting(times: Times) -> Callable[[], Watch]:
    """Opens watches that note each survey."""

    class Noting(Watch):
        def point_at(self, points: Iterable[Point]) -> str | None:
            now = round(asyncio.get_running_loop().time(), 3)
            if now not in times:
                times.append(now)
            return super().point_at(points)

    return Noting


def play(path: Path, work: Callable[[Listener, Times], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        listener, times = Listener(), Times()
        source = FileSource([path, path], "n1", VirtualClock(), open_watch=watch_noting(times), **options)
        assert source.name == "file"
        async with running(source, listener):
            await work(listener, times)

    simulate(scenario())


@pytest.mark.parametrize("options, expected", [({}, [0, 20.01, 40.02]), ({"period_seconds": 15.0}, [0, 15.01, 30.02])])
def test_files_are_looked_at_every_20_seconds(options: dict[str, float], expected: Times, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def work(listener: Listener, times: Times) -> None:
        await asyncio.sleep(45)
        assert (times[:3], listener.names(), len(listener.told)) == (expected, ["web"], 1)
        assert {update.source for update in listener.told} == {"file"}

    play(tmp_path, work, **options)


def test_a_change_is_looked_at_at_once_and_an_open_file_when_its_writer_is_silent(tmp_path: Path) -> None:
    async def work(listener: Listener, times: Times) -> None:
        await asyncio.sleep(5)
        (tmp_path / "web.yaml").write_text(pod_text("web"))
        await asyncio.sleep(1)
        assert (times, listener.names()) == ([0, 5], ["web"])
        with (tmp_path / "db.yaml").open("w") as file:
            file.write(pod_text("db"))
            file.flush()
            await asyncio.sleep(0.9)
            assert listener.names() == ["web"]
            await asyncio.sleep(0.2)
            assert (times, listener.names()) == ([0, 5, 7], ["db", "web"])

    play(tmp_path, work)


def test_a_file_that_is_removed_is_looked_at_again_after_a_moment(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(pod_text("web"))

    async def work(listener: Listener, times: Times) -> None:
        await asyncio.sleep(5)
        (tmp_path / "web.yaml").unlink()
        await asyncio.sleep(0.1)
        assert listener.names() == ["web"]
        await asyncio.sleep(0.2)
        assert listener.names() == []
        assert times[:2] == [0, 5]

    play(tmp_path, work)


def test_without_a_watch_the_period_finds_changes(tmp_path: Path) -> None:
    def no_watch() -> Watch:
        raise OSError(24, "Too many open files")

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        listener = Listener()
        source = FileSource([tmp_path], "n1", VirtualClock(), open_watch=no_watch, report=listener.report)
        async with running(source, listener):
            await asyncio.sleep(1)
            assert listener.names() == []
            (tmp_path / "web.yaml").write_text(pod_text("web"))
            await asyncio.sleep(18)
            assert listener.names() == []
            await asyncio.sleep(30)
            assert listener.names() == ["web"]

    simulate(scenario())
