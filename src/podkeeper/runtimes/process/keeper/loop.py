"""The keeper's event loop: readable and writable files, timers and signals.

Callbacks are short and do not raise. If one raises, that is a bug: the loop reports it, unregisters its file and
continues, because the containers must keep running.
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
from typing import Final

Callback = Callable[[], None]
_MAX_WAIT_SECONDS: Final = 3600.0


def ignore_signal(*_: object) -> None:
    """Ignore a signal. Unlike SIG_IGN, a handler is reset by exec, so that programs do not inherit it."""


class Timer:
    """A callback that runs later unless it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Calls back when a file is ready, a timer expires or a signal arrives."""

    def __init__(self, on_error: Callable[[], None] = traceback.print_exc) -> None:
        """`on_error` is called in the handler of an unexpected exception."""
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = count()
        self._running = True
        self._signals: dict[int, Callback] = {}
        self._wakeup: tuple[socket.socket, ...] = ()

    def on_signal(self, number: signal.Signals, callback: Callback) -> None:
        """Call back after a signal. Several signals may cause one call."""
        if not self._signals:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            # The handler in C writes to this socket, and Python requires that it does not block. A full buffer loses
            # nothing, because each callback handles all events of its signal (`Keeper._reap`).
            signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            self._wakeup = ours, theirs
            self.on_readable(ours.fileno(), self._dispatch_signals)
        self._signals[number] = callback
        signal.signal(number, ignore_signal)

    def on_readable(self, file: int, callback: Callback) -> None:
        """Call back whenever the file is readable or at its end."""
        self._register(file, selectors.EVENT_READ, callback)

    def on_writable(self, file: int, callback: Callback) -> None:
        """Call back whenever the file is writable. To read it as well, duplicate the descriptor."""
        self._register(file, selectors.EVENT_WRITE, callback)

    def unregister(self, file: int) -> None:
        """Remove the callback of a file."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def after(self, seconds: float, callback: Callback) -> Timer:
        """Call back once after some time."""
        timer = Timer(callback)
        # The sequence number keeps timers of the same time in order, and Timers cannot be compared.
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._sequence), timer))
        return timer

    def stop(self) -> None:
        """Return from `run` after this iteration."""
        self._running = False

    def run(self) -> None:
        """Run until `stop` is called."""
        while self._running:
            for key, _ in self._selector.select(self._timeout()):
                if self._selector.get_map().get(key.fd) is key:  # no earlier callback has changed the registration
                    self._call(key.data, key.fd)
            self._run_timers()

    def close(self) -> None:
        """Release the selector and the signal pipe."""
        signal.set_wakeup_fd(-1)
        for each in self._wakeup:
            each.close()
        self._selector.close()

    def _dispatch_signals(self) -> None:
        for number in set(self._wakeup[0].recv(4096)):
            if (callback := self._signals.get(number)) is not None:
                callback()

    def _register(self, file: int, events: int, callback: Callback) -> None:
        try:
            self._selector.register(file, events, callback)
        except KeyError:
            self._selector.modify(file, events, callback)

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # epoll counts milliseconds in 32 bits, so a grace period of 25 days would end the keeper and its containers.
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _MAX_WAIT_SECONDS)

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if (callback := timer.callback) is not None:
                self._call(callback)

    def _call(self, callback: Callback, file: int = -1) -> None:
        try:
            callback()
        except Exception:
            self._on_error()
            # Unregister the file, because a callback that always fails would run in a busy loop. Keep the wakeup
            # socket: without it, no exit would be noticed any more.
            if file >= 0 and not (self._wakeup and file == self._wakeup[0].fileno()):
                self.unregister(file)
