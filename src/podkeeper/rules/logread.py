"""Reading a container's log: which lines, from where, how much, to which stream.

Comes in: the lines of a log file, from wherever `tail_start` says. Goes out: `Chunk`s to write to the
reader's stdout and stderr. Nothing here touches a file: a caller gives blocks of bytes and takes chunks,
and memory stays bounded by the longest line.

    tail_start -> blocks -> lines_of -> read_log -> chunks

As in the reference: the first line decides the format for all; a line that cannot be read is passed over
and does not count for the tail; pieces of a line are joined simply by being written one after the other, so
only the first gets a timestamp; and `--tail` counts lines of the file, not of the container.

The Go ancestor is `ReadLogs` in k8s.io/cri-client/pkg/logs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.rules.logline import (
    STDERR,
    STDOUT,
    ZERO_TIME,
    LogLine,
    UnixNanoseconds,
    parse_cri_line,
    parse_docker_line,
)

BLOCK_BYTES = 64 * 1024

Parser = Callable[[bytes], LogLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What of a log is wanted; None: no limit."""

    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: UnixNanoseconds = ZERO_TIME
    timestamps: bool = False
    follow: bool = False
    streams: frozenset[str] = frozenset({STDOUT, STDERR})

    def __post_init__(self) -> None:
        for field, value in (("tailLines", self.tail_lines), ("limitBytes", self.limit_bytes)):
            if value is not None and value < 0:
                raise BadInput(Problem(f"cannot be {value}; right would be 0 or more", field=field))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes for one of the reader's streams."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the reading of a log stands between two of its lines."""

    options: LogOptions
    parse: Parser | None = None  # known from the first line on
    at_line_start: bool = True
    lines_left: int | None = None
    bytes_left: int | None = None


def tail_start(size: int, read_at: Callable[[int, int], bytes], lines: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """Where the last so many lines of a file begin; a last line without its newline is not counted.

    `read_at(offset, length)` gives exactly that part of the file; it is asked from the end backwards.
    """
    counted, right = 0, size
    while right > 0:
        left = max(0, right - block_bytes)
        block = read_at(left, right - left)
        here = block.count(b"\n")
        if counted + here > lines:
            position = -1
            for _ in range(counted + here - lines):
                position = block.index(b"\n", position + 1)
            return left + position + 1
        counted += here
        right = left
    return 0


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file, each with its newline, however the blocks cut them; the last may lack it."""
    parts: list[bytes] = []
    for block in blocks:
        first, newline, rest = block.partition(b"\n")
        parts.append(first + newline)
        if not newline:
            continue
        yield b"".join(parts)
        *whole, last = rest.split(b"\n")
        for line in whole:
            yield line + b"\n"
        parts = [last] if last else []
    if unfinished := b"".join(parts):
        yield unfinished


def read_log(lines: Iterable[bytes], options: LogOptions) -> Iterator[Chunk]:
    """The chunks that some lines of a log give; raises BadInput when the log cannot be read on."""
    reading = begin(options)
    if reading is None:
        return
    for line in lines:
        reading, chunk = advance(reading, line)
        if chunk is not None:
            yield chunk
        if reading is None:
            return


def begin(options: LogOptions) -> Reading | None:
    """The start of a reading; None: nothing is wanted at all.

    Only who does not follow stops after the tail: for a follower it is just where to begin.
    """
    lines_left = options.tail_lines if not options.follow else None
    return Reading(options, lines_left=lines_left, bytes_left=options.limit_bytes) if lines_left != 0 else None


def advance(reading: Reading, line: bytes) -> tuple[Reading | None, Chunk | None]:
    """Read one more line: how the reading goes on (None: it is done), and what to write."""
    parse = reading.parse or _format_of(line)
    try:
        read = parse(line)
    except BadInput:
        return replace(reading, parse=parse), None
    chunk = _wanted(reading, read)
    bytes_left = reading.bytes_left
    if chunk is not None and bytes_left is not None:
        bytes_left -= len(chunk.data)
        if bytes_left <= 0:
            return None, chunk
    lines_left = None if reading.lines_left is None else reading.lines_left - 1
    if lines_left == 0:
        return None, chunk
    at_line_start = not read.content or read.content.endswith(b"\n")
    return Reading(reading.options, parse, at_line_start, lines_left, bytes_left), chunk


def _wanted(reading: Reading, line: LogLine) -> Chunk | None:
    """What to write of a line, cut to the bytes that are left."""
    options = reading.options
    if line.time.unix_nanoseconds < options.since:
        return None
    if line.stream not in (STDOUT, STDERR):
        raise BadInput(Problem(f"cannot read on: a log line names the stream {line.stream!r}"))
    if line.stream not in options.streams:
        return None
    prefix = f"{line.time} ".encode() if options.timestamps and reading.at_line_start else b""
    data = prefix + line.content
    return Chunk(line.stream, data if reading.bytes_left is None else data[: reading.bytes_left])


def _format_of(line: bytes) -> Parser:
    """How to read a log, seen from one of its lines."""
    for parse in (parse_cri_line, parse_docker_line):
        try:
            parse(line)
        except BadInput:
            continue
        return parse
    raise BadInput(Problem(f"cannot read a log whose lines look like {line[:80]!r}"))
