"""Termination messages: from the file of the container, or from the end of its log."""

import os
from pathlib import Path

import pytest

from podkeeper.linux.termination import termination_message


def line(content: bytes, tag: bytes = b"F") -> bytes:
    return b"2026-01-01T00:00:00.000000000Z stdout " + tag + b" " + content + b"\n"


MESSAGES: dict[str, tuple[bytes | None, bytes | None, bool, str]] = {
    "the file": (b"bye", b"", True, "bye"),
    "its last 4096 bytes": (b"x" + b"y" * 4096, None, False, "y" * 4096),
    "no file": (None, line(b"logged"), True, "logged\n"),
    "an empty file": (b"", line(b"logged"), True, "logged\n"),
    "no fallback to the log": (b"", line(b"logged"), False, ""),
    "parts of a line are joined": (b"", line(b"a", b"P") + line(b"b"), True, "ab\n"),
    "the last 80 lines": (
        b"",
        b"".join(line(b"%d" % n) for n in range(90)),
        True,
        "".join(f"{n}\n" for n in range(10, 90)),
    ),
    "the last 2048 bytes": (b"", line(b"x" * 3000), True, "x" * 2047 + "\n"),
    "a line whose beginning is cut off": (b"", line(b"x" * 65530) + line(b"end"), True, "end\n"),
    "a log of exactly the length that is read": (
        b"",
        line(b"first") + line(b"x" * (65536 - len(line(b"first") + line(b"") + line(b"end"))), b"P") + line(b"end"),
        True,
        ("x" * 2048 + "end\n")[-2048:],
    ),
    "a short log of exactly the length that is read": (
        b"",
        b"0" * (65536 - len(line(b"first")[1:])) + line(b"first")[1:],
        True,
        "first\n",
    ),
    "an incomplete last line": (b"", line(b"whole") + b"2026 stdout F half", True, "whole\n"),
    "a malformed line in the log": (b"", b"nonsense\n", True, "\n"),
    "bytes that are not UTF-8": (b"\xff", None, False, "\ufffd"),
    "no log": (b"", None, True, "Error on reading termination message from logs: No such file or directory"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_termination_message(tmp_path: Path, name: str) -> None:
    file, log, fallback_to_logs, expected = MESSAGES[name]
    for path, content in (("termination", file), ("log", log)):
        if content is not None:
            (tmp_path / path).write_bytes(content)
    assert (
        termination_message(str(tmp_path / "termination"), str(tmp_path / "log"), fallback_to_logs=fallback_to_logs)
        == expected
    )


def test_links_are_not_followed_and_pipes_do_not_block(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    (tmp_path / "link").symlink_to(secret)
    text = "Error on reading termination log"
    assert termination_message(str(tmp_path / "link"), "", fallback_to_logs=True).startswith(
        f"{text} {tmp_path}/link: "
    )
    os.mkfifo(tmp_path / "pipe")
    assert termination_message(str(tmp_path / "pipe"), "", fallback_to_logs=False).startswith(
        f"{text} {tmp_path}/pipe: "
    )
    assert termination_message(str(tmp_path / "none"), "", fallback_to_logs=True) == ""


LOG = b"".join(b"2016-10-06T00:17:09.669794202Z stdout F line %d\n" % number for number in range(100))
LONG = b"2016-10-06T00:17:09.669794202Z stdout P " + b"z" * 5000 + b"\n" + LOG[:49]
NO_LOG = "Error on reading termination message from logs: No such file or directory"
MORE_MESSAGES: dict[str, tuple[bytes | None, bytes | None, bool, str]] = {
    "the file has priority": (b"bye", LOG, True, "bye"),
    "only the end of a long file": (b"a" * 5000, None, False, "a" * 4096),
    "an empty file without fallback": (b"", LOG, False, ""),
    "no file without fallback": (None, LOG, False, ""),
    "bytes that are not UTF-8": (b"\xff!", None, False, "\N{REPLACEMENT CHARACTER}!"),
    "the end of the log": (b"", LOG, True, "".join(f"line {number}\n" for number in range(20, 100))),
    "at most 2048 bytes of the log": (b"", LONG, True, "z" * (2048 - 7) + "line 0\n"),
    "a missing log": (b"", None, True, NO_LOG),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "log", "fallback_to_logs", "expected"), MORE_MESSAGES.values(), ids=MORE_MESSAGES.keys()
)
def test_termination_message_of_longer_logs(
    tmp_path: Path, file: bytes | None, log: bytes | None, fallback_to_logs: bool, expected: str
) -> None:
    for name, content in (("termination", file), ("log", log)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    assert (
        termination_message(str(tmp_path / "termination"), str(tmp_path / "log"), fallback_to_logs=fallback_to_logs)
        == expected
    )
