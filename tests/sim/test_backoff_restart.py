"""Backoff survives the agent: no crash and no jump of the wall clock changes when a container starts again."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.sim.agent_process import Side
from podkeeper.testing.sim.records import CallEnded
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, run_scenario

CRASHES = Behaviour(after_seconds=1, exit_code=1)
SLACK = 2.0  # the work queue, the sync and the start


def waiting(node: SimNode, name: str) -> tuple[str, str]:
    """Reason and message of a container that waits."""
    state = node.status(name).state
    return ("", "") if state.waiting is None else (state.waiting.reason or "", state.waiting.message or "")


async def until_attempt(node: SimNode, uid: PodUID, attempt: int) -> None:
    """Wait until an attempt has exited."""
    await node.until(
        lambda: len(node.runs_of(uid)) > attempt and node.runs_of(uid)[attempt].ended is not None, within=400
    )


@pytest.mark.parametrize("jump", [0, 7200, -7200])
@pytest.mark.parametrize("keep_unsynced", [True, False], ids=["all notes kept", "unsynced notes lost"])
def test_a_crash_in_the_middle_of_a_crash_loop_changes_no_delay(jump: float, keep_unsynced: bool) -> None:
    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=keep_unsynced)
        uid = node.put(pod("web", behaviours={"app": CRASHES}))
        await until_attempt(node, uid, 3)  # the next delay is 40 s
        ended = node.runs_of(uid)[3].ended
        assert ended is not None
        await asyncio.sleep(10)
        before = waiting(node, "web")
        assert before[0] == "CrashLoopBackOff"
        assert "back-off 40s" in before[1]
        node.world.crash(downtime_seconds=5)
        await asyncio.sleep(1)
        node.world.clock.jump(jump)
        await asyncio.sleep(9)
        assert waiting(node, "web") == before
        shown = node.agent.explain(uid)
        assert "back-off 40s" in shown.waiting_for
        await node.until(lambda: len(node.runs_of(uid)) == 5, within=60)
        started = node.runs_of(uid)[4].started
        assert started is not None
        assert ended + 40 - 0.01 <= started <= ended + 40 + 0.5 * 25 + SLACK  # the retry has a jitter of one half
        await until_attempt(node, uid, 4)
        await node.until(lambda: "back-off 1m20s" in waiting(node, "web")[1], within=5)

    run_scenario(scenario)


def test_a_crash_right_after_a_restart_does_not_skip_the_next_delay() -> None:
    """The note of a restart is durable before the container starts: here all unsynced notes are lost."""

    async def scenario(node: SimNode) -> None:
        node.world.crash_options = CrashOptions(keep_unsynced=False, calls_continue=True)
        node.world.journal.sync_seconds = 0.3
        uid = node.put(pod("web", behaviours={"app": CRASHES}))
        node.world.crash_point = lambda call, side: (
            call.operation == Operation.START_CONTAINER and side is Side.AFTER and len(node.runs_of(uid)) == 2
        )
        await until_attempt(node, uid, 1)
        ended = node.runs_of(uid)[1].ended
        assert ended is not None
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=60)
        started = node.runs_of(uid)[2].started
        assert started is not None
        assert ended + 10 - 0.01 <= started <= ended + 10 + 0.5 * 10 + SLACK

    run_scenario(scenario)


def test_a_container_that_exits_while_the_agent_is_down_waits_for_the_rest_of_its_delay() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=5, exit_code=1)}))
        await until_attempt(node, uid, 2)
        await node.until(lambda: len(node.runs_of(uid)) == 4, within=60)
        await asyncio.sleep(2)
        node.world.crash(downtime_seconds=15)
        await until_attempt(node, uid, 3)
        ended = node.runs_of(uid)[3].ended
        assert ended is not None
        await node.until(lambda: len(node.runs_of(uid)) == 5, within=100)
        started = node.runs_of(uid)[4].started
        assert started is not None
        assert ended + 40 - 0.01 <= started <= ended + 40 + 0.5 * 30 + SLACK

    run_scenario(scenario)


def test_a_crash_changes_no_delay_of_an_image_pull() -> None:
    async def scenario(node: SimNode) -> None:
        pulls: list[float] = []
        node.world.bus.subscribe(
            CallEnded, lambda each: pulls.append(each.at) if each.call.operation == Operation.PULL_IMAGE else None
        )
        node.runtime.missing_images.add("app:v1")
        node.put(pod("web"))
        await node.until(lambda: len(pulls) == 3, within=120)  # the next delay is 40 s
        await asyncio.sleep(10)
        node.world.crash(downtime_seconds=5)
        await asyncio.sleep(10)
        assert waiting(node, "web")[0] == "ImagePullBackOff"
        node.runtime.missing_images.clear()
        await node.until(lambda: len(pulls) == 4, within=120)
        assert pulls[2] + 40 - 0.01 <= pulls[3] <= pulls[2] + 40 + 0.5 * 25 + SLACK
        await node.until(lambda: node.is_ready("web"), within=5)

    run_scenario(scenario)


def test_the_journal_entries_of_a_deleted_pod_are_removed() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": CRASHES}))
        await until_attempt(node, uid, 2)
        assert f"restart-backoff/{uid}" in node.world.journal.load()
        node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=60)
        await node.until(lambda: f"restart-backoff/{uid}" not in node.world.journal.load(), within=90)

    run_scenario(scenario)
