"""A container's log file, written in the CRI format as its output comes.

    2016-10-06T00:17:09.669794202Z stdout F a whole line
    2016-10-06T00:17:09.669794203Z stderr P a piece, to be continued

The same cut as `podkeeper.rules.logline` makes (which keepers do not import; a test holds the two together), but a
whole chunk at a time: who writes at full speed costs little. All lines of a chunk bear the time at which it was read.
"""

import os
import time
from typing import Final

MAX_PIECE_BYTES: Final = 16 * 1024
"""The longest content of one written line, its end not counted."""


class Stamp:
    """RFC 3339 times with nanoseconds; the text of a second is made once."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def at(self, nanoseconds: int) -> str:
        """The text of an instant since 1970."""
        second, nanosecond = divmod(nanoseconds, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{nanosecond:09d}Z"


def log_lines(prefix: bytes, pending: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The lines to write now, and what to keep until more comes; `prefix` is time and stream, a space after each."""
    *texts, rest = (pending + data).split(b"\n")
    full, partial = prefix + b"F ", prefix + b"P "
    if texts and max(map(len, texts)) > MAX_PIECE_BYTES:
        cut = [_cut(text) for text in texts]
        written = b"".join(_pieces(partial, pieces) + full + last + b"\n" for pieces, last in cut)
    elif texts:
        written = full + (b"\n" + full).join(texts) + b"\n"
    else:
        written = b""
    pieces, rest = _cut(rest)
    return written + _pieces(partial, pieces), rest


def _cut(text: bytes) -> tuple[list[bytes], bytes]:
    """Pieces of the greatest length, and what remains."""
    start, pieces = 0, []
    while len(text) - start > MAX_PIECE_BYTES:
        pieces.append(text[start : start + MAX_PIECE_BYTES])
        start += MAX_PIECE_BYTES
    return pieces, text[start:]


def _pieces(prefix: bytes, pieces: list[bytes]) -> bytes:
    return b"".join(prefix + piece + b"\n" for piece in pieces)


class ContainerLog:
    """One log file and what of each stream waits for the end of its line. Without a path all is thrown away."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = -1
        self._pending: dict[str, bytes] = {}
        self._stamp = Stamp()

    def begin(self) -> None:
        """Make the file; what lies there under its name is of a pod of the same UID that is gone. Raises OSError."""
        directory, name = os.path.split(self.path)
        if os.path.isdir(directory):
            for old in os.listdir(directory):
                if old == name or old.startswith(f"{name}."):
                    os.unlink(os.path.join(directory, old))
        self.open()

    def open(self) -> None:
        """Open the file, or make it. Raises OSError."""
        if self.path:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self.close()
            self._file = fresh

    def write(self, stream: str, data: bytes) -> int:
        """Write what a stream has brought. Returns how many bytes that was in the file."""
        if self._file < 0:
            return 0
        lines, self._pending[stream] = log_lines(self._prefix(stream), self._pending.get(stream, b""), data)
        return self._append(lines)

    def finish(self, stream: str) -> None:
        """A stream has ended: what waits for the rest of its line waits no more."""
        if rest := self._pending.pop(stream, b""):
            self._append(self._prefix(stream) + b"P " + rest + b"\n")

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _prefix(self, stream: str) -> bytes:
        return f"{self._stamp.at(time.time_ns())} {stream} ".encode()

    def _append(self, lines: bytes) -> int:
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._file, lines[written:] if written else lines)
        except OSError:
            # The disk is full, or gone. The container goes on, and its words are lost: to wait would be to stop it.
            return len(lines)
        return written
