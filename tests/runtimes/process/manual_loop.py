"""A keeper's loop that a test turns by hand: it records what waits, and the test decides what comes."""

from podkeeper.runtimes.process.keeper.loop import Callback, Loop, Timer


class ManualLoop(Loop):
    """Nothing here waits."""

    def __init__(self) -> None:
        self.readable: dict[int, Callback] = {}
        self.writable: dict[int, Callback] = {}
        self.signals: dict[int, Callback] = {}
        self._asked: list[tuple[float, Timer]] = []
        self.stopped = False

    def on_signal(self, number: int, callback: Callback) -> None:
        self.signals[number] = callback

    def on_readable(self, file: int, callback: Callback) -> None:
        self.forget(file)
        self.readable[file] = callback

    def on_writable(self, file: int, callback: Callback) -> None:
        self.forget(file)
        self.writable[file] = callback

    def forget(self, file: int) -> None:
        self.readable.pop(file, None)
        self.writable.pop(file, None)

    def after(self, seconds: float, callback: Callback) -> Timer:
        timer = Timer(callback)
        self._asked.append((seconds, timer))
        return timer

    def stop(self) -> None:
        self.stopped = True

    @property
    def timers(self) -> list[float]:
        """The delays of all timers that are still to ring."""
        return [seconds for seconds, timer in self._asked if timer.callback is not None]

    @property
    def asked(self) -> int:
        """How many timers there ever were."""
        return len(self._asked)

    def ring(self) -> None:
        """Let the first timer ring that is still to."""
        for _, timer in self._asked:
            if (callback := timer.callback) is not None:
                timer.cancel()
                callback()
                return
        raise AssertionError("no timer waits")
