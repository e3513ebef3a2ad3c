"""The writer of container logs: splitting output into lines, files, and lines that `logline` parses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.linux.container_log import MAX_PIECE_BYTES, ContainerLog, Timestamps, log_lines
from podkeeper.linux.logline import LogTime, UnixNanoseconds, parse_cri_line

AT = 1_475_713_029_669_794_202
LONG = b"x" * MAX_PIECE_BYTES


def split(pending: bytes, more: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Return the contents of the lines that `log_lines` writes, and the incomplete line that it keeps."""
    time = LogTime(UnixNanoseconds(AT))
    written, kept = log_lines(f"{time} stdout ".encode(), pending, more)
    lines = [parse_cri_line(line + b"\n") for line in written.split(b"\n")[:-1]]
    assert {(line.time, line.stream) for line in lines} <= {(time, "stdout")}
    return tuple(line.content for line in lines), kept


SPLITS = {
    "whole lines": (b"", b"a\nb\n", (b"a\n", b"b\n"), b""),
    "an incomplete line is kept": (b"", b"a\nb", (b"a\n",), b"b"),
    "and completed later": (b"b", b"c\n", (b"bc\n",), b""),
    "empty lines": (b"", b"\n\n", (b"\n", b"\n"), b""),
    "a line of the maximum length is one line": (b"", LONG + b"\n", (LONG + b"\n",), b""),
    "a longer line is split": (b"", LONG + b"y\n", (LONG, b"y\n"), b""),
    "an incomplete line of the maximum length is kept": (b"", LONG, (), LONG),
    "a longer incomplete line is split": (LONG, b"y", (LONG,), b"y"),
}


@pytest.mark.parametrize("pending, more, pieces, kept", SPLITS.values(), ids=SPLITS.keys())
def test_output_is_split_into_lines(pending: bytes, more: bytes, pieces: tuple[bytes, ...], kept: bytes) -> None:
    assert split(pending, more) == (pieces, kept)


chunks = st.lists(
    st.binary(max_size=20)
    | st.sampled_from([b"", b"\n", b"line\n", b"two\nlines", LONG, LONG + b"y"])
    | st.builds(lambda n, end: b"z" * n + end, st.integers(0, 40_000), st.sampled_from([b"", b"\n"])),
    max_size=8,
)


@given(chunks)
def test_the_joined_lines_are_the_output(output: list[bytes]) -> None:
    written, pending = list[bytes](), b""
    for chunk in output:
        pieces, pending = split(pending, chunk)
        written += pieces
        assert len(pending) <= MAX_PIECE_BYTES
    written += [pending] if pending else []
    assert b"".join(written) == b"".join(output)
    assert all(piece and len(piece.removesuffix(b"\n")) <= MAX_PIECE_BYTES for piece in written)
    assert all(b"\n" not in piece[:-1] for piece in written)


@given(chunks)
def test_the_size_of_chunks_does_not_change_the_lines(output: list[bytes]) -> None:
    written, pending = list[bytes](), b""
    for chunk in output:
        pieces, pending = split(pending, chunk)
        written += pieces
    assert (tuple(written), pending) == split(b"", b"".join(output))


@pytest.mark.parametrize("nanoseconds", [0, 1, AT, 999_999_999, 4_102_444_800_000_000_000])
def test_times_are_those_of_the_log_format(nanoseconds: int) -> None:
    assert Timestamps().at(nanoseconds) == str(LogTime(UnixNanoseconds(nanoseconds)))


def test_an_incomplete_line_is_written_when_the_stream_ends(tmp_path: Path) -> None:
    log = ContainerLog(str(tmp_path / "c" / "0.log"))
    log.open()
    log.write("stdout", b"whole\nhalf")
    log.write("stderr", b"other")
    log.finish("stdout")
    log.finish("stderr")
    log.finish("stdout")
    log.close()
    lines = [parse_cri_line(line) for line in (tmp_path / "c" / "0.log").read_bytes().splitlines(keepends=True)]
    assert [(line.stream, line.content) for line in lines] == [
        ("stdout", b"whole\n"),
        ("stdout", b"half"),
        ("stderr", b"other"),
    ]


def test_a_reopened_log_continues_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = ContainerLog(str(path))
    log.open()
    log.write("stdout", b"old\n")
    path.rename(tmp_path / "0.log.1")
    log.open()
    log.write("stdout", b"new\n")
    log.close()
    assert path.read_bytes().endswith(b"stdout F new\n")
    assert (tmp_path / "0.log.1").read_bytes().endswith(b"stdout F old\n")


def test_a_log_that_cannot_be_reopened_continues_in_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = ContainerLog(str(path))
    log.open()
    path.rename(tmp_path / "0.log.1")
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        log.open()
    log.write("stdout", b"more\n")
    log.close()
    assert (tmp_path / "0.log.1").read_bytes().endswith(b"stdout F more\n")


def test_a_new_log_removes_the_logs_of_an_earlier_pod_with_the_same_uid(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    directory.mkdir()
    for name in ("0.log", "0.log.20261115-100000.gz", "0.log.20261115-100001", "10.log", "1.log", "0.logs"):
        (directory / name).write_text("earlier pod")
    log = ContainerLog(str(directory / "0.log"))
    log.begin()
    log.write("stdout", b"new\n")
    log.close()
    assert (directory / "0.log").read_bytes().endswith(b"stdout F new\n")
    assert b"earlier" not in (directory / "0.log").read_bytes()
    assert sorted(path.name for path in directory.iterdir()) == ["0.log", "0.logs", "1.log", "10.log"]


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "passwd"
    target.write_text("root\n")
    log = ContainerLog(str(tmp_path / "0.log"))
    (tmp_path / "0.log").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        log.open()
    assert target.read_text() == "root\n"


def test_a_log_without_a_path_drops_its_output() -> None:
    log = ContainerLog("")
    log.begin()
    assert log.write("stdout", b"lost\n") == 0


def test_output_that_a_full_disk_drops_counts_as_written() -> None:
    """Otherwise the rate limit would not slow down a container that fills the disk."""
    log = ContainerLog("/dev/full")
    log.open()
    line = len("2016-10-06T00:17:09.669794202Z stdout F lost\n")
    assert [log.write("stdout", b"lost\n"), log.write("stdout", b"lost\nlost\n")] == [line, 2 * line]
    log.close()
