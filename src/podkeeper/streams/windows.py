"""Flow control of SPDY/3.1: a window for each stream and one for the connection.

Sending data uses up both windows, and a WINDOW_UPDATE of the peer extends them. Windows count only after the peer has
shown that it uses them, by a SETTINGS or WINDOW_UPDATE frame. Before that, only TCP limits the sender.
"""

from typing import Final

# The initial window of the specification.
INITIAL_BYTES: Final = 64 * 1024
CONNECTION: Final = 0
"""Stream number of the connection's own window."""


class SendWindows:
    """How much the peer allows us to send."""

    def __init__(self) -> None:
        self.in_use = False  # the peer has sent a window size or an update
        self._initial = INITIAL_BYTES
        self._left: dict[int, int] = {CONNECTION: INITIAL_BYTES}

    def open(self, stream: int) -> None:
        self._left[stream] = self._initial

    def forget(self, stream: int) -> None:
        self._left.pop(stream, None)

    def room(self, stream: int, wanted: int) -> int:
        """Return how many of the wanted bytes may be sent now."""
        # spdystream, which all CRI runtimes use, ignores windows and never sends updates. A client that follows the
        # specification would stop forever after 64 KiB.
        if not self.in_use:
            return wanted
        return max(0, min(wanted, self._left.get(stream, 0), self._left[CONNECTION]))

    def take(self, stream: int, count: int) -> None:
        self._left[CONNECTION] -= count
        if stream in self._left:
            self._left[stream] -= count

    def give(self, stream: int, delta: int) -> None:
        self.in_use = True
        if stream in self._left:
            self._left[stream] += delta

    def begin_with(self, initial: int) -> None:
        """Set the initial window of streams. Open streams change by the difference."""
        self.in_use = True
        # The setting applies to streams only, not to the connection's own window.
        for stream in self._left.keys() - {CONNECTION}:
            self._left[stream] += initial - self._initial
        self._initial = initial


class ReceiveWindows:
    """How much we allow the peer to send. Consumed bytes are returned when they reach half a window."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}

    def add(self, number: int, count: int) -> None:
        """Count consumed bytes."""
        self._done[number] = self._done.get(number, 0) + count

    def due(self, number: int) -> int:
        """Return the bytes to return to the peer now, and count them as returned. 0: less than half a window."""
        # Half a window at a time: fewer frames, and the peer seldom has to stop.
        if self._done.get(number, 0) < INITIAL_BYTES // 2:
            return 0
        return self._done.pop(number)

    def forget(self, stream: int) -> None:
        self._done.pop(stream, None)
