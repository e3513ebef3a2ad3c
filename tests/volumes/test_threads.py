"""File operations in threads: one call per key at a time, timeouts, and hanging calls."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from podkeeper.model.errors import CallTimedOut
from podkeeper.volumes.threads import MAX_CALLS, SLOW_SECONDS, Threads
from tests.volumes.harness import run


class DeadServer:
    """Blocks each call until the test releases it."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def wait(self) -> str:
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


def test_results_and_errors_reach_the_caller() -> None:
    def fail() -> None:
        raise KeyError("x")

    async def scenario() -> None:
        threads = Threads()
        assert await threads.run("a", "add", lambda: 1 + 1) == 2
        assert await threads.run("a", "be elsewhere", threading.current_thread) is not threading.main_thread()
        with pytest.raises(KeyError):
            await threads.run("a", "fail", fail)

    run(scenario())


def test_calls_with_the_same_key_run_one_after_another() -> None:
    log: list[str] = []

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            first = asyncio.create_task(threads.run("a", "wait", lambda: log.append(server.wait())))
            await asyncio.sleep(0)
            second = asyncio.create_task(threads.run("a", "follow", lambda: log.append("second")))
            other = asyncio.create_task(threads.run("b", "pass", lambda: log.append("other")))
            await other
            server.answer()
            await asyncio.gather(first, second)

    run(scenario())
    assert log == ["other", "at last", "second"]


def test_a_call_that_times_out_is_named_and_continues() -> None:
    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads(timeout_seconds=0.1)
            with pytest.raises(CallTimedOut, match=r"cannot inspect x: `inspect x` did not end in 0\.1 s"):
                await threads.run("a", "inspect x", server.wait)
            with pytest.raises(CallTimedOut, match=r"cannot tidy up: `inspect x` did not end in 0\.1 s"):
                await threads.run("a", "tidy up", lambda: None)
            waiting = asyncio.create_task(threads.run("a", "tidy up", lambda: "tidy"))
            await asyncio.sleep(0)
            server.answer()
            assert await waiting == "tidy"

    run(scenario())


def test_hanging_calls_do_not_block_others() -> None:
    hung = MAX_CALLS + 2

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            calls = [asyncio.create_task(threads.run(f"hung {number}", "wait", server.wait)) for number in range(hung)]
            await asyncio.sleep(0)
            assert await threads.run("well", "be done", lambda: "done") == "done"
            server.answer(hung)
            assert await asyncio.gather(*calls) == ["at last"] * hung

    run(scenario())


def test_a_cancelled_caller_only_stops_waiting() -> None:
    log: list[str] = []

    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            call = asyncio.create_task(threads.run("a", "wait", lambda: log.append(server.wait())))
            await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            server.answer()
            await threads.run("a", "follow", lambda: log.append("second"))

    run(scenario())
    assert log == ["at last", "second"]


def test_only_one_of_many_callers_with_a_key_runs_at_a_time() -> None:
    at_work: list[int] = []
    most = 0

    def work(number: int) -> None:
        nonlocal most
        at_work.append(number)
        most = max(most, len(at_work))
        time.sleep(0.01)
        at_work.remove(number)

    async def scenario() -> None:
        threads = Threads()
        await asyncio.gather(*(threads.run("a", "work", partial(work, number)) for number in range(6)))

    run(scenario())
    assert most == 1


def test_a_failed_call_releases_its_slot_at_once() -> None:
    def fail() -> None:
        raise KeyError("x")

    async def scenario() -> None:
        threads = Threads(timeout_seconds=SLOW_SECONDS * 0.9)
        failed = await asyncio.gather(
            *(threads.run(f"key {number}", "fail", fail) for number in range(MAX_CALLS)), return_exceptions=True
        )
        assert [type(each) for each in failed] == [KeyError] * MAX_CALLS
        assert await threads.run("well", "be done", lambda: "done") == "done"  # before slow calls stop counting

    run(scenario())


def test_a_caller_cancelled_before_its_turn_blocks_nothing() -> None:
    async def scenario() -> None:
        with dead_server() as server:
            threads = Threads()
            keys = [f"hung {number}" for number in range(MAX_CALLS)]
            calls = [asyncio.create_task(threads.run(key, "wait", server.wait)) for key in keys]
            await asyncio.sleep(0)
            cancelled = asyncio.create_task(threads.run("a", "wait for a slot", lambda: "never"))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            server.answer(MAX_CALLS)
            await asyncio.gather(*calls)
            assert await threads.run("a", "be done", lambda: "done") == "done"

    run(scenario())


def test_a_slow_call_releases_its_slot_only_once() -> None:
    async def scenario() -> None:
        with dead_server() as slow, dead_server() as server:
            threads = Threads()
            first = asyncio.create_task(threads.run("slow", "wait", slow.wait))
            await asyncio.sleep(SLOW_SECONDS + 0.1)
            slow.answer()
            await first
            begun: list[int] = []

            def wait_as(number: int) -> None:
                begun.append(number)
                server.wait()

            count = MAX_CALLS + 2
            calls = [
                asyncio.create_task(threads.run(f"{number}", "wait", partial(wait_as, number)))
                for number in range(count)
            ]
            await asyncio.sleep(0.2)
            assert len(begun) == MAX_CALLS
            server.answer(count)
            await asyncio.gather(*calls)

    run(scenario())
