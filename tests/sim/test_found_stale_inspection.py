"""What the simulation found about views of the runtime that are older than the agent's own actions."""

import asyncio

import msgspec
import pytest

from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, container, pod, tell


async def break_event_streams(it: Story, seconds: float) -> None:
    """Let PLEG rely on listings: no event arrives, and it relists every second."""

    def lose(event: RuntimeEvent) -> tuple[()]:
        return ()

    it.runtime.add_event_filter(lose)
    it.world.trouble("lost-events", seconds, lambda: it.runtime.remove_event_filter(lose))
    end = it.world.now() + seconds
    while it.world.now() < end:
        it.runtime.break_events()
        await asyncio.sleep(3)


def test_a_container_that_runs_is_not_created_again_after_a_slow_inspection() -> None:
    """Seed 100067: PLEG accepted an inspection that the cache refused; the next listing confirmed the old record."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=5, exit_code=1, crashes=2)))
        await it.until(lambda: len(it.lives(uid)) == 2 and not it.runs(uid), within=20)
        losing = asyncio.ensure_future(break_event_streams(it, seconds=60))
        it.runtime.faults.hang(Operation.POD_RECORD, uid, times=2, seconds=20)
        it.world.troubles.begin(it.world.now(), "slow-calls", uid)
        it.agent.pleg.request(uid)
        await it.until(lambda: len(it.lives(uid)) == 3, within=19)  # restarted while the inspection is in flight
        await losing
        assert [(life.attempt, life.running) for life in it.lives(uid)] == [(0, False), (1, False), (2, True)]

    tell(story)


def test_a_create_call_of_a_dead_agent_does_not_replace_the_container_that_runs() -> None:
    """Seed 100003: the call took effect after the next agent had created and started the same attempt."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(calls_go_on=True)
        it.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=30)
        uid = it.put(pod("web"))
        await asyncio.sleep(5)
        await it.restart_agent()
        await it.until(lambda: it.is_ready("web"), within=5)
        await asyncio.sleep(60)  # the call of the first agent has ended
        assert [(life.attempt, life.running) for life in it.lives(uid)] == [(0, True)]

    tell(story)


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

    async def story(it: Story) -> None:
        it.world.fate = Fate(calls_go_on=True)
        uid = it.put(pod("web", init=(container("prepare"),), prepare=Behaviour(after_seconds=runs_seconds)))
        await it.until(lambda: it.is_ready("web"), within=50)
        it.runtime.faults.hang(Operation.CREATE_CONTAINER, uid, seconds=30)
        it.runtime.kill_sandbox(uid)
        await asyncio.sleep(10)
        if create_seconds:
            it.runtime.faults.hang(Operation.CREATE_CONTAINER, uid, seconds=create_seconds)
        it.world.troubles.begin(it.world.now(), "hung-calls")
        await it.restart_agent()
        await asyncio.sleep(60)
        assert it.is_ready("web")

    tell(story)


def test_a_create_call_of_a_dead_agent_does_not_erase_an_exit_code() -> None:
    """A job that has succeeded would run again: the late call removed its container."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(calls_go_on=True)
        it.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=30)
        it.world.volumes.faults.hang("unmount", seconds=60)  # the job's exit code is still needed
        it.world.troubles.begin(it.world.now(), "volume-trouble")
        uid = it.put(pod("job", policy="Never", app=Behaviour(after_seconds=5)))
        await asyncio.sleep(5)
        await it.restart_agent()
        await it.until(lambda: it.phase("job") == "Succeeded", within=120)
        await asyncio.sleep(60)
        assert [(life.attempt, life.exit_code) for life in it.lives(uid)] == [(0, 0)]

    tell(story)


def test_a_create_call_that_takes_effect_after_its_deadline_does_not_replace_the_container_that_runs() -> None:
    """The same within one life of the agent: the call was given up, and the next sync created the attempt."""

    async def story(it: Story) -> None:
        it.runtime.faults.hang(Operation.CREATE_CONTAINER, seconds=200)
        it.world.troubles.begin(it.world.now(), "hung-calls")
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=180)
        await asyncio.sleep(120)
        assert [(life.attempt, life.running) for life in it.lives(uid)] == [(0, True)]

    tell(story)


def test_a_start_call_of_a_dead_agent_that_takes_effect_during_an_image_pull_is_accepted() -> None:
    """The sync saw a container that had not started, pulled its image, and removed the container although it ran."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(calls_go_on=True)
        it.runtime.faults.hang(Operation.START_CONTAINER, seconds=20)
        always = msgspec.structs.replace(container(), image_pull_policy="Always")
        uid = it.put(pod("web", always))
        await asyncio.sleep(5)
        it.runtime.delays[Operation.PULL_IMAGE] = 30
        await it.restart_agent()
        await asyncio.sleep(90)
        assert it.is_ready("web")
        assert [(life.attempt, life.running) for life in it.lives(uid)] == [(0, True)]

    tell(story)
