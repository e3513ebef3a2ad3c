"""Virtual time is exact, and a test that would hang fails instead."""

import asyncio
import socket
from datetime import timedelta

import pytest

from podkeeper.testing.virtual_time import BEGINNING, Stuck, VirtualClock, idle_seconds, simulate


def test_hours_pass_exactly() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []

        async def append(word: str, after: float) -> None:
            await asyncio.sleep(after)
            seen.append(word)

        async with asyncio.TaskGroup() as group:
            for word, after in (("late", 7200.3), ("early", 0.1), ("middle", 3600.0)):
                group.create_task(append(word, after))
        return seen

    assert simulate(scenario()) == (["early", "middle", "late"], 7200.3)


def test_many_small_steps_do_not_drift() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for step in range(1000):
            done = asyncio.Event()
            loop.call_at((step + 1) * 0.1, done.set)
            await done.wait()

    assert simulate(scenario())[1] == 1000 * 0.1


def test_a_deadlock_raises_stuck() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="wait_for_ever"):
        simulate(wait_for_ever())


def test_sockets_still_work() -> None:
    async def scenario() -> bytes:
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            loop = asyncio.get_running_loop()
            receiving = loop.create_task(loop.sock_recv(right, 5))
            await asyncio.sleep(0)
            await loop.sock_sendall(left, b"hello")
            return await receiving

    assert simulate(scenario())[0] == b"hello"


def test_tasks_that_the_scenario_left_running_are_cancelled() -> None:
    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def scenario() -> None:
        async def background() -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                ended.append("background")

        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(1)

    assert simulate(scenario())[1] == 1
    assert ended == ["background"]


def test_a_jump_of_the_wall_clock_moves_no_timer() -> None:
    async def scenario() -> tuple[timedelta, float]:
        clock = VirtualClock(seed=7)
        clock.jump(-3600)
        await asyncio.sleep(10)
        return clock.now() - BEGINNING, clock.monotonic()

    assert simulate(scenario())[0] == (timedelta(seconds=-3590), 10.0)


def test_randomness_is_seeded() -> None:
    async def draw(seed: int) -> list[float]:
        clock = VirtualClock(seed=seed)
        return [clock.fraction() for _ in range(3)]

    assert simulate(draw(1)) == simulate(draw(1))
    assert simulate(draw(1)) != simulate(draw(2))


def test_a_loop_is_idle_until_its_next_timer() -> None:
    async def scenario() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        nothing = idle_seconds()
        loop.call_later(5, lambda: None)
        timer = idle_seconds()
        loop.call_soon(lambda: None)
        return nothing, timer, idle_seconds()

    assert simulate(scenario())[0] == (0.0, 5.0, 0.0)


def test_a_real_loop_is_never_known_to_be_idle() -> None:
    async def scenario() -> float:
        asyncio.get_running_loop().call_later(5, lambda: None)
        return idle_seconds()

    assert asyncio.run(scenario()) == 0.0
