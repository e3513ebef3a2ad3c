"""A rotated log is read as one: from its oldest part, from its last lines, and on through all that is made of it."""

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.app.local.log_trail import LogTrail
from podkeeper.app.local.logs import read_file
from podkeeper.rules.logline import UnixNanoseconds
from podkeeper.rules.logread import LogOptions
from tests.app.local.test_logs import Follower, line, read

TEN = 1_794_736_800 * 10**9  # 10:00:00 of the day the lines are from


def lines(*numbers: int) -> bytes:
    return b"".join(line(str(number), number) for number in numbers)


def told(*numbers: int) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of nine lines in four files, and what is none of it beside it."""
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


EVERYTHING = told(1, 2, 3, 4, 5, 6, 7, 8, 9)
CASES: dict[str, tuple[dict[str, Any], bytes]] = {
    "all of it": ({}, EVERYTHING),
    "the last line": ({"tail_lines": 1}, told(9)),
    "lines of the part before": ({"tail_lines": 2}, told(8, 9)),
    "all lines of it": ({"tail_lines": 3}, told(7, 8, 9)),
    "lines of a compressed part": ({"tail_lines": 4}, told(6, 7, 8, 9)),
    "lines of the oldest part": ({"tail_lines": 8}, told(2, 3, 4, 5, 6, 7, 8, 9)),
    "exactly as many as there are": ({"tail_lines": 9}, EVERYTHING),
    "more than there are": ({"tail_lines": 99}, EVERYTHING),
    "none": ({"tail_lines": 0}, b""),
    "what is newer": ({"since": UnixNanoseconds(TEN + 5 * 10**9)}, told(5, 6, 7, 8, 9)),
    "what will be": ({"since": UnixNanoseconds(TEN * 2)}, b""),
    "so many bytes": ({"limit_bytes": 7}, EVERYTHING[:7]),
}


@pytest.mark.parametrize("options, expected", CASES.values(), ids=CASES.keys())
def test_what_is_wanted_of_a_rotated_log(path: Path, options: dict[str, Any], expected: bytes) -> None:
    assert read(path, **options) == expected


def test_a_log_whose_writer_is_gone_ends_with_its_newest_part(path: Path) -> None:
    path.unlink()
    assert read(path) == told(1, 2, 3, 4, 5, 6, 7, 8)
    assert read(path, tail_lines=1) == told(8)
    assert read(path, tail_lines=3) == told(6, 7, 8)


def test_a_damaged_part_costs_nothing_but_itself(path: Path) -> None:
    whole = path.with_name("0.log.20261115-100003.gz").read_bytes()
    path.with_name("0.log.20261115-100003.gz").write_bytes(whole[:-9])
    assert read(path).endswith(told(4, 5, 6, 7, 8, 9))
    assert read(path, tail_lines=7).endswith(told(4, 5, 6, 7, 8, 9))


class Keeper:
    """Who writes a log and rotates it, by hand."""

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

    def move(self) -> None:
        """The first half of a rotation."""
        self._parts.append(self.path.rename(f"{self.path}.20261115-{next(self._stamps):06}"))

    def reopen(self) -> None:
        """The second one; then the part before is compressed."""
        self._file.close()
        self._file = self.path.open("ab", buffering=0)
        for index, part in enumerate(self._parts[:-1]):
            if part.suffix != ".gz":
                packed = part.with_name(f"{part.name}.gz")
                packed.write_bytes(gzip.compress(part.read_bytes()))
                part.unlink()
                self._parts[index] = packed

    def rotate(self) -> None:
        self.move()
        self.reopen()

    def forget_oldest(self) -> None:
        self._parts.pop(0).unlink()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path / "0.log")
    yield made
    made.close()


def test_a_follower_that_is_several_rotations_behind_misses_nothing(keeper: Keeper) -> None:
    async def scenario() -> None:
        keeper.write(3)
        reading = read_file(keeper.path, LogOptions(follow=True), goes_on=lambda: True)
        heard = await anext(reading)
        for _ in range(4):  # it does not come to look meanwhile
            keeper.write(2)
            keeper.rotate()
        keeper.write()
        while heard.count(b"\n") < keeper.written:
            heard += await asyncio.wait_for(anext(reading), 5)
        assert heard == told(*range(keeper.written))

    asyncio.run(scenario())


def test_a_follower_whose_part_is_gone_goes_on_with_the_oldest_there_is(keeper: Keeper) -> None:
    async def scenario() -> None:
        keeper.write(3)
        reading = read_file(keeper.path, LogOptions(follow=True), goes_on=lambda: True)
        heard = await anext(reading)
        for _ in range(3):
            keeper.rotate()
            keeper.write(5)
        keeper.forget_oldest()  # what the follower has
        keeper.forget_oldest()  # 3 to 7
        while not heard.endswith(told(keeper.written - 1)):
            heard += await asyncio.wait_for(anext(reading), 5)
        assert heard == told(0, 1, 2, *range(8, 18))

    asyncio.run(scenario())


def test_last_words_to_a_part_that_has_its_new_name_are_heard(keeper: Keeper) -> None:
    async def scenario() -> None:
        follower = Follower(keeper.path)
        following = asyncio.create_task(follower.run())
        keeper.write()
        await follower.until(lambda: follower.heard == told(0))
        keeper.move()
        keeper.write()  # to the old file
        await follower.until(lambda: follower.heard == told(0, 1))
        keeper.write()
        keeper.reopen()
        keeper.write()
        await follower.until(lambda: follower.heard == told(0, 1, 2, 3))
        following.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("rotated_before", [False, True])
def test_last_words_that_come_just_before_the_new_file_are_heard(keeper: Keeper, rotated_before: bool) -> None:
    async def scenario() -> None:
        keeper.write()
        if rotated_before:
            keeper.move()
        trail = LogTrail(keeper.path)
        assert await trail.open_first(LogOptions(follow=True))
        assert [block async for block in trail.blocks()] == [line("0")]
        keeper.write()  # after the last look
        if not rotated_before:
            keeper.move()
        keeper.reopen()
        assert trail.moved_on()
        assert [block async for block in trail.blocks()] == [line("1")]
        keeper.write()
        assert trail.moved_on()
        assert [block async for block in trail.blocks()] == [line("2")]
        assert not trail.moved_on()
        trail.close()

    asyncio.run(scenario())


def test_who_comes_in_the_middle_of_a_rotation_follows_all_the_same(keeper: Keeper) -> None:
    async def scenario() -> None:
        keeper.write(2)
        keeper.move()
        follower = Follower(keeper.path)
        following = asyncio.create_task(follower.run())
        await follower.until(lambda: follower.heard == told(0, 1))
        keeper.write()
        await follower.until(lambda: follower.heard == told(0, 1, 2))
        keeper.write()
        keeper.reopen()
        keeper.write()
        await follower.until(lambda: follower.heard == told(0, 1, 2, 3, 4))
        following.cancel()

    asyncio.run(scenario())


def test_who_does_not_follow_comes_to_an_end_however_fast_the_log_grows(keeper: Keeper) -> None:
    async def scenario() -> None:
        keeper.write(3)
        keeper.rotate()
        keeper.write(3)
        heard = b""
        async for data in read_file(keeper.path, LogOptions(), goes_on=lambda: True):
            heard += data
            keeper.write(3)
            keeper.rotate()
            assert keeper.written < 100
        assert told(*range(keeper.written)).startswith(heard)
        assert heard.startswith(told(0, 1, 2, 3, 4, 5))

    asyncio.run(scenario())


DEEDS = st.lists(st.sampled_from(["write", "rotate", "move", "reopen", "look"]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(DEEDS, st.integers(0, 3))
def test_whatever_happens_in_whatever_order_every_line_is_told_once(deeds: list[str], tail: int) -> None:
    async def scenario(directory: Path) -> None:
        keeper = Keeper(directory / "0.log")
        keeper.write(4)
        keeper.rotate()
        keeper.write(tail)  # the follower wants more lines than stand in the file that is written now
        goes_on, heard = True, b""
        options = LogOptions(follow=True, tail_lines=tail + 2)
        reading = read_file(keeper.path, options, goes_on=lambda: goes_on)
        heard += await anext(reading)
        moved = False
        for deed in deeds:
            match deed:
                case "write":
                    keeper.write()
                case "move" | "rotate" if not moved:
                    keeper.move()
                    moved = True
                case "reopen" if moved:
                    keeper.reopen()
                    moved = False
                case "look" if heard.count(b"\n") < keeper.written - 2:
                    heard += await asyncio.wait_for(anext(reading), 5)
            if deed == "rotate" and moved:
                keeper.reopen()
                moved = False
        goes_on = False
        async for data in reading:
            heard += data
        keeper.close()
        assert heard == told(*range(2, keeper.written))

    with TemporaryDirectory(prefix="podkeeper-test-") as directory:
        asyncio.run(scenario(Path(directory)))
