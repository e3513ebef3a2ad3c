"""The keeper's one loop: files that become ready, timers, and signals as bytes in a pipe.

Callbacks are short and do not raise. One that does has met a bug: that is written down, its file is forgotten, and the
loop goes on, for the containers are not to blame.
"""

import contextlib
import heapq
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable
from itertools import count

Callback = Callable[[], None]


def pass_by(*_: object) -> None:
    """Take no notice of a signal. Unlike with SIG_IGN, a program that is executed later gets it as ever."""


class Timer:
    """Something to be done later, unless it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do it not."""
        self.callback = None


class Loop:
    """Waits, and calls whoever waits for what has come."""

    def __init__(self, complain: Callable[[], None] = traceback.print_exc) -> None:
        """`complain` is called while an unforeseen error is being handled."""
        self._complain = complain
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._running = True
        self._signals: dict[int, Callback] = {}
        self._wakeup: tuple[socket.socket, ...] = ()

    def on_signal(self, number: signal.Signals, callback: Callback) -> None:
        """Call back soon after signals of a kind; several may come as one."""
        if not self._signals:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            self._wakeup = ours, theirs
            self.on_readable(ours.fileno(), self._hear_signals)
        self._signals[number] = callback
        signal.signal(number, pass_by)

    def on_readable(self, file: int, callback: Callback) -> None:
        """Call back whenever there is something to read, or an end."""
        self._register(file, selectors.EVENT_READ, callback)

    def on_writable(self, file: int, callback: Callback) -> None:
        """Call back whenever something can be written; whoever reads too asks for a file of its own."""
        self._register(file, selectors.EVENT_WRITE, callback)

    def forget(self, file: int) -> None:
        """Call back no more."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def after(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, later."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def stop(self) -> None:
        """End after this turn."""
        self._running = False

    def run(self) -> None:
        """Turn until stopped."""
        while self._running:
            for key, _ in self._selector.select(self._patience()):
                if self._selector.get_map().get(key.fd) is key:  # nobody before it in this turn has changed that
                    self._call(key.data, key.fd)
            self._ring()

    def close(self) -> None:
        """Let go of the kernel's part."""
        signal.set_wakeup_fd(-1)
        for each in self._wakeup:
            each.close()
        self._selector.close()

    def _hear_signals(self) -> None:
        for number in set(self._wakeup[0].recv(4096)):
            if (callback := self._signals.get(number)) is not None:
                callback()

    def _register(self, file: int, events: int, callback: Callback) -> None:
        try:
            self._selector.register(file, events, callback)
        except KeyError:
            self._selector.modify(file, events, callback)

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if (callback := timer.callback) is not None:
                self._call(callback)

    def _call(self, callback: Callback, file: int = -1) -> None:
        try:
            callback()
        except Exception:
            self._complain()
            if file >= 0 and not (self._wakeup and file == self._wakeup[0].fileno()):
                self.forget(file)
