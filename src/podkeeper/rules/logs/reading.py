"""Reading of container logs: which lines and bytes go to which stream.

    tail_start -> the caller reads the file and splits lines -> begin, advance -> chunks

Nothing here reads files. The caller passes one line at a time and writes the `Chunk`s to the reader's stdout and
stderr, so memory is bounded by the longest line.

As in the kubelet, the first line decides the format of the whole log. An unreadable line is skipped and does not count
for the tail. Parts of a line are written one after the other, and only the first has a timestamp. `--tail` counts lines
of the file, not of the container.

Kubelet counterpart: `ReadLogs` in k8s.io/cri-client/pkg/logs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from podkeeper.linux.logline import (
    STDERR,
    STDOUT,
    ZERO_TIME,
    BadLogLine,
    LogLine,
    UnixNanoseconds,
    parse_cri_line,
    parse_docker_line,
)
from podkeeper.model.errors import BadInput, Problem

BLOCK_BYTES = 64 * 1024

Parser = Callable[[bytes], LogLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which part of a log to read. None: no limit."""

    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: UnixNanoseconds = ZERO_TIME
    timestamps: bool = False
    follow: bool = False
    streams: frozenset[str] = frozenset({STDOUT, STDERR})

    def __post_init__(self) -> None:
        for field, value in (("tailLines", self.tail_lines), ("limitBytes", self.limit_bytes)):
            if value is not None and value < 0:
                raise BadInput(Problem(f"Invalid value: {value}: must be greater than or equal to 0", field=field))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes for one of the reader's streams."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadState:
    """The state between two lines of a log."""

    options: LogOptions
    parse: Parser | None = None  # set by the first line
    at_line_start: bool = True
    lines_left: int | None = None
    bytes_left: int | None = None


def tail_start(size: int, read_at: Callable[[int, int], bytes], lines: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """Return the offset of the last `lines` lines of a file. A last line without newline is not counted.

    `read_at(offset, length)` returns exactly that part of the file. It is called from the end backwards.
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


def begin(options: LogOptions) -> ReadState | None:
    """Return the initial state, or None if there is nothing to read.

    A reader that follows the log does not stop after the tail: the tail is only where it begins.
    """
    lines_left = options.tail_lines if not options.follow else None
    return ReadState(options, lines_left=lines_left, bytes_left=options.limit_bytes) if lines_left != 0 else None


def advance(state: ReadState, line: bytes) -> tuple[ReadState | None, Chunk | None]:
    """Read one line. Return the next state (None: finished) and the chunk to write. Raises BadInput."""
    parse = state.parse or _format_of(line)
    try:
        line_read = parse(line)
    except BadLogLine:
        return replace(state, parse=parse), None
    chunk = _chunk_of(state, line_read)
    bytes_left = state.bytes_left
    if chunk is not None and bytes_left is not None:
        bytes_left -= len(chunk.data)
        if bytes_left <= 0:
            return None, chunk
    lines_left = None if state.lines_left is None else state.lines_left - 1
    if lines_left == 0:
        return None, chunk
    at_line_start = not line_read.content or line_read.content.endswith(b"\n")
    return ReadState(state.options, parse, at_line_start, lines_left, bytes_left), chunk


def _chunk_of(state: ReadState, line: LogLine) -> Chunk | None:
    """Return the chunk for a line, cut to the remaining bytes."""
    options = state.options
    if line.time.unix_nanoseconds < options.since:
        return None
    if line.stream not in (STDOUT, STDERR):
        raise BadInput(Problem(f"cannot read log: unknown stream {line.stream!r}"))
    if line.stream not in options.streams:
        return None
    prefix = f"{line.time} ".encode() if options.timestamps and state.at_line_start else b""
    data = prefix + line.content
    return Chunk(line.stream, data if state.bytes_left is None else data[: state.bytes_left])


def _format_of(line: bytes) -> Parser:
    for parse in (parse_cri_line, parse_docker_line):
        try:
            parse(line)
        except BadLogLine:
            continue
        return parse
    raise BadInput(Problem(f"cannot read log: unknown format of line {line[:80]!r}"))
