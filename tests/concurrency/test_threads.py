"""Blocking work in a thread returns its result or its exception as a value."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from podkeeper.concurrency.threads import in_thread


def test_the_result_of_the_work() -> None:
    async def scenario() -> object:
        return await in_thread(lambda: threading.current_thread().name, "worker")

    assert asyncio.run(scenario()) == "worker"


def test_an_exception_is_a_result() -> None:
    def fail() -> None:
        raise OSError("gone")

    async def scenario() -> object:
        return await in_thread(fail, "worker")

    assert str(asyncio.run(scenario())) == "gone"


def test_the_thread_does_not_keep_the_process_alive() -> None:
    async def scenario() -> object:
        return await in_thread(lambda: threading.current_thread().daemon, "worker")

    assert asyncio.run(scenario()) is True


def test_work_that_ends_after_its_caller_was_cancelled_is_dropped() -> None:
    async def scenario() -> None:
        started: list[Callable[[], None]] = []
        future = in_thread(lambda: 1, "worker", lambda body, name: started.append(body))
        future.cancel()
        started[0]()
        await asyncio.sleep(0)
        assert future.cancelled()

    asyncio.run(scenario())


def test_work_that_ends_after_the_loop_was_closed_is_dropped() -> None:
    started: list[Callable[[], None]] = []

    async def scenario() -> "asyncio.Future[int | BaseException]":
        return in_thread(lambda: 1, "worker", lambda body, name: started.append(body))

    future = asyncio.run(scenario())
    started[0]()
    assert not future.done()


def test_no_thread_can_be_started() -> None:
    def refuse(body: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="can't start"):
            in_thread(lambda: 1, "worker", refuse)

    asyncio.run(scenario())
