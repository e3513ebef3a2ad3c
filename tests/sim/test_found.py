"""What the simulation found, one scenario each: named after what went wrong, so that it never does again."""

import asyncio

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType
from podkeeper.runtimes.fake import Behaviour, Operation
from tests.sim.stories import Story, pod, tell


def test_a_start_that_takes_effect_long_after_its_deadline_runs_beside_nobody() -> None:
    """The next try was made and started, then the hung start came true: two live containers of one name (I3)."""

    async def story(it: Story) -> None:
        hung = it.runtime.faults.hang(Operation.START_CONTAINER, seconds=200)
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=180)
        await asyncio.sleep(120)  # past the end of the hung call
        assert hung.times == 0
        assert [(life.attempt, life.started is not None) for life in it.lives(uid)] == [(0, False), (1, True)]

    tell(story)


def test_an_older_end_is_never_taken_for_the_last_one() -> None:
    """Dead containers went, newest first, while the last status was made: an exit code of an earlier try won (I2)."""

    async def story(it: Story) -> None:
        life = Behaviour(after_seconds=5, exit_code=0, crashes=2, term_seconds=None)
        uid = it.put(pod("web", grace=2, app=life))
        await it.until(lambda: len(it.lives(uid)) == 3, within=60)
        changes = it.changes()
        it.runtime.delays[Operation.REMOVE_CONTAINER] = 8  # one is gone and one is there when the last pass looks
        it.runtime.faults.fail(Operation.REMOVE_CONTAINER)  # so that the older end is still there
        it.world.volumes.faults.fail("unmount", times=2)
        it.world.troubles.begin(it.world.now(), "volume-trouble", uid)
        it.delete("web")
        await it.until(lambda: not it.runs(uid), within=5)
        await asyncio.sleep(0.1)
        death = LifecycleEvent(uid, LifecycleEventType.CONTAINER_DIED, it.lives(uid)[-1].id)
        it.agent.loop.tell_lifecycle(death)  # news that is late
        await it.until(lambda: it.is_gone("web"), within=60)
        last = [change.new for change in changes if change.new is not None][-1]
        ends = [each.state.terminated for each in last.status.container_statuses or ()]
        assert [end.exit_code for end in ends if end is not None] == [137]

    tell(story)
