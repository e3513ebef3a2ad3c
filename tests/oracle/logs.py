"""Replays of the recorded log tables: one line, and whole files with options."""

from podkeeper.linux.logline import ZERO_TIME, BadLogLine, LogTime, parse_cri_line, parse_log_time
from podkeeper.model.errors import BadInput
from podkeeper.rules.logs.reading import LogOptions, tail_start
from tests.oracle.compare import Json, Replay, answers
from tests.rules.logs.whole_files import read_log


def _line(given: Json) -> Json:
    try:
        line = parse_cri_line(given["line"].encode())
    except BadLogLine:
        return {"error": True}
    return {
        "content": line.content.decode(),
        "error": False,
        "stream": line.stream,
        "timestamp": str(LogTime(line.time.unix_nanoseconds)),
    }


def _read(given: Json) -> Json:
    file: bytes = given["file"].encode()
    options = LogOptions(
        tail_lines=given["tail_lines"],
        limit_bytes=given["limit_bytes"],
        since=ZERO_TIME if given["since"] is None else parse_log_time(given["since"].encode()).unix_nanoseconds,
        timestamps=given["timestamps"],
    )
    start = 0
    if options.tail_lines is not None:
        start = tail_start(len(file), lambda offset, length: file[offset : offset + length], options.tail_lines)
    written = {"stdout": b"", "stderr": b""}
    failed = False
    try:
        for chunk in read_log(file[start:], options):
            written[chunk.stream] += chunk.data
    except BadInput:
        failed = True
    return {"error": failed, **{stream: data.decode(errors="replace") for stream, data in written.items()}}


TABLES: dict[str, Replay] = {
    "cri_log_line": answers(_line),
    "read_logs": answers(_read),
}
