"""A rotated log is read as one: from its oldest file, from its last lines, and through later rotations."""

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.app.local.log_follow import LogFollower
from podkeeper.app.local.logs import read_file
from podkeeper.linux.logline import UnixNanoseconds
from podkeeper.rules.logs.reading import LogOptions
from tests.app.local.test_logs import Follower, line, read

TEN = 1_794_736_800 * 10**9  # 10:00:00 of the day the lines are from


def lines(*numbers: int) -> bytes:
    return b"".join(line(str(number), number) for number in numbers)


def text(*numbers: int) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of nine lines in four files, with unrelated files beside it."""
    for name, content in {
        "0.log.20261115-100003.gz": gzip.compress(lines(1, 2, 3)),
        "0.log.20261115-100006.gz": gzip.compress(lines(4, 5, 6)),
        "0.log.20261115-100006": lines(4, 5, 6),  # compressed, and not removed yet
        "0.log.20261115-100008": lines(7, 8),
        "0.log": lines(9),
        "0.log.20261115-100003.tmp": b"half",
        "0.log.old": lines(55),
        "1.log": lines(56),
    }.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / "0.log"


EVERYTHING = text(1, 2, 3, 4, 5, 6, 7, 8, 9)
CASES: dict[str, tuple[dict[str, Any], bytes]] = {
    "all of it": ({}, EVERYTHING),
    "the last line": ({"tail_lines": 1}, text(9)),
    "lines of the previous file": ({"tail_lines": 2}, text(8, 9)),
    "all lines of the previous file": ({"tail_lines": 3}, text(7, 8, 9)),
    "lines of a compressed file": ({"tail_lines": 4}, text(6, 7, 8, 9)),
    "lines of the oldest file": ({"tail_lines": 8}, text(2, 3, 4, 5, 6, 7, 8, 9)),
    "exactly all lines": ({"tail_lines": 9}, EVERYTHING),
    "more lines than exist": ({"tail_lines": 99}, EVERYTHING),
    "none": ({"tail_lines": 0}, b""),
    "newer lines": ({"since": UnixNanoseconds(TEN + 5 * 10**9)}, text(5, 6, 7, 8, 9)),
    "a time in the future": ({"since": UnixNanoseconds(TEN * 2)}, b""),
    "a number of bytes": ({"limit_bytes": 7}, EVERYTHING[:7]),
}


@pytest.mark.parametrize("options, expected", CASES.values(), ids=CASES.keys())
def test_options_of_a_rotated_log(path: Path, options: dict[str, Any], expected: bytes) -> None:
    assert read(path, **options) == expected


def test_a_log_without_a_current_file_ends_with_its_newest_rotated_file(path: Path) -> None:
    path.unlink()
    assert read(path) == text(1, 2, 3, 4, 5, 6, 7, 8)
    assert read(path, tail_lines=1) == text(8)
    assert read(path, tail_lines=3) == text(6, 7, 8)


def test_only_the_lines_of_a_damaged_file_are_lost(path: Path) -> None:
    whole = path.with_name("0.log.20261115-100003.gz").read_bytes()
    path.with_name("0.log.20261115-100003.gz").write_bytes(whole[:-9])
    assert read(path).endswith(text(4, 5, 6, 7, 8, 9))
    assert read(path, tail_lines=7).endswith(text(4, 5, 6, 7, 8, 9))


class LogWriter:
    """Writes a log and rotates it, step by step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._stamps = iter(range(1, 1000))
        self._parts: list[Path] = []
        self._file = path.open("ab", buffering=0)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self._file.write(line(str(self.written)))
            self.written += 1

    def rename_current(self) -> None:
        """The first half of a rotation."""
        self._parts.append(self.path.rename(f"{self.path}.20261115-{next(self._stamps):06}"))

    def reopen(self) -> None:
        """The second half. Then the previous file is compressed."""
        self._file.close()
        self._file = self.path.open("ab", buffering=0)
        for index, part in enumerate(self._parts[:-1]):
            if part.suffix != ".gz":
                packed = part.with_name(f"{part.name}.gz")
                packed.write_bytes(gzip.compress(part.read_bytes()))
                part.unlink()
                self._parts[index] = packed

    def rotate(self) -> None:
        self.rename_current()
        self.reopen()

    def remove_oldest(self) -> None:
        self._parts.pop(0).unlink()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    made = LogWriter(tmp_path / "0.log")
    yield made
    made.close()


def test_a_follower_that_is_several_rotations_behind_misses_no_line(writer: LogWriter) -> None:
    async def scenario() -> None:
        writer.write(3)
        reading = read_file(writer.path, LogOptions(follow=True), may_grow=lambda: True)
        received = await anext(reading)
        for _ in range(4):  # the follower does not read in the meantime
            writer.write(2)
            writer.rotate()
        writer.write()
        while received.count(b"\n") < writer.written:
            received += await asyncio.wait_for(anext(reading), 5)
        assert received == text(*range(writer.written))

    asyncio.run(scenario())


def test_a_follower_whose_file_is_removed_continues_with_the_oldest_file(writer: LogWriter) -> None:
    async def scenario() -> None:
        writer.write(3)
        reading = read_file(writer.path, LogOptions(follow=True), may_grow=lambda: True)
        received = await anext(reading)
        for _ in range(3):
            writer.rotate()
            writer.write(5)
        writer.remove_oldest()  # the file that the follower reads
        writer.remove_oldest()  # 3 to 7
        while not received.endswith(text(writer.written - 1)):
            received += await asyncio.wait_for(anext(reading), 5)
        assert received == text(0, 1, 2, *range(8, 18))

    asyncio.run(scenario())


def test_lines_written_after_the_rename_are_read(writer: LogWriter) -> None:
    async def scenario() -> None:
        follower = Follower(writer.path)
        following = asyncio.create_task(follower.run())
        writer.write()
        await follower.until(lambda: follower.received == text(0))
        writer.rename_current()
        writer.write()  # to the old file
        await follower.until(lambda: follower.received == text(0, 1))
        writer.write()
        writer.reopen()
        writer.write()
        await follower.until(lambda: follower.received == text(0, 1, 2, 3))
        following.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("rotated_before", [False, True])
def test_lines_written_just_before_the_new_file_are_read(writer: LogWriter, rotated_before: bool) -> None:
    async def scenario() -> None:
        writer.write()
        if rotated_before:
            writer.rename_current()
        trail = LogFollower(writer.path)
        assert await trail.open_first(LogOptions(follow=True))
        assert [block async for block in trail.blocks()] == [line("0")]
        writer.write()  # after the last read
        if not rotated_before:
            writer.rename_current()
        writer.reopen()
        assert trail.has_more()
        assert [block async for block in trail.blocks()] == [line("1")]
        writer.write()
        assert trail.has_more()
        assert [block async for block in trail.blocks()] == [line("2")]
        assert not trail.has_more()
        trail.close()

    asyncio.run(scenario())


def test_a_follower_may_start_in_the_middle_of_a_rotation(writer: LogWriter) -> None:
    async def scenario() -> None:
        writer.write(2)
        writer.rename_current()
        follower = Follower(writer.path)
        following = asyncio.create_task(follower.run())
        await follower.until(lambda: follower.received == text(0, 1))
        writer.write()
        await follower.until(lambda: follower.received == text(0, 1, 2))
        writer.write()
        writer.reopen()
        writer.write()
        await follower.until(lambda: follower.received == text(0, 1, 2, 3, 4))
        following.cancel()

    asyncio.run(scenario())


def test_reading_without_follow_ends_even_if_the_log_grows_fast(writer: LogWriter) -> None:
    async def scenario() -> None:
        writer.write(3)
        writer.rotate()
        writer.write(3)
        received = b""
        async for data in read_file(writer.path, LogOptions(), may_grow=lambda: True):
            received += data
            writer.write(3)
            writer.rotate()
            assert writer.written < 100
        assert text(*range(writer.written)).startswith(received)
        assert received.startswith(text(0, 1, 2, 3, 4, 5))

    asyncio.run(scenario())


ACTIONS = st.lists(st.sampled_from(["write", "rotate", "move", "reopen", "look"]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.integers(0, 3))
def test_every_line_is_read_once_for_any_order_of_events(actions: list[str], tail: int) -> None:
    async def scenario(directory: Path) -> None:
        writer = LogWriter(directory / "0.log")
        writer.write(4)
        writer.rotate()
        writer.write(tail)  # the follower requests more lines than the current file has
        may_grow, received = True, b""
        options = LogOptions(follow=True, tail_lines=tail + 2)
        reading = read_file(writer.path, options, may_grow=lambda: may_grow)
        received += await anext(reading)
        moved = False
        for action in actions:
            match action:
                case "write":
                    writer.write()
                case "move" | "rotate" if not moved:
                    writer.rename_current()
                    moved = True
                case "reopen" if moved:
                    writer.reopen()
                    moved = False
                case "look" if received.count(b"\n") < writer.written - 2:
                    received += await asyncio.wait_for(anext(reading), 5)
            if action == "rotate" and moved:
                writer.reopen()
                moved = False
        may_grow = False
        async for data in reading:
            received += data
        writer.close()
        assert received == text(*range(2, writer.written))

    with TemporaryDirectory(prefix="podkeeper-test-") as directory:
        asyncio.run(scenario(Path(directory)))
