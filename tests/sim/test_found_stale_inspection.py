"""Regressions from the simulation: views of the runtime that are older than the agent's own actions."""

import asyncio

import msgspec
import pytest

from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.build import container
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, run_scenario


async def break_event_streams(node: SimNode, seconds: float) -> None:
    """Let PLEG rely on listings: no event arrives, and it relists every second."""

    def lose(event: RuntimeEvent) -> tuple[()]:
        return ()

    node.runtime.add_event_filter(lose)
    node.world.begin_fault("lost-events", seconds, lambda: node.runtime.remove_event_filter(lose))
    end = node.world.now() + seconds
    while node.world.now() < end:
        node.runtime.break_events()
        await asyncio.sleep(3)


def test_a_container_that_runs_is_not_created_again_after_a_slow_inspection() -> None:
    """Seed 100067: PLEG accepted an inspection that the cache refused; the next listing confirmed the old record."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=5, exit_code=1, crashes=2)}))
        await node.until(lambda: len(node.runs_of(uid)) == 2 and not node.runs(uid), within=20)
        losing = asyncio.ensure_future(break_event_streams(node, seconds=60))
        node.runtime.faults.hang(Operation.POD_RECORD, uid, times=2, seconds=20)
        node.world.fault_log.begin(node.world.now(), "slow-calls", uid)
        node.agent.engine.pleg.request(uid)
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=19)  # restarted while the inspection is in flight
        await losing
        assert [(run.attempt, run.running) for run in node.runs_of(uid)] == [(0, False), (1, False), (2, True)]

    run_scenario(scenario)


def test_a_create_call_of_a_dead_agent_does_not_replace_the_container_that_runs() -> None:
    """Seed 100003: the call took effect after the next agent had created and started the same attempt."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(calls_continue=True)
        node.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=30)
        uid = node.put(pod("web"))
        await asyncio.sleep(5)
        await node.restart_agent()
        await node.until(lambda: node.is_ready("web"), within=5)
        await asyncio.sleep(60)  # the call of the first agent has ended
        assert [(run.attempt, run.running) for run in node.runs_of(uid)] == [(0, True)]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("runs_seconds", "create_seconds"),
    [(5, 25.0), (40, 0.0)],
    ids=["before the next agent creates its own", "while that of the next agent runs"],
)
def test_a_container_runs_once_although_a_dead_agent_creates_a_later_attempt(
    runs_seconds: int, create_seconds: float
) -> None:
    """Seeds 94 and 331: a new sandbox had removed the first attempt, so the next agent counted from 0 again.

    The later attempt of the dead agent hid the one that ran, and a third one was started.
    """

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(calls_continue=True)
        uid = node.put(
            pod("web", init=(container("prepare"),), behaviours={"prepare": Behaviour(after_seconds=runs_seconds)})
        )
        await node.until(lambda: node.is_ready("web"), within=50)
        node.runtime.faults.hang(Operation.CREATE_CONTAINER, uid, seconds=30)
        node.runtime.kill_sandbox(uid)
        await asyncio.sleep(10)
        if create_seconds:
            node.runtime.faults.hang(Operation.CREATE_CONTAINER, uid, seconds=create_seconds)
        node.world.fault_log.begin(node.world.now(), "hung-calls")
        await node.restart_agent()
        await asyncio.sleep(60)
        assert node.is_ready("web")

    run_scenario(scenario)


def test_a_create_call_of_a_dead_agent_does_not_erase_an_exit_code() -> None:
    """A job that has succeeded would run again: the late call removed its container."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(calls_continue=True)
        node.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=30)
        node.world.volumes.faults.hang("unmount", seconds=60)  # the job's exit code is still needed
        node.world.fault_log.begin(node.world.now(), "volume-trouble")
        uid = node.put(pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=5)}))
        await asyncio.sleep(5)
        await node.restart_agent()
        await node.until(lambda: node.phase("job") == "Succeeded", within=120)
        await asyncio.sleep(60)
        assert [(run.attempt, run.exit_code) for run in node.runs_of(uid)] == [(0, 0)]

    run_scenario(scenario)


def test_a_create_call_that_takes_effect_after_its_deadline_does_not_replace_the_container_that_runs() -> None:
    """The same within one agent process: the call timed out, and the next sync created the attempt."""

    async def scenario(node: SimNode) -> None:
        node.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=200)
        node.world.fault_log.begin(node.world.now(), "hung-calls")
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=180)
        await asyncio.sleep(120)
        assert [(run.attempt, run.running) for run in node.runs_of(uid)] == [(0, True)]

    run_scenario(scenario)


def test_a_start_call_of_a_dead_agent_that_takes_effect_during_an_image_pull_is_accepted() -> None:
    """The sync saw a container that had not started, pulled its image, and removed the container although it ran."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(calls_continue=True)
        node.runtime.faults.hang(Operation.START_CONTAINER, seconds=20)
        always = msgspec.structs.replace(container(), image_pull_policy="Always")
        uid = node.put(pod("web", always))
        await asyncio.sleep(5)
        node.runtime.delays[Operation.PULL_IMAGE] = 30
        await node.restart_agent()
        await asyncio.sleep(90)
        assert node.is_ready("web")
        assert [(run.attempt, run.running) for run in node.runs_of(uid)] == [(0, True)]

    run_scenario(scenario)
