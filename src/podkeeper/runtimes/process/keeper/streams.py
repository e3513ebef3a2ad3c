"""Copy a container's output to its log and to attached clients.

    container --pipe--> OutputStream --> ContainerLog
                              `--------> AttachedReader, ...      (files that agents passed in)

Memory is bounded by back-pressure. Each loop iteration reads one bounded chunk. A container that exceeds the rate limit
is not read for a while, so its pipe fills and it blocks. While an attached reader is full, the stream pauses, but a
reader without progress is dropped after STALL_SECONDS. The loop and other containers are not affected.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from podkeeper.linux.container_log import ContainerLog
from podkeeper.runtimes.process.keeper.loop import Loop, Timer

# The default capacity of a pipe (pipe(7)), so one read empties it.
CHUNK_BYTES: Final = 65536
# Log rotation inspects a log at most once a second. This limit bounds the disk that a flood uses in between.
RATE_BYTES: Final = 64 * 2**20
"""The maximum long-term growth of a container's log per second."""
BURST_BYTES: Final = 64 * 2**20
STALL_SECONDS: Final = 10.0
"""How long an attached reader may block a container."""
# A limit, because a process that the container left behind may write forever.
_LAST_BYTES: Final = 2**20  # read at most this much from a pipe after its writers have ended


class LogRateLimit:
    """A token bucket."""

    def __init__(self, rate: float = RATE_BYTES, burst: float = BURST_BYTES) -> None:
        self._rate, self._burst = rate, burst
        self._available = burst
        self._updated_at = time.monotonic()

    def consume(self, amount: int) -> float:
        """Take tokens. Return how many seconds to pause."""
        now = time.monotonic()
        self._available = min(self._burst, self._available + (now - self._updated_at) * self._rate) - amount
        self._updated_at = now
        return max(0.0, -self._available / self._rate)


class AttachedReader:
    """A client that is attached to an output."""

    def __init__(self, loop: Loop, file: int, on_progress: Callable[[], None]) -> None:
        os.set_blocking(file, False)
        self._loop = loop
        self._file = file
        self._on_progress = on_progress  # it has room again, or is closed
        self._pending = b""
        self._stall_timer: Timer | None = None
        self._is_closing = False

    @property
    def closed(self) -> bool:
        return self._file < 0

    @property
    def full(self) -> bool:
        """Whether the stream must wait for this reader."""
        return bool(self._pending)

    def put(self, data: bytes) -> None:
        """Send output of the container."""
        if self.closed:
            return
        was_full = self.full
        self._pending += data
        # Otherwise `_flush` is registered already and keeps the order.
        if not was_full:
            self._flush()

    def end(self) -> None:
        """Close the reader after the pending data is sent."""
        self._is_closing = True
        if not self.full:
            self._close()

    def _flush(self) -> None:
        try:
            sent = os.write(self._file, self._pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close()
            return
        self._pending = self._pending[sent:]
        self._update_stall(progress=sent > 0)
        if not self._pending and self._is_closing:
            self._close()

    def _update_stall(self, *, progress: bool) -> None:
        if self._stall_timer is not None and (progress or not self._pending):
            self._stall_timer.cancel()
            self._stall_timer = None
        if not self._pending:
            self._loop.unregister(self._file)
            self._on_progress()
        elif self._stall_timer is None:
            self._loop.on_writable(self._file, self._flush)
            self._stall_timer = self._loop.after(STALL_SECONDS, self._close)

    def _close(self) -> None:
        if self.closed:
            return
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._loop.unregister(self._file)
        os.close(self._file)
        self._file, self._pending = -1, b""
        self._on_progress()


class OutputStream:
    """One output stream of a container."""

    def __init__(self, loop: Loop, file: int, stream: str, log: ContainerLog, rate_limit: LogRateLimit) -> None:
        os.set_blocking(file, False)
        self._loop = loop
        self.file = file
        self._stream = stream
        self._log = log
        self._rate_limit = rate_limit
        self._readers: list[AttachedReader] = []
        self._pause: Timer | None = None
        self._resume()

    def attach(self, file: int) -> None:
        """Copy the output to a file from now on."""
        self._readers.append(AttachedReader(self._loop, file, self._resume))

    def finish(self) -> None:
        """Read the rest and end the stream, after the writers have ended."""
        left = _LAST_BYTES
        while self.file >= 0 and left > 0 and (data := self._read_chunk()):
            left -= len(data)
            self._forward(data)
        self._end()

    def _resume(self) -> None:
        self._readers = [reader for reader in self._readers if not reader.closed]
        if self.file >= 0 and self._pause is None and not any(reader.full for reader in self._readers):
            self._loop.on_readable(self.file, self._read)

    def _read(self) -> None:
        data = self._read_chunk()
        if data is None:
            return
        if not data:
            self._end()
            return
        seconds = self._forward(data)
        if seconds > 0:
            self._loop.unregister(self.file)
            self._pause = self._loop.after(seconds, self._end_pause)
        elif any(reader.full for reader in self._readers):
            self._loop.unregister(self.file)

    def _end_pause(self) -> None:
        self._pause = None
        self._resume()

    def _forward(self, data: bytes) -> float:
        seconds = self._rate_limit.consume(self._log.write(self._stream, data))
        for reader in tuple(self._readers):
            reader.put(data)
        return seconds

    def _read_chunk(self) -> bytes | None:
        """Return a chunk, b"" at the end, None if nothing is available now."""
        try:
            return os.read(self.file, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # a terminal reports EIO when its last user has closed it
            return b""

    def _end(self) -> None:
        if self.file < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._log.finish(self._stream)
        self._loop.unregister(self.file)
        with contextlib.suppress(OSError):
            os.close(self.file)
        self.file = -1
        for reader in tuple(self._readers):
            reader.end()
