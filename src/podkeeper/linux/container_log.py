"""Write the log file of a container in the CRI format.

    2016-10-06T00:17:09.669794202Z stdout F a complete line
    2016-10-06T00:17:09.669794203Z stderr P a part of a line

Input: chunks of output. Each chunk is written at once, and all of its lines get the time at which it was read. So a
container that writes at full speed uses little CPU of the keeper. `logline` reads these files. It is not imported here,
because a keeper needs only the writer.
"""

import os
import time
from contextlib import suppress
from typing import Final

MAX_PIECE_BYTES: Final = 16 * 1024
"""Longer lines are split, as in containerd. The newline does not count."""


class Timestamps:
    """Formats RFC 3339 times with nanoseconds. The text of each second is formatted once."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def at(self, nanoseconds: int) -> str:
        """Return the text of a Unix time."""
        second, nanosecond = divmod(nanoseconds, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{nanosecond:09d}Z"


def log_lines(prefix: bytes, pending: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the lines to write now and the incomplete line to keep, which is never longer than a piece.

    `prefix` is the time and the stream, each with a space after it.
    """
    *texts, rest = (pending + data).split(b"\n")
    full, partial = prefix + b"F ", prefix + b"P "
    if texts and max(map(len, texts)) > MAX_PIECE_BYTES:
        split = [_split(text) for text in texts]
        written = b"".join(_pieces(partial, pieces) + full + last + b"\n" for pieces, last in split)
    elif texts:
        written = full + (b"\n" + full).join(texts) + b"\n"
    else:
        written = b""
    pieces, rest = _split(rest)
    return written + _pieces(partial, pieces), rest


def _split(text: bytes) -> tuple[list[bytes], bytes]:
    """Return pieces of the maximum length and the remainder."""
    start, pieces = 0, []
    while len(text) - start > MAX_PIECE_BYTES:
        pieces.append(text[start : start + MAX_PIECE_BYTES])
        start += MAX_PIECE_BYTES
    return pieces, text[start:]


def _pieces(prefix: bytes, pieces: list[bytes]) -> bytes:
    return b"".join(prefix + piece + b"\n" for piece in pieces)


def remove_old_logs(path: str) -> None:
    """Remove the files with the name of a log, and those that were rotated. Raises OSError.

    An earlier pod with the same UID left them. Static pods keep their UID.
    """
    directory, name = os.path.split(path)
    if os.path.isdir(directory):
        for old in os.listdir(directory):
            if old == name or old.startswith(f"{name}."):
                with suppress(FileNotFoundError):  # log rotation may remove files meanwhile
                    os.unlink(os.path.join(directory, old))


class ContainerLog:
    """One log file and the incomplete line of each stream. With an empty path, all output is dropped."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = -1
        self._pending: dict[str, bytes] = {}
        self._timestamps = Timestamps()

    def begin(self) -> None:
        """Create the file and remove the logs that an earlier pod with the same UID left. Raises OSError."""
        remove_old_logs(self.path)
        self.open()

    def open(self) -> None:
        """Open or create the file. If that fails, keep writing to the file that is open. Raises OSError."""
        if self.path:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            # O_NOFOLLOW: a link in place of the log would append to any file of the host. 0640 as containerd. Open the
            # new file before the old one is closed, so that a failure loses no output.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self.path, flags, 0o640)
            self.close()
            self._file = file

    def write(self, stream: str, data: bytes) -> int:
        """Write a chunk of a stream. Return the number of written bytes, which count for the rate limit."""
        if self._file < 0:
            return 0
        lines, self._pending[stream] = log_lines(self._prefix(stream), self._pending.get(stream, b""), data)
        return self._append(lines)

    def finish(self, stream: str) -> None:
        """Write the incomplete line of a stream that has ended."""
        if rest := self._pending.pop(stream, b""):
            self._append(self._prefix(stream) + b"P " + rest + b"\n")

    def close(self) -> None:
        """Close the file. Later writes are dropped."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _prefix(self, stream: str) -> bytes:
        return f"{self._timestamps.at(time.time_ns())} {stream} ".encode()

    def _append(self, lines: bytes) -> int:
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._file, lines[written:] if written else lines)
        except OSError:
            # The disk is full or failed. Drop the output, because waiting would block the container.
            return len(lines)
        return written
