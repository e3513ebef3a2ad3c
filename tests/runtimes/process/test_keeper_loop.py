"""A keeper's loop: files, timers and signals, in the order in which they come."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from podkeeper.runtimes.process.keeper.loop import Loop, pass_by


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


def test_timers_ring_by_their_time_then_in_the_order_they_were_asked_for(loop: Loop) -> None:
    rung: list[str] = []
    loop.after(0.002, lambda: rung.append("later"))
    loop.after(0, lambda: rung.append("first"))
    loop.after(0, lambda: rung.append("second"))
    loop.after(0.001, lambda: rung.append("cancelled")).cancel()
    loop.after(0.003, loop.stop)
    loop.after(600, lambda: rung.append("never"))
    loop.run()
    assert rung == ["first", "second", "later"]


def test_a_loop_goes_on_until_the_end_of_the_turn_in_which_it_is_stopped(loop: Loop, pipe: tuple[int, int]) -> None:
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


def test_files_are_waited_for_until_they_are_forgotten(loop: Loop, pipe: tuple[int, int]) -> None:
    called: list[str] = []
    reading, writing = pipe

    def read() -> None:
        called.append(os.read(reading, 1).decode())
        if called == ["a", "b"]:
            loop.forget(reading)
            loop.forget(reading)
            loop.after(0, loop.stop)

    os.write(writing, b"abc")
    loop.on_readable(reading, lambda: called.append("the first callback was replaced"))
    loop.on_readable(reading, read)
    loop.run()
    assert called == ["a", "b"]


def test_a_file_can_be_written_to(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.on_writable(pipe[1], loop.stop)
    loop.on_readable(pipe[0], lambda: pytest.fail("there is nothing to read"))
    loop.run()
    assert os.get_blocking(pipe[1])


@pytest.mark.parametrize("change", ["forgotten", "replaced"])
def test_a_file_that_an_earlier_callback_of_the_turn_took_over_is_not_called(loop: Loop, change: str) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def take(own: int, other: int) -> Callable[[], None]:
        def callback() -> None:
            called.append(own)
            if change == "forgotten":
                loop.forget(other)
            else:
                loop.on_readable(other, loop.stop)
            loop.forget(own)
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


def test_a_callback_that_fails_is_reported_its_file_forgotten_and_the_rest_goes_on(pipe: tuple[int, int]) -> None:
    complaints: list[str] = []
    loop = Loop(lambda: complaints.append("!"))

    def fail() -> None:
        raise ValueError("a bug")

    os.write(pipe[1], b"x")
    loop.on_readable(pipe[0], fail)
    loop.after(0, fail)
    loop.after(0.001, loop.stop)
    loop.run()
    loop.close()
    assert complaints == ["!", "!"]


def test_signals_are_calls_and_those_that_come_together_are_one(loop: Loop) -> None:
    heard: list[str] = []

    def fail() -> None:
        heard.append("USR2")
        if heard.count("USR2") == 2:
            loop.stop()
        loop.after(0, lambda: os.kill(os.getpid(), signal.SIGUSR2))
        raise ValueError("a bug in a callback of signals")

    loop.on_signal(signal.SIGUSR1, lambda: heard.append("USR1"))
    loop.on_signal(signal.SIGUSR2, fail)
    assert signal.getsignal(signal.SIGUSR1) is pass_by
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
    loop.after(0, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    loop.after(5, loop.stop)  # a loop that is deaf after the first error would never end
    loop.run()
    assert heard == ["USR1", "USR2", "USR2"]


def test_a_signal_that_was_not_asked_for_changes_nothing(loop: Loop) -> None:
    heard: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: heard.append("USR1"))
    signal.signal(signal.SIGUSR2, pass_by)
    os.kill(os.getpid(), signal.SIGUSR2)
    loop.after(0.001, loop.stop)
    loop.run()
    assert heard == []


def test_a_closed_loop_holds_no_file_and_hears_no_signals() -> None:
    before = os.listdir("/proc/self/fd")
    handler = signal.getsignal(signal.SIGUSR1)
    loop = Loop()
    loop.on_signal(signal.SIGUSR1, lambda: None)
    loop.close()
    signal.signal(signal.SIGUSR1, handler)
    assert signal.set_wakeup_fd(-1) == -1
    assert os.listdir("/proc/self/fd") == before
