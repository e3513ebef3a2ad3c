"""A container's output on its way: pace, attached readers that are slow or gone, and the end of a stream."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.runtimes.process.keeper.logs import ContainerLog
from podkeeper.runtimes.process.keeper.streams import Output, Pace, Reader
from tests.runtimes.process.manual_loop import ManualLoop

STALL_SECONDS = 10.0
ROOM = 1 << 20  # more than a pipe holds


@pytest.fixture(autouse=True)
def _closed_files() -> Iterator[None]:
    before = files_open()
    yield
    for file in files_open() - before:
        os.close(file)


def files_open() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def drained(file: int) -> bytes:
    """All that can be read now."""
    data = b""
    try:
        while piece := os.read(file, ROOM):
            data += piece
    except BlockingIOError:
        pass
    return data


# ---- pace ------------------------------------------------------------------------------------


def test_a_pace_allows_a_burst_and_then_makes_wait() -> None:
    pace = Pace(rate=1, burst=100)
    assert pace.spend(60) == 0
    assert pace.spend(40) == 0
    assert pace.spend(30) == pytest.approx(30, abs=2)
    assert pace.spend(30) == pytest.approx(60, abs=2)


def test_a_pace_saves_no_more_than_its_burst() -> None:
    pace = Pace(rate=1e12, burst=100)
    assert pace.spend(100) == 0
    assert pace.spend(100) == 0  # filled again meanwhile
    assert pace.spend(10**15 + 100) == pytest.approx(1000)


def test_the_usual_pace_is_64_mebibytes_a_second() -> None:
    pace = Pace()
    assert pace.spend(64 * 2**20) == 0
    assert pace.spend(640 * 2**20) == pytest.approx(10, abs=0.5)


# ---- readers ---------------------------------------------------------------------------------


class Attached:
    """A reader over a pipe."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.moves = 0
        self.file, writing = pipe()
        self.writing = writing
        self.reader = Reader(self.loop, writing, self._moved)

    def _moved(self) -> None:
        self.moves += 1

    def fill(self) -> bytes:
        data = b"x" * ROOM
        self.reader.put(data)
        return data


def test_what_fits_is_handed_on_at_once() -> None:
    attached = Attached()
    attached.reader.put(b"hello ")
    attached.reader.put(b"world")
    assert drained(attached.file) == b"hello world"
    assert (attached.reader.full, attached.reader.gone, attached.moves) == (False, False, 2)
    assert (attached.loop.timers, attached.loop.writable) == ([], {})


def test_what_does_not_fit_waits_until_the_reader_has_room() -> None:
    attached = Attached()
    data = attached.fill()
    assert (attached.reader.full, attached.moves, attached.loop.timers) == (True, 0, [STALL_SECONDS])
    attached.reader.put(b"end")
    assert attached.loop.timers == [STALL_SECONDS]
    got = b""
    while attached.loop.writable:
        got += drained(attached.file)
        attached.loop.writable[attached.writing]()
    got += drained(attached.file)
    assert got == data + b"end"
    assert (attached.reader.full, attached.moves, attached.loop.timers) == (False, 1, [])


def test_a_reader_that_moves_has_its_time_again_one_that_does_not_is_let_go() -> None:
    attached = Attached()
    attached.fill()
    attached.loop.writable[attached.writing]()  # still no room: the first timer stays
    assert (attached.loop.timers, attached.loop.asked) == ([STALL_SECONDS], 1)
    drained(attached.file)
    attached.loop.writable[attached.writing]()
    assert (attached.loop.timers, attached.loop.asked, attached.reader.full) == ([STALL_SECONDS], 2, True)
    attached.loop.ring()
    assert (attached.reader.gone, attached.reader.full, attached.moves) == (True, False, 1)
    assert (attached.loop.timers, attached.loop.writable) == ([], {})
    assert attached.writing not in files_open()
    attached.reader.put(b"more")
    attached.reader.end()
    assert attached.moves == 1


def test_a_reader_that_is_gone_is_let_go_of_at_the_next_word() -> None:
    attached = Attached()
    os.close(attached.file)
    attached.reader.put(b"x")
    assert (attached.reader.gone, attached.moves, attached.writing in files_open()) == (True, 1, False)


def test_the_end_closes_the_file_after_what_is_on_its_way() -> None:
    attached = Attached()
    attached.reader.end()
    assert (attached.reader.gone, attached.moves) == (True, 1)
    attached = Attached()
    data = attached.fill()
    attached.reader.end()
    assert not attached.reader.gone
    got = b""
    while attached.loop.writable:
        got += drained(attached.file)
        attached.loop.writable[attached.writing]()
    got += drained(attached.file)
    assert (got, attached.reader.gone, attached.loop.timers) == (data, True, [])
    assert os.read(attached.file, 1) == b""


# ---- outputs ---------------------------------------------------------------------------------


class Stream:
    """One output of a container with its log."""

    def __init__(self, directory: Path, pace: Pace | None = None) -> None:
        self.loop = ManualLoop()
        self.path = directory / "c" / "0.log"
        log = ContainerLog(str(self.path))
        log.begin()
        reading, self.writing = os.pipe()
        self.file = reading
        self.output = Output(self.loop, reading, "stdout", log, pace or Pace())

    def attach(self) -> int:
        """Follow. Returns where the output comes."""
        file, writing = pipe()
        self.output.attach(writing)
        return file

    def turn(self) -> None:
        self.loop.readable[self.file]()

    def lines(self) -> list[bytes]:
        return [line.split(b" ", 1)[1] for line in self.path.read_bytes().splitlines()]


def test_output_goes_to_the_log_and_to_all_who_follow(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    followers = [stream.attach(), stream.attach()]
    stream.turn()  # nothing there: nothing blocks
    os.write(stream.writing, b"one\ntw")
    stream.turn()
    os.write(stream.writing, b"o\nthree")
    stream.turn()
    assert stream.lines() == [b"stdout F one", b"stdout F two"]
    assert [drained(file) for file in followers] == [b"one\ntwo\nthree"] * 2
    os.close(stream.writing)
    stream.turn()
    assert stream.lines()[2:] == [b"stdout P three"]
    assert [os.read(file, 1) for file in followers] == [b"", b""]
    assert (stream.output.file, stream.loop.readable, stream.file in files_open()) == (-1, {}, False)
    stream.output.finish()
    assert len(stream.lines()) == 3


def test_one_read_takes_at_most_64_kibibytes(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    follower = stream.attach()
    os.write(stream.writing, b"x" * 60_000)
    stream.turn()
    assert len(drained(follower)) == 60_000
    assert os.write(stream.writing, b"x" * 65_536) == 65_536
    stream.turn()
    assert len(drained(follower)) == 65_536


def test_a_full_reader_holds_the_stream_up_until_it_has_room_or_is_gone(tmp_path: Path) -> None:
    for gone in (False, True):
        stream = Stream(tmp_path)
        follower = stream.attach()
        while stream.loop.readable:
            os.write(stream.writing, b"x" * 50_000)
            stream.turn()
        (writable,) = stream.loop.writable.values()
        if gone:
            os.close(follower)
        else:
            drained(follower)
        writable()
        assert (list(stream.loop.readable), stream.loop.timers) == ([stream.file], [])
        stream.turn()


def test_who_writes_faster_than_its_pace_is_not_read_for_a_while(tmp_path: Path) -> None:
    stream = Stream(tmp_path, Pace(rate=1, burst=1000))
    os.write(stream.writing, b"a" * 900 + b"\n")
    stream.turn()
    assert (stream.loop.timers, list(stream.loop.readable)) == ([], [stream.file])
    os.write(stream.writing, b"b" * 200 + b"\n")
    stream.turn()
    (pause,) = stream.loop.timers
    written = stream.path.stat().st_size
    assert pause == pytest.approx(written - 1000, abs=2)
    assert stream.loop.readable == {}
    stream.attach()
    assert stream.loop.readable == {}
    stream.loop.ring()
    assert (list(stream.loop.readable), stream.loop.timers) == ([stream.file], [])


def test_a_reader_that_has_room_again_does_not_end_a_pause(tmp_path: Path) -> None:
    stream = Stream(tmp_path, Pace(rate=1, burst=0))
    follower = stream.attach()
    while not stream.loop.writable:
        if stream.loop.timers:
            stream.loop.ring()
        os.write(stream.writing, b"x" * 50_000)
        stream.turn()
    drained(follower)
    (writable,) = stream.loop.writable.values()
    writable()
    assert (stream.loop.readable, len(stream.loop.timers)) == ({}, 1)
    stream.loop.ring()
    assert list(stream.loop.readable) == [stream.file]


def test_a_stream_that_ends_while_it_pauses_leaves_no_timer(tmp_path: Path) -> None:
    stream = Stream(tmp_path, Pace(rate=1, burst=0))
    os.write(stream.writing, b"a\n")
    stream.turn()
    os.write(stream.writing, b"b\n")
    stream.output.finish()
    assert stream.lines() == [b"stdout F a", b"stdout F b"]
    assert (stream.loop.timers, stream.loop.readable, stream.output.file) == ([], {}, -1)


def test_at_the_end_what_lies_in_the_pipe_is_taken_and_no_more(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    follower = stream.attach()
    os.write(stream.writing, b"last\n")
    stream.output.finish()  # the writer is still there: its end is not waited for
    assert stream.lines() == [b"stdout F last"]
    assert drained(follower) == b"last\n"


def test_a_writer_that_never_ends_is_not_listened_to_for_ever() -> None:
    loop = ManualLoop()
    endless = os.open("/dev/zero", os.O_RDONLY)
    output = Output(loop, endless, "stdout", ContainerLog(""), Pace())
    file, writing = pipe()
    output.attach(writing)
    output.finish()
    count = len(drained(file))
    while loop.writable:
        loop.writable[writing]()
        count += len(drained(file))
    assert (count, os.read(file, 1), output.file) == (1 << 20, b"", -1)


def test_a_terminal_whose_last_user_closed_it_has_ended() -> None:
    loop = ManualLoop()
    master, terminal = os.openpty()
    output = Output(loop, master, "stdout", ContainerLog(""), Pace())
    os.close(terminal)
    loop.readable[master]()
    assert (output.file, loop.readable) == (-1, {})
