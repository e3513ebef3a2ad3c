"""Background work continues without its caller, and its errors affect no other work."""

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from podkeeper.engine.background import Background
from podkeeper.model.errors import TryLater
from podkeeper.testing.virtual_time import simulate


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    built = Background()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(built.run())
        await asyncio.sleep(0)
        yield built
        running.cancel()


async def wait_one_second(future: asyncio.Future[str], *, shielded: bool) -> None:
    """Wait for one second, like a sync that is then cancelled."""

    async def wait() -> None:
        await (asyncio.shield(future) if shielded else future)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(1)
        waiting.cancel()


def test_work_continues_after_its_caller_stopped_waiting() -> None:
    async def scenario() -> str:
        async with background() as work:
            future = work.spawn(asyncio.sleep(60, "done"))
            await wait_one_second(future, shielded=True)
            return await future

    assert simulate(scenario()) == ("done", 60.0)


def test_cancelling_the_future_cancels_the_work_without_waiting() -> None:
    ended: list[float] = []

    async def slow_to_cancel() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(5)
            ended.append(asyncio.get_running_loop().time())
        return "never"

    async def scenario() -> float:
        async with background() as work:
            await wait_one_second(work.spawn(slow_to_cancel()), shielded=False)
            stopped_waiting_at = asyncio.get_running_loop().time()
            await asyncio.sleep(30)
            return stopped_waiting_at

    assert simulate(scenario())[0] == 1.0
    assert ended == [6.0]


@pytest.mark.parametrize("error", [TryLater("cannot now"), ZeroDivisionError("a bug")], ids=["expected", "unexpected"])
def test_an_error_reaches_only_its_own_caller(error: Exception) -> None:
    async def fail() -> str:
        raise error

    async def scenario() -> str:
        async with background() as work:
            failing, well = work.spawn(fail()), work.spawn(asyncio.sleep(1, "well"))
            with pytest.raises(type(error)):
                await failing
            return await well

    assert simulate(scenario())[0] == "well"


def test_work_spawned_after_the_end_is_cancelled() -> None:
    async def scenario() -> tuple[bool, str]:
        async with background() as work:
            pass
        late = asyncio.sleep(1, "late")
        return work.spawn(late).cancelled(), inspect.getcoroutinestate(late)

    assert simulate(scenario())[0] == (True, inspect.CORO_CLOSED)


def test_work_is_cancelled_when_the_agent_stops() -> None:
    async def scenario() -> bool:
        async with background() as work:
            future = work.spawn(asyncio.sleep(3600, "late"))
        return future.cancelled()

    assert simulate(scenario()) == (True, 0.0)


def test_work_spawned_before_the_agent_runs_starts_with_it() -> None:
    async def scenario() -> str:
        work = Background()
        future = work.spawn(asyncio.sleep(1, "early"))
        await asyncio.sleep(10)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(work.run())
            result = await future
            running.cancel()
            return result

    assert simulate(scenario()) == ("early", 11.0)


def test_give_up_cancels_the_work_of_an_agent_that_never_ran() -> None:
    async def scenario() -> bool:
        work = Background()
        early = work.spawn(asyncio.sleep(1, "never"))
        running = asyncio.create_task(work.run())
        running.cancel()  # before its first step
        await asyncio.wait([running])
        work.give_up()
        late = work.spawn(asyncio.sleep(1, "never"))
        return early.cancelled() and late.cancelled()

    assert simulate(scenario()) == (True, 0.0)


def test_work_is_cancelled_before_its_first_step() -> None:
    async def scenario() -> tuple[bool, str]:
        work = Background()
        running = asyncio.create_task(work.run())
        await asyncio.sleep(0)
        running.cancel()
        not_started = asyncio.sleep(1, "never started")
        future = work.spawn(not_started)
        await asyncio.wait([running])
        return future.cancelled(), inspect.getcoroutinestate(not_started)

    assert simulate(scenario()) == ((True, inspect.CORO_CLOSED), 0.0)


def test_work_whose_future_was_cancelled_before_the_agent_ran_never_starts() -> None:
    started: list[str] = []

    async def work(name: str) -> None:
        started.append(name)

    async def scenario() -> bool:
        built = Background()
        unwanted, wanted = built.spawn(work("unwanted")), built.spawn(work("wanted"))
        unwanted.cancel()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(built.run())
            await wanted
            running.cancel()
        return unwanted.cancelled()

    assert simulate(scenario())[0]
    assert started == ["wanted"]


@pytest.mark.parametrize("given_up", [False, True], ids=["after a run", "after give_up"])
def test_a_background_runs_once(given_up: bool) -> None:
    async def scenario() -> None:
        if given_up:
            built = Background()
            built.give_up()
            built.give_up()  # does nothing
        else:
            async with background() as built:
                pass
        with pytest.raises(RuntimeError, match="cannot run the background tasks twice"):
            await built.run()

    simulate(scenario())


@pytest.mark.parametrize("error", [None, ZeroDivisionError("a bug")], ids=["returns", "fails"])
def test_work_that_ignores_its_cancellation_does_not_affect_other_work(error: Exception | None) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        if error is not None:
            raise error
        return "too late"

    async def scenario() -> tuple[str, bool]:
        async with background() as work:
            future = work.spawn(stubborn())
            await asyncio.sleep(1)
            future.cancel()
            await asyncio.sleep(5)
            return await work.spawn(asyncio.sleep(1, "well")), future.cancelled()

    assert simulate(scenario())[0] == ("well", True)


def test_an_error_without_a_waiter_is_not_reported_to_the_loop() -> None:
    reported: list[object] = []

    async def fail() -> None:
        raise TryLater("cannot now")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
        async with background() as work:
            work.spawn(fail())
            await asyncio.sleep(1)
        gc.collect()

    simulate(scenario())
    assert reported == []
