"""How much may be sent: the windows of SPDY/3.1, one for each stream and one for all together.

Sending takes from both, a WINDOW_UPDATE gives back. The specification has every window begin with 64 KiB and be
honoured from the start. But spdystream, which serves behind every CRI runtime there is, knows no windows: it never
gives back, and who kept to the rule would stop after 64 KiB for ever. So windows count from the moment at which the
other side shows that it has them, by a setting of their size or a WINDOW_UPDATE; before that, TCP alone says when to
wait.
"""

from typing import Final

INITIAL_BYTES: Final = 64 * 1024
CONNECTION: Final = 0
"""The number that stands for all streams together."""


class SendWindows:
    """What the other side lets us send."""

    def __init__(self) -> None:
        self.are_spoken = False  # by the other side, as far as we know
        self._initial = INITIAL_BYTES
        self._left: dict[int, int] = {CONNECTION: INITIAL_BYTES}

    def open(self, stream: int) -> None:
        """A stream begins."""
        self._left[stream] = self._initial

    def forget(self, stream: int) -> None:
        """A stream is over."""
        self._left.pop(stream, None)

    def room(self, stream: int, wanted: int) -> int:
        """How many of the bytes that are wanted may go now."""
        if not self.are_spoken:
            return wanted
        return max(0, min(wanted, self._left.get(stream, 0), self._left[CONNECTION]))

    def take(self, stream: int, count: int) -> None:
        """Bytes were sent."""
        self._left[CONNECTION] -= count
        if stream in self._left:
            self._left[stream] -= count

    def give(self, stream: int, delta: int) -> None:
        """The other side has room for more."""
        self.are_spoken = True
        if stream in self._left:
            self._left[stream] += delta

    def begin_with(self, initial: int) -> None:
        """The other side wants streams to begin with another window; those that are open change as well."""
        self.are_spoken = True
        for stream in self._left.keys() - {CONNECTION}:
            self._left[stream] += initial - self._initial
        self._initial = initial


class ReceiveWindows:
    """What we let the other side send: what is done with is given back when it is half a window."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}

    def add(self, number: int, count: int) -> None:
        """Bytes are done with."""
        self._done[number] = self._done.get(number, 0) + count

    def due(self, number: int) -> int:
        """How many bytes to give back now; they count as given. 0: not enough yet to be worth a frame."""
        if self._done.get(number, 0) < INITIAL_BYTES // 2:
            return 0
        return self._done.pop(number)

    def forget(self, stream: int) -> None:
        """A stream is over."""
        self._done.pop(stream, None)
