"""The keeper's log writer, held against the rules of the log format; and the last words of a container."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.logline import LogLine, LogTime, UnixNanoseconds, cut_output, format_cri_line, parse_cri_line
from podkeeper.runtimes.process.keeper.logs import MAX_PIECE_BYTES, ContainerLog, Stamp, log_lines
from podkeeper.runtimes.process.keeper.termination import last_words
from tests.runtimes.process.home import Scene, home_directory, opened, remove_all

AT = 1_475_713_029_669_794_202
PIECES = st.sampled_from(
    [b"", b"\n", b"a", b"line\n", b"two\nlines", b"x" * MAX_PIECE_BYTES, b"y" * (MAX_PIECE_BYTES + 1)]
)


@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8))
def test_output_is_cut_and_written_as_the_rules_say(chunks: list[bytes]) -> None:
    time = LogTime(UnixNanoseconds(AT))
    kept, kept_by_rules = b"", b""
    for chunk in chunks:
        pieces, kept_by_rules = cut_output(kept_by_rules, chunk)
        written, kept = log_lines(f"{time} stdout ".encode(), kept, chunk)
        assert written == b"".join(format_cri_line(LogLine(time, "stdout", piece)) for piece in pieces)
        assert kept == kept_by_rules


@pytest.mark.parametrize("nanoseconds", [0, 1, AT, 999_999_999, 4_102_444_800_000_000_000])
def test_times_are_written_as_the_rules_say(nanoseconds: int) -> None:
    assert Stamp().at(nanoseconds) == str(LogTime(UnixNanoseconds(nanoseconds)))


def test_a_line_without_an_end_is_a_piece_when_the_stream_ends(tmp_path: Path) -> None:
    log = ContainerLog(str(tmp_path / "c" / "0.log"))
    log.open()
    log.write("stdout", b"whole\nhalf")
    log.write("stderr", b"other")
    log.finish("stdout")
    log.finish("stderr")
    log.close()
    lines = [parse_cri_line(line) for line in (tmp_path / "c" / "0.log").read_bytes().splitlines(keepends=True)]
    assert [(line.stream, line.content) for line in lines] == [
        ("stdout", b"whole\n"),
        ("stdout", b"half"),
        ("stderr", b"other"),
    ]


def test_a_reopened_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
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


def test_a_log_that_cannot_be_reopened_goes_on_in_the_old_file(tmp_path: Path) -> None:
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


def test_a_log_begins_without_what_a_pod_of_the_same_uid_wrote_before(tmp_path: Path) -> None:
    home = tmp_path / "c"
    home.mkdir()
    for name in ("0.log", "0.log.20261115-100000.gz", "0.log.20261115-100001", "10.log", "1.log"):
        (home / name).write_text("former life")
    log = ContainerLog(str(home / "0.log"))
    log.begin()
    log.write("stdout", b"new\n")
    log.close()
    assert (home / "0.log").read_bytes().endswith(b"stdout F new\n")
    assert b"former" not in (home / "0.log").read_bytes()
    assert sorted(path.name for path in home.iterdir()) == ["0.log", "1.log", "10.log"]


def test_a_log_without_a_path_begins_nowhere() -> None:
    log = ContainerLog("")
    log.begin()
    assert log.write("stdout", b"lost\n") == 0


LOG = b"".join(b"2016-10-06T00:17:09.669794202Z stdout F line %d\n" % number for number in range(100))
LONG = b"2016-10-06T00:17:09.669794202Z stdout P " + b"z" * 5000 + b"\n" + LOG[:49]
NO_LOG = "Error on reading termination message from logs: No such file or directory"
WORDS: dict[str, tuple[bytes | None, bytes | None, bool, str]] = {
    "what it wrote": (b"bye", LOG, True, "bye"),
    "only the end of a long text": (b"a" * 5000, None, False, "a" * 4096),
    "nothing": (b"", LOG, False, ""),
    "no file": (None, LOG, False, ""),
    "bytes that are no text": (b"\xff!", None, False, "\N{REPLACEMENT CHARACTER}!"),
    "the end of the log": (b"", LOG, True, "".join(f"line {number}\n" for number in range(20, 100))),
    "no more of the log than fits": (b"", LONG, True, "z" * (2048 - 7) + "line 0\n"),
    "a log that is not there": (b"", None, True, NO_LOG),
}  # fmt: skip


@pytest.mark.parametrize(("file", "log", "ask_log", "expected"), WORDS.values(), ids=WORDS.keys())
def test_last_words(tmp_path: Path, file: bytes | None, log: bytes | None, ask_log: bool, expected: str) -> None:
    for name, content in (("termination", file), ("log", log)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    assert last_words(str(tmp_path / "termination"), str(tmp_path / "log"), ask_log=ask_log) == expected


def test_a_keeper_from_before_somebody_thought_of_a_thing_says_that_it_does_not_know_it() -> None:
    """Keepers outlive the agent, so an agent may be younger than they are: a rotation it refuses is taken back."""

    async def scenario() -> list[dict[str, Any]]:
        with home_directory() as root:
            async with opened(root) as runtime:
                container = await Scene(runtime).start("sleep", "3600")
                (place,) = Path(root).glob("sandboxes/*/keeper.sock")
                reader, writer = await asyncio.open_unix_connection(str(place))
                questions = [{"id": 1, "do": "sing"}, {"id": 2, "do": "reopen_log", "container": container}]
                writer.writelines(json.dumps(each).encode() + b"\n" for each in questions)
                answers = [json.loads(await asyncio.wait_for(reader.readline(), 10)) for _ in questions]
                writer.close()
                await remove_all(runtime, root)
                return answers

    refused, done = asyncio.run(scenario())
    assert (refused["id"], refused["error"]) == (1, "nobody here knows how to sing")
    assert done == {"id": 2, "ok": {}}
