"""A container's output: rate limit, slow and closed readers, end of stream."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.linux.container_log import ContainerLog
from podkeeper.runtimes.process.keeper.streams import AttachedReader, LogRateLimit, OutputStream
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
    """Read everything that is available."""
    data = b""
    try:
        while piece := os.read(file, ROOM):
            data += piece
    except BlockingIOError:
        pass
    return data


# ---- rate limit ------------------------------------------------------------------------------


def test_the_rate_limit_allows_a_burst_then_pauses() -> None:
    pace = LogRateLimit(rate=1, burst=100)
    assert pace.consume(60) == 0
    assert pace.consume(40) == 0
    assert pace.consume(30) == pytest.approx(30, abs=2)
    assert pace.consume(30) == pytest.approx(60, abs=2)


def test_the_rate_limit_saves_at_most_its_burst() -> None:
    pace = LogRateLimit(rate=1e12, burst=100)
    assert pace.consume(100) == 0
    assert pace.consume(100) == 0  # refilled meanwhile
    assert pace.consume(10**15 + 100) == pytest.approx(1000)


def test_the_default_rate_is_64_mebibytes_per_second() -> None:
    pace = LogRateLimit()
    assert pace.consume(64 * 2**20) == 0
    assert pace.consume(640 * 2**20) == pytest.approx(10, abs=0.5)


# ---- attached readers ------------------------------------------------------------------------


class ReaderHarness:
    """A reader on a pipe."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.moves = 0
        self.file, writing = pipe()
        self.writing = writing
        self.reader = AttachedReader(self.loop, writing, self._moved)

    def _moved(self) -> None:
        self.moves += 1

    def fill(self) -> bytes:
        data = b"x" * ROOM
        self.reader.put(data)
        return data


def test_data_that_fits_is_sent_at_once() -> None:
    attached = ReaderHarness()
    attached.reader.put(b"hello ")
    attached.reader.put(b"world")
    assert drained(attached.file) == b"hello world"
    assert (attached.reader.full, attached.reader.closed, attached.moves) == (False, False, 2)
    assert (attached.loop.timers, attached.loop.writable) == ([], {})


def test_data_waits_until_the_reader_has_room() -> None:
    attached = ReaderHarness()
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


def test_progress_resets_the_stall_timer_and_a_stalled_reader_is_dropped() -> None:
    attached = ReaderHarness()
    attached.fill()
    attached.loop.writable[attached.writing]()  # still no room, so the first timer stays
    assert (attached.loop.timers, attached.loop.timers_created) == ([STALL_SECONDS], 1)
    drained(attached.file)
    attached.loop.writable[attached.writing]()
    assert (attached.loop.timers, attached.loop.timers_created, attached.reader.full) == ([STALL_SECONDS], 2, True)
    attached.loop.run_timer()
    assert (attached.reader.closed, attached.reader.full, attached.moves) == (True, False, 1)
    assert (attached.loop.timers, attached.loop.writable) == ([], {})
    assert attached.writing not in files_open()
    attached.reader.put(b"more")
    attached.reader.end()
    assert attached.moves == 1


def test_a_closed_reader_is_dropped_at_the_next_write() -> None:
    attached = ReaderHarness()
    os.close(attached.file)
    attached.reader.put(b"x")
    assert (attached.reader.closed, attached.moves, attached.writing in files_open()) == (True, 1, False)


def test_end_closes_the_file_after_pending_data() -> None:
    attached = ReaderHarness()
    attached.reader.end()
    assert (attached.reader.closed, attached.moves) == (True, 1)
    attached = ReaderHarness()
    data = attached.fill()
    attached.reader.end()
    assert not attached.reader.closed
    got = b""
    while attached.loop.writable:
        got += drained(attached.file)
        attached.loop.writable[attached.writing]()
    got += drained(attached.file)
    assert (got, attached.reader.closed, attached.loop.timers) == (data, True, [])
    assert os.read(attached.file, 1) == b""


# ---- output streams --------------------------------------------------------------------------


class StreamHarness:
    """One output stream of a container and its log."""

    def __init__(self, directory: Path, pace: LogRateLimit | None = None) -> None:
        self.loop = ManualLoop()
        self.path = directory / "c" / "0.log"
        log = ContainerLog(str(self.path))
        log.begin()
        reading, self.writing = os.pipe()
        self.file = reading
        self.output = OutputStream(self.loop, reading, "stdout", log, pace or LogRateLimit())

    def attach(self) -> int:
        """Attach a reader. Return the file to read from."""
        file, writing = pipe()
        self.output.attach(writing)
        return file

    def read_once(self) -> None:
        self.loop.readable[self.file]()

    def lines(self) -> list[bytes]:
        return [line.split(b" ", 1)[1] for line in self.path.read_bytes().splitlines()]


def test_output_goes_to_the_log_and_to_all_readers(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path)
    followers = [stream.attach(), stream.attach()]
    stream.read_once()  # a read without data does not block
    os.write(stream.writing, b"one\ntw")
    stream.read_once()
    os.write(stream.writing, b"o\nthree")
    stream.read_once()
    assert stream.lines() == [b"stdout F one", b"stdout F two"]
    assert [drained(file) for file in followers] == [b"one\ntwo\nthree"] * 2
    os.close(stream.writing)
    stream.read_once()
    assert stream.lines()[2:] == [b"stdout P three"]
    assert [os.read(file, 1) for file in followers] == [b"", b""]
    assert (stream.output.file, stream.loop.readable, stream.file in files_open()) == (-1, {}, False)
    stream.output.finish()
    assert len(stream.lines()) == 3


def test_one_read_takes_at_most_64_kibibytes(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path)
    follower = stream.attach()
    os.write(stream.writing, b"x" * 60_000)
    stream.read_once()
    assert len(drained(follower)) == 60_000
    assert os.write(stream.writing, b"x" * 65_536) == 65_536
    stream.read_once()
    assert len(drained(follower)) == 65_536


def test_a_full_reader_blocks_the_stream_until_it_has_room_or_is_closed(tmp_path: Path) -> None:
    for gone in (False, True):
        stream = StreamHarness(tmp_path)
        follower = stream.attach()
        while stream.loop.readable:
            os.write(stream.writing, b"x" * 50_000)
            stream.read_once()
        (writable,) = stream.loop.writable.values()
        if gone:
            os.close(follower)
        else:
            drained(follower)
        writable()
        assert (list(stream.loop.readable), stream.loop.timers) == ([stream.file], [])
        stream.read_once()


def test_a_stream_above_the_rate_limit_pauses(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path, LogRateLimit(rate=1, burst=1000))
    os.write(stream.writing, b"a" * 900 + b"\n")
    stream.read_once()
    assert (stream.loop.timers, list(stream.loop.readable)) == ([], [stream.file])
    os.write(stream.writing, b"b" * 200 + b"\n")
    stream.read_once()
    (pause,) = stream.loop.timers
    written = stream.path.stat().st_size
    assert pause == pytest.approx(written - 1000, abs=2)
    assert stream.loop.readable == {}
    stream.attach()
    assert stream.loop.readable == {}
    stream.loop.run_timer()
    assert (list(stream.loop.readable), stream.loop.timers) == ([stream.file], [])


def test_a_reader_that_has_room_again_does_not_end_a_pause(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path, LogRateLimit(rate=1, burst=0))
    follower = stream.attach()
    while not stream.loop.writable:
        if stream.loop.timers:
            stream.loop.run_timer()
        os.write(stream.writing, b"x" * 50_000)
        stream.read_once()
    drained(follower)
    (writable,) = stream.loop.writable.values()
    writable()
    assert (stream.loop.readable, len(stream.loop.timers)) == ({}, 1)
    stream.loop.run_timer()
    assert list(stream.loop.readable) == [stream.file]


def test_a_stream_that_ends_during_a_pause_leaves_no_timer(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path, LogRateLimit(rate=1, burst=0))
    os.write(stream.writing, b"a\n")
    stream.read_once()
    os.write(stream.writing, b"b\n")
    stream.output.finish()
    assert stream.lines() == [b"stdout F a", b"stdout F b"]
    assert (stream.loop.timers, stream.loop.readable, stream.output.file) == ([], {}, -1)


def test_finish_reads_the_rest_of_the_pipe_up_to_a_limit(tmp_path: Path) -> None:
    stream = StreamHarness(tmp_path)
    follower = stream.attach()
    os.write(stream.writing, b"last\n")
    stream.output.finish()  # finish() does not wait for the writer
    assert stream.lines() == [b"stdout F last"]
    assert drained(follower) == b"last\n"


def test_finish_does_not_wait_for_a_writer_that_never_ends() -> None:
    loop = ManualLoop()
    endless = os.open("/dev/zero", os.O_RDONLY)
    output = OutputStream(loop, endless, "stdout", ContainerLog(""), LogRateLimit())
    file, writing = pipe()
    output.attach(writing)
    output.finish()
    count = len(drained(file))
    while loop.writable:
        loop.writable[writing]()
        count += len(drained(file))
    assert (count, os.read(file, 1), output.file) == (1 << 20, b"", -1)


def test_a_terminal_closed_by_its_last_user_has_ended() -> None:
    loop = ManualLoop()
    master, terminal = os.openpty()
    output = OutputStream(loop, master, "stdout", ContainerLog(""), LogRateLimit())
    os.close(terminal)
    loop.readable[master]()
    assert (output.file, loop.readable) == (-1, {})
