"""A container's output on its way: from the pipe or pseudo-terminal into the log, and to whoever is attached.

    container --pipe--> Output --> ContainerLog
                           `----> Reader, Reader      (attached; files that an agent handed in)

Back-pressure all the way: one bounded read per turn of the loop; who writes more than the log's pace for long is not
read for a while, so that its pipe fills and it waits; while an attached reader is full the stream stands still, but a
reader that does not move at all is let go. So nothing grows, and neither the loop nor the neighbours notice.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from podkeeper.runtimes.process.keeper.logs import ContainerLog
from podkeeper.runtimes.process.keeper.loop import Loop, Timer

CHUNK_BYTES: Final = 65536
PACE_BYTES: Final = 64 * 2**20
"""How much a container's log may grow per second, in the long run."""
BURST_BYTES: Final = 64 * 2**20
STALL_SECONDS: Final = 10.0
"""How long an attached reader may hold up a container."""
_LAST_BYTES: Final = 2**20  # what may still lie in a pipe when its writers are dead


class Pace:
    """A bucket that fills at a steady rate; who empties it has to wait."""

    def __init__(self, rate: float = PACE_BYTES, burst: float = BURST_BYTES) -> None:
        self._rate, self._burst = rate, burst
        self._left = burst
        self._seen = time.monotonic()

    def spend(self, amount: int) -> float:
        """Take so much. Returns how long to pause."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate) - amount
        self._seen = now
        return max(0.0, -self._left / self._rate)


class Reader:
    """Someone attached to an output."""

    def __init__(self, loop: Loop, file: int, moved: Callable[[], None]) -> None:
        os.set_blocking(file, False)
        self._loop = loop
        self._file = file
        self._moved = moved  # it has room again, or is gone
        self._pending = b""
        self._stalled: Timer | None = None
        self._ending = False

    @property
    def gone(self) -> bool:
        """Whether there is no one any more."""
        return self._file < 0

    @property
    def full(self) -> bool:
        """Whether it has to be waited for."""
        return bool(self._pending)

    def put(self, data: bytes) -> None:
        """Hand on what a container wrote."""
        if self.gone:
            return
        was_full = self.full
        self._pending += data
        if not was_full:
            self._push()

    def end(self) -> None:
        """There is no more; what is on its way may still arrive."""
        self._ending = True
        if not self.full:
            self._close()

    def _push(self) -> None:
        try:
            sent = os.write(self._file, self._pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close()
            return
        self._pending = self._pending[sent:]
        self._watch(moved=sent > 0)
        if not self._pending and self._ending:
            self._close()

    def _watch(self, *, moved: bool) -> None:
        if self._stalled is not None and (moved or not self._pending):
            self._stalled.cancel()
            self._stalled = None
        if not self._pending:
            self._loop.forget(self._file)
            self._moved()
        elif self._stalled is None:
            self._loop.on_writable(self._file, self._push)
            self._stalled = self._loop.after(STALL_SECONDS, self._close)

    def _close(self) -> None:
        if self.gone:
            return
        if self._stalled is not None:
            self._stalled.cancel()
        self._loop.forget(self._file)
        os.close(self._file)
        self._file, self._pending = -1, b""
        self._moved()


class Output:
    """One stream of a container, read here and nowhere else."""

    def __init__(self, loop: Loop, file: int, stream: str, log: ContainerLog, pace: Pace) -> None:
        os.set_blocking(file, False)
        self._loop = loop
        self.file = file
        self._stream = stream
        self._log = log
        self._pace = pace
        self._readers: list[Reader] = []
        self._pause: Timer | None = None
        self._resume()

    def attach(self, file: int) -> None:
        """Let one more follow from now on."""
        self._readers.append(Reader(self._loop, file, self._resume))

    def finish(self) -> None:
        """The writers are dead: take what is left, and end."""
        left = _LAST_BYTES
        while self.file >= 0 and left > 0 and (data := self._take()):
            left -= len(data)
            self._hand_on(data)
        self._end()

    def _resume(self) -> None:
        self._readers = [reader for reader in self._readers if not reader.gone]
        if self.file >= 0 and self._pause is None and not any(reader.full for reader in self._readers):
            self._loop.on_readable(self.file, self._read)

    def _read(self) -> None:
        data = self._take()
        if data is None:
            return
        if not data:
            self._end()
            return
        seconds = self._hand_on(data)
        if seconds > 0:
            self._loop.forget(self.file)
            self._pause = self._loop.after(seconds, self._go_on)
        elif any(reader.full for reader in self._readers):
            self._loop.forget(self.file)

    def _go_on(self) -> None:
        self._pause = None
        self._resume()

    def _hand_on(self, data: bytes) -> float:
        seconds = self._pace.spend(self._log.write(self._stream, data))
        for reader in tuple(self._readers):
            reader.put(data)
        return seconds

    def _take(self) -> bytes | None:
        """What there is to read; nothing: it has ended; None: not now."""
        try:
            return os.read(self.file, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # a pseudo-terminal says so when its last user has closed it
            return b""

    def _end(self) -> None:
        if self.file < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._log.finish(self._stream)
        self._loop.forget(self.file)
        with contextlib.suppress(OSError):
            os.close(self.file)
        self.file = -1
        for reader in tuple(self._readers):
            reader.end()
