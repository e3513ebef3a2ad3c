"""Stops that are called off: who was asked to end, and did not, goes on."""

import asyncio
from pathlib import Path

from podkeeper.model.runtime import ContainerState
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.home import Scene, at_home

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def test_a_container_that_is_spared_outlives_its_grace_and_can_be_stopped_later(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, logs=str(tmp_path))
        container = await scene.start("sh", "-c", DEAF)
        await scene.said(b"ready")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(runtime.stop_container(container, 1.5))
            await asyncio.sleep(0.1)
            await runtime.spare_all()
            await asyncio.sleep(1.8)
            assert (await scene.container(container)).state is ContainerState.RUNNING
            await runtime.stop_container(container, 0)
            await stop
        record = await scene.container(container)
        assert (record.state, record.exit_code) == (ContainerState.EXITED, 137)

    async def whole() -> None:
        async with at_home("plain") as runtime, asyncio.timeout(30):
            await act(runtime)

    asyncio.run(whole())


TWICE = "n=0; trap 'n=$((n+1)); echo term$n; [ $n = 2 ] && exit 7' TERM; echo ready; while :; do sleep 0.05; done"


def test_a_container_that_was_spared_is_asked_again_when_it_is_stopped_again(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = Scene(runtime, logs=str(tmp_path))
        container = await scene.start("sh", "-c", TWICE)
        await scene.said(b"ready")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(runtime.stop_container(container, 20))
            await scene.said(b"term1")
            repeated = group.create_task(runtime.stop_container(container, 20))  # it knows already
            await asyncio.sleep(0.2)
            assert b"term2" not in scene.log()
            await runtime.spare_all()
            await runtime.stop_container(container, 3)
            await stop
            await repeated
        record = await scene.container(container)
        assert (record.state, record.exit_code) == (ContainerState.EXITED, 7)

    async def whole() -> None:
        async with at_home("plain") as runtime, asyncio.timeout(30):
            await act(runtime)

    asyncio.run(whole())


def test_where_nothing_is_being_stopped_nobody_notices() -> None:
    async def whole() -> None:
        async with at_home("plain") as runtime, asyncio.timeout(30):
            scene = Scene(runtime)
            container = await scene.start("sleep", "60")
            await runtime.spare_all()
            assert (await scene.container(container)).state is ContainerState.RUNNING

    asyncio.run(whole())
