"""Cancelled stops: a container that survived its stop signal keeps running."""

import asyncio
from pathlib import Path

from podkeeper.model.runtime import RecordState
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.process.harness import RuntimeHarness, in_runtime

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def test_a_cancelled_stop_does_not_kill_and_a_later_stop_does(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = RuntimeHarness(runtime, logs=str(tmp_path))
        container = await scene.start("sh", "-c", IGNORES_TERM)
        await scene.wait_for_log(b"ready")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(runtime.stop_container(container, 1.5))
            await asyncio.sleep(0.1)
            await runtime.cancel_stops()
            await asyncio.sleep(1.8)
            assert (await scene.container(container)).state is RecordState.RUNNING
            await runtime.stop_container(container, 0)
            await stop
        record = await scene.container(container)
        assert (record.state, record.exit_code) == (RecordState.EXITED, 137)

    in_runtime(act)


TWICE = "n=0; trap 'n=$((n+1)); echo term$n; [ $n = 2 ] && exit 7' TERM; echo ready; while :; do sleep 0.05; done"


def test_a_stop_after_a_cancelled_stop_sends_the_signal_again(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = RuntimeHarness(runtime, logs=str(tmp_path))
        container = await scene.start("sh", "-c", TWICE)
        await scene.wait_for_log(b"ready")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(runtime.stop_container(container, 20))
            await scene.wait_for_log(b"term1")
            repeated = group.create_task(runtime.stop_container(container, 20))
            await asyncio.sleep(0.2)
            assert b"term2" not in scene.log()
            await runtime.cancel_stops()
            await runtime.stop_container(container, 3)
            await stop
            await repeated
        record = await scene.container(container)
        assert (record.state, record.exit_code) == (RecordState.EXITED, 7)

    in_runtime(act)


def test_cancelling_without_a_pending_stop_has_no_effect() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        scene = RuntimeHarness(runtime)
        container = await scene.start("sleep", "60")
        await runtime.cancel_stops()
        assert (await scene.container(container)).state is RecordState.RUNNING

    in_runtime(act)
