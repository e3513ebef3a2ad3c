"""The keeper's event loop: files, timers and signals."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from podkeeper.runtimes.process.keeper.loop import Loop, ignore_signal


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def loop() -> Iterator[Loop]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    made = Loop(lambda: None)
    yield made
    made.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_timers_run_by_time_then_in_order_of_registration(loop: Loop) -> None:
    rung: list[str] = []
    loop.after(0.002, lambda: rung.append("later"))
    loop.after(0, lambda: rung.append("first"))
    loop.after(0, lambda: rung.append("second"))
    loop.after(0.001, lambda: rung.append("cancelled")).cancel()
    loop.after(0.003, loop.stop)
    loop.after(600, lambda: rung.append("never"))
    loop.run()
    assert rung == ["first", "second", "later"]


@pytest.mark.parametrize("seconds", [3e6, 9223372036854775807.0, 1e30])
def test_a_very_long_timer_waits(loop: Loop, seconds: float) -> None:
    rung: list[str] = []
    loop.after(seconds, lambda: rung.append("never"))
    loop.on_signal(signal.SIGUSR1, loop.stop)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run()
    assert rung == []


def test_a_stopped_loop_finishes_its_iteration(loop: Loop, pipe: tuple[int, int]) -> None:
    called: list[str] = []

    def stop() -> None:
        called.append("file")
        loop.stop()

    os.write(pipe[1], b"x")
    loop.on_readable(pipe[0], stop)
    loop.after(0, lambda: called.append("timer"))
    loop.run()
    loop.run()
    assert called == ["file", "timer"]


def test_a_file_calls_back_until_it_is_unregistered(loop: Loop, pipe: tuple[int, int]) -> None:
    called: list[str] = []
    reading, writing = pipe

    def read() -> None:
        called.append(os.read(reading, 1).decode())
        if called == ["a", "b"]:
            loop.unregister(reading)
            loop.unregister(reading)
            loop.after(0, loop.stop)

    os.write(writing, b"abc")
    loop.on_readable(reading, lambda: called.append("the first callback was replaced"))
    loop.on_readable(reading, read)
    loop.run()
    assert called == ["a", "b"]


def test_a_writable_file_calls_back(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.on_writable(pipe[1], loop.stop)
    loop.on_readable(pipe[0], lambda: pytest.fail("there is nothing to read"))
    loop.run()
    assert os.get_blocking(pipe[1])


@pytest.mark.parametrize("change", ["forgotten", "replaced"])
def test_a_file_that_an_earlier_callback_registered_again_is_not_called(loop: Loop, change: str) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def take(own: int, other: int) -> Callable[[], None]:
        def callback() -> None:
            called.append(own)
            if change == "forgotten":
                loop.unregister(other)
            else:
                loop.on_readable(other, loop.stop)
            loop.unregister(own)
            loop.after(0, loop.stop)

        return callback

    (first, _), (second, _) = pipes
    for _, end in pipes:
        os.write(end, b"x")
    loop.on_readable(first, take(first, second))
    loop.on_readable(second, take(second, first))
    loop.run()
    for end in (end for ends in pipes for end in ends):
        os.close(end)
    assert len(called) == 1


def test_a_failing_callback_is_reported_and_its_file_unregistered(pipe: tuple[int, int]) -> None:
    errors: list[str] = []
    loop = Loop(lambda: errors.append("!"))

    def fail() -> None:
        raise ValueError("a bug")

    os.write(pipe[1], b"x")
    loop.on_readable(pipe[0], fail)
    loop.after(0, fail)
    loop.after(0.001, loop.stop)
    loop.run()
    loop.close()
    assert errors == ["!", "!"]


def test_concurrent_signals_cause_one_callback(loop: Loop) -> None:
    received: list[str] = []

    def fail() -> None:
        received.append("USR2")
        if received.count("USR2") == 2:
            loop.stop()
        loop.after(0, lambda: os.kill(os.getpid(), signal.SIGUSR2))
        raise ValueError("a bug in a callback of signals")

    loop.on_signal(signal.SIGUSR1, lambda: received.append("USR1"))
    loop.on_signal(signal.SIGUSR2, fail)
    assert signal.getsignal(signal.SIGUSR1) is ignore_signal
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
    loop.after(0, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    loop.after(5, loop.stop)  # a loop that ignores signals after the first error would never end
    loop.run()
    assert received == ["USR1", "USR2", "USR2"]


def test_an_unregistered_signal_is_ignored(loop: Loop) -> None:
    received: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: received.append("USR1"))
    signal.signal(signal.SIGUSR2, ignore_signal)
    os.kill(os.getpid(), signal.SIGUSR2)
    loop.after(0.001, loop.stop)
    loop.run()
    assert received == []


def test_a_closed_loop_holds_no_file_and_gets_no_signals() -> None:
    before = os.listdir("/proc/self/fd")
    handler = signal.getsignal(signal.SIGUSR1)
    loop = Loop()
    loop.on_signal(signal.SIGUSR1, lambda: None)
    loop.close()
    signal.signal(signal.SIGUSR1, handler)
    assert signal.set_wakeup_fd(-1) == -1
    assert os.listdir("/proc/self/fd") == before
