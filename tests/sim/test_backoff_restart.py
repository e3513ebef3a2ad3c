"""Backoff survives the agent: no crash and no jump of the wall clock changes when a container starts again."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.sim.life import Side
from podkeeper.testing.sim.records import Answered
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, pod, tell

CRASHES = Behaviour(after_seconds=1, exit_code=1)
SLACK = 2.0  # the work queue, the sync and the start


def waiting(it: Story, name: str) -> tuple[str, str]:
    """Reason and message of a container that waits."""
    state = it.status(name).state
    return ("", "") if state.waiting is None else (state.waiting.reason or "", state.waiting.message or "")


async def until_attempt(it: Story, uid: PodUID, attempt: int) -> None:
    """Wait until an attempt has exited."""
    await it.until(lambda: len(it.lives(uid)) > attempt and it.lives(uid)[attempt].ended is not None, within=400)


@pytest.mark.parametrize("jump", [0, 7200, -7200])
@pytest.mark.parametrize("notes_kept", [True, False], ids=["all notes kept", "unsynced notes lost"])
def test_a_crash_in_the_middle_of_a_crash_loop_changes_no_delay(jump: float, notes_kept: bool) -> None:
    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=notes_kept)
        uid = it.put(pod("web", app=CRASHES))
        await until_attempt(it, uid, 3)  # the next delay is 40 s
        ended = it.lives(uid)[3].ended
        assert ended is not None
        await asyncio.sleep(10)
        before = waiting(it, "web")
        assert before[0] == "CrashLoopBackOff"
        assert "back-off 40s" in before[1]
        it.world.crash(away_seconds=5)
        await asyncio.sleep(1)
        it.world.clock.jump(jump)
        await asyncio.sleep(9)
        assert waiting(it, "web") == before
        shown = it.agent.explain(uid)
        assert "back-off 40s" in shown.waiting_for
        await it.until(lambda: len(it.lives(uid)) == 5, within=60)
        started = it.lives(uid)[4].started
        assert started is not None
        assert ended + 40 - 0.01 <= started <= ended + 40 + 0.5 * 25 + SLACK  # the retry has a jitter of one half
        await until_attempt(it, uid, 4)
        await it.until(lambda: "back-off 1m20s" in waiting(it, "web")[1], within=5)

    tell(story)


def test_a_crash_right_after_a_restart_does_not_make_the_next_one_come_at_once() -> None:
    """The note of a restart is durable before the container starts: here all unsynced notes are lost."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=False, calls_go_on=True)
        it.world.journal.sync_seconds = 0.3
        uid = it.put(pod("web", app=CRASHES))
        it.world.crash_point = lambda call, side: (
            call.operation == Operation.START_CONTAINER and side is Side.AFTER and len(it.lives(uid)) == 2
        )
        await until_attempt(it, uid, 1)
        ended = it.lives(uid)[1].ended
        assert ended is not None
        await it.until(lambda: len(it.lives(uid)) == 3, within=60)
        started = it.lives(uid)[2].started
        assert started is not None
        assert ended + 10 - 0.01 <= started <= ended + 10 + 0.5 * 10 + SLACK

    tell(story)


def test_a_container_that_exits_while_the_agent_is_down_waits_for_the_rest_of_its_delay() -> None:
    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=5, exit_code=1)))
        await until_attempt(it, uid, 2)
        await it.until(lambda: len(it.lives(uid)) == 4, within=60)
        await asyncio.sleep(2)
        it.world.crash(away_seconds=15)
        await until_attempt(it, uid, 3)
        ended = it.lives(uid)[3].ended
        assert ended is not None
        await it.until(lambda: len(it.lives(uid)) == 5, within=100)
        started = it.lives(uid)[4].started
        assert started is not None
        assert ended + 40 - 0.01 <= started <= ended + 40 + 0.5 * 30 + SLACK

    tell(story)


def test_a_crash_changes_no_delay_of_an_image_pull() -> None:
    async def story(it: Story) -> None:
        pulls: list[float] = []
        it.world.bus.subscribe(
            Answered, lambda each: pulls.append(each.at) if each.call.operation == Operation.PULL_IMAGE else None
        )
        it.runtime.missing_images.add("app:v1")
        it.put(pod("web"))
        await it.until(lambda: len(pulls) == 3, within=120)  # the next delay is 40 s
        await asyncio.sleep(10)
        it.world.crash(away_seconds=5)
        await asyncio.sleep(10)
        assert waiting(it, "web")[0] == "ImagePullBackOff"
        it.runtime.missing_images.clear()
        await it.until(lambda: len(pulls) == 4, within=120)
        assert pulls[2] + 40 - 0.01 <= pulls[3] <= pulls[2] + 40 + 0.5 * 25 + SLACK
        await it.until(lambda: it.is_ready("web"), within=5)

    tell(story)


def test_the_notes_of_a_deleted_pod_are_dropped() -> None:
    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=CRASHES))
        await until_attempt(it, uid, 2)
        assert f"restart-backoff/{uid}" in it.world.journal.load()
        it.delete("web")
        await it.until(lambda: it.is_gone("web"), within=60)
        await it.until(lambda: f"restart-backoff/{uid}" not in it.world.journal.load(), within=90)

    tell(story)
