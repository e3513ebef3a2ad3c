"""File work in threads: one call per key at a time, deadlines, and the hung in nobody's way."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from podkeeper.model.errors import CallTimedOut
from podkeeper.volumes.threads import AT_ONCE, Threads
from tests.volumes.volume_house import run


class DeadServer:
    """Somebody who does not answer until told to."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def ask(self) -> str:
        os.read(self._reading, 1)
        return "at last"

    def answer(self, times: int = 1) -> None:
        os.write(self._writing, b"x" * times)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@contextmanager
def dead_server() -> Iterator[DeadServer]:
    server = DeadServer()
    try:
        yield server
    finally:
        server.close()


def test_work_returns_and_raises_as_if_it_were_done_here() -> None:
    def fail() -> None:
        raise KeyError("x")

    async def scenario() -> None:
        threads = Threads()
        assert await threads.run("a", "add", lambda: 1 + 1) == 2
        assert await threads.run("a", "be elsewhere", threading.current_thread) is not threading.main_thread()
        with pytest.raises(KeyError):
            await threads.run("a", "fail", fail)

    run(scenario())


def test_work_of_one_key_is_done_one_after_the_other() -> None:
    log: list[str] = []

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            first = asyncio.create_task(threads.run("a", "wait", lambda: log.append(server.ask())))
            await asyncio.sleep(0)
            second = asyncio.create_task(threads.run("a", "follow", lambda: log.append("second")))
            other = asyncio.create_task(threads.run("b", "pass", lambda: log.append("other")))
            await other
            server.answer()
            await asyncio.gather(first, second)

    run(scenario())
    assert log == ["other", "at last", "second"]


def test_a_call_that_misses_its_deadline_is_named_and_goes_on() -> None:
    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads(patience_seconds=0.1)
            with pytest.raises(CallTimedOut, match=r"cannot look at x: no end of `look at x` in 0\.1 s"):
                await threads.run("a", "look at x", server.ask)
            with pytest.raises(CallTimedOut, match=r"cannot tidy up: no end of `look at x` in 0\.1 s"):
                await threads.run("a", "tidy up", lambda: None)
            waiting = asyncio.create_task(threads.run("a", "tidy up", lambda: "tidy"))
            await asyncio.sleep(0)
            server.answer()
            assert await waiting == "tidy"

    run(scenario())


def test_the_hung_are_in_nobodys_way() -> None:
    hung = AT_ONCE + 2

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            asks = [asyncio.create_task(threads.run(f"hung {number}", "ask", server.ask)) for number in range(hung)]
            await asyncio.sleep(0)
            assert await threads.run("well", "be done", lambda: "done") == "done"
            server.answer(hung)
            assert await asyncio.gather(*asks) == ["at last"] * hung

    run(scenario())


def test_whoever_is_cancelled_only_stops_waiting() -> None:
    log: list[str] = []

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            call = asyncio.create_task(threads.run("a", "ask", lambda: log.append(server.ask())))
            await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            server.answer()
            await threads.run("a", "follow", lambda: log.append("second"))

    run(scenario())
    assert log == ["at last", "second"]
