"""A keeper's loop that records registrations. The test calls the callbacks."""

from podkeeper.runtimes.process.keeper.loop import Callback, Loop, Timer


class ManualLoop(Loop):
    """Records files, timers and signals."""

    def __init__(self) -> None:
        self.readable: dict[int, Callback] = {}
        self.writable: dict[int, Callback] = {}
        self.signals: dict[int, Callback] = {}
        self._timers_added: list[tuple[float, Timer]] = []
        self.stopped = False

    def on_signal(self, number: int, callback: Callback) -> None:
        self.signals[number] = callback

    def on_readable(self, file: int, callback: Callback) -> None:
        self.unregister(file)
        self.readable[file] = callback

    def on_writable(self, file: int, callback: Callback) -> None:
        self.unregister(file)
        self.writable[file] = callback

    def unregister(self, file: int) -> None:
        self.readable.pop(file, None)
        self.writable.pop(file, None)

    def after(self, seconds: float, callback: Callback) -> Timer:
        timer = Timer(callback)
        self._timers_added.append((seconds, timer))
        return timer

    def stop(self) -> None:
        self.stopped = True

    @property
    def timers(self) -> list[float]:
        """The delays of all pending timers."""
        return [seconds for seconds, timer in self._timers_added if timer.callback is not None]

    @property
    def timers_created(self) -> int:
        """The number of timers ever created."""
        return len(self._timers_added)

    def run_timer(self) -> None:
        """Run the first pending timer."""
        for _, timer in self._timers_added:
            if (callback := timer.callback) is not None:
                timer.cancel()
                callback()
                return
        raise AssertionError("no timer is pending")
