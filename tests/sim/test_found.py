"""What the simulation found, one scenario each: named after what went wrong, so that it never does again."""

import asyncio

import msgspec
import pytest

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.sim.deeds import Evict
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import Fate, World
from tests.sim.stories import Story, container, pod, tell


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


def test_an_evicted_pod_tells_how_its_container_ended_though_its_start_had_seemed_to_fail() -> None:
    """The start timed out and took effect; that it had failed was kept, and hid the exit code of the end (I7)."""

    async def story(it: Story) -> None:
        it.runtime.faults.lose_answer(Operation.START_CONTAINER)
        it.world.troubles.begin(it.world.now(), "lost-answers")
        it.put(pod("web", app=Behaviour(term_exit_code=3)))
        await it.until(lambda: it.is_ready("web"), within=1)
        Evict("evict", "web", 1).play(it.world)
        await it.until(lambda: it.phase("web") == "Failed", within=10)
        end = it.status("web").state.terminated
        assert end is not None
        assert end.exit_code == 3

    tell(story)


@pytest.mark.parametrize("jump", [7200, -7200])
def test_an_image_that_cannot_be_pulled_is_waited_for_no_longer_because_the_clock_jumps(jump: float) -> None:
    """A pull failed while the clock was ahead; put right again, it held the next one back for hours (I6)."""

    async def story(it: Story) -> None:
        it.world.clock.jump(jump)
        it.runtime.faults.fail(Operation.PULL_IMAGE, times=1)
        it.put(pod("web"))
        await asyncio.sleep(5)
        it.world.clock.jump(-jump)
        waited = await it.until(lambda: it.is_ready("web"), within=30)
        assert waited > 4

    tell(story)


@pytest.mark.parametrize("jump", [7200, -7200])
def test_a_container_in_back_off_waits_no_longer_because_the_clock_jumps(jump: float) -> None:
    """An exit seen before the clock was put back lay hours ahead, and the restart with it (I6)."""

    async def story(it: Story) -> None:
        it.world.clock.jump(jump)
        uid = it.put(pod("web", app=Behaviour(after_seconds=1, exit_code=1, crashes=2)))
        await it.until(lambda: len(it.lives(uid)) == 2 and not it.runs(uid), within=10)
        await asyncio.sleep(1)
        it.world.clock.jump(-jump)
        waited = await it.until(lambda: len(it.lives(uid)) == 3, within=30)
        assert waited > 5

    tell(story)


def test_a_clock_jump_does_not_remove_a_container_that_is_about_to_start() -> None:
    """Seed 100043: after the clock was put back, the new attempt looked older than a dead one, and was removed."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=1, exit_code=1, crashes=1)))
        await it.until(lambda: len(it.lives(uid)) == 2 and it.runs(uid), within=5)
        it.world.clock.jump(-480)
        it.world.troubles.begin(it.world.now(), "clock-jump")
        it.runtime.faults.fail(Operation.REMOVE_CONTAINER, uid)  # so that the first dead one is still there
        it.runtime.faults.hang(Operation.START_CONTAINER, uid, seconds=5)
        it.world.troubles.begin(it.world.now(), "slow-calls", uid)
        it.api.replace_spec("web", pod("web", container(image="app:v2")).spec)
        await it.until(lambda: len(it.lives(uid)) == 3, within=5)
        await asyncio.sleep(1)
        it.agent.loop.tell_lifecycle(LifecycleEvent(uid, LifecycleEventType.CONTAINER_DIED, it.lives(uid)[1].id))
        await it.until(lambda: it.runs(uid), within=10)
        assert len(it.lives(uid)) == 3

    tell(story)


@pytest.mark.parametrize("jump", [7200, 6, -7200])
def test_a_container_is_not_restarted_early_because_the_clock_jumps_before_its_exit_is_seen(jump: float) -> None:
    """Seed 387: by the new clock the exit was hours old, so its backoff seemed to be over (I16)."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=8, exit_code=1, crashes=2)))
        await it.until(lambda: len(it.lives(uid)) == 2, within=10)

        def delay(event: RuntimeEvent) -> tuple[tuple[float, RuntimeEvent], ...]:
            return ((4.0, event),)

        it.runtime.add_event_filter(delay)
        it.world.troubles.begin(it.world.now(), "late-events")
        await it.until(lambda: not it.runs(uid), within=10)
        await asyncio.sleep(1)
        it.world.clock.jump(jump)
        await asyncio.sleep(4)
        it.runtime.remove_event_filter(delay)
        await it.until(lambda: len(it.lives(uid)) == 3, within=30)
        before, after = it.lives(uid)[1:]
        assert before.ended is not None
        assert after.started is not None
        assert 9 < after.started - before.ended < 21  # 10 s, at most 4 s later, and the jitter of the next sync

    tell(story)


def test_a_start_that_is_refused_is_not_tried_again_at_once() -> None:
    """The leftover of the last try was removed, that was told as a death, and so the next try came without a pause."""

    async def story(it: Story) -> None:
        it.runtime.faults.fail(Operation.START_CONTAINER, times=1000)
        it.world.troubles.begin(it.world.now(), "runtime-errors")
        uid = it.put(pod("web", container("app"), container("beside")))
        await asyncio.sleep(60)
        assert 4 <= len(it.lives(uid)) <= 7

    tell(story)


def test_an_end_that_a_new_agent_cannot_know_of_is_not_taken_back() -> None:
    """The disk was full and the list an old one: the new agent ran the pod again, and called it Running."""

    async def story(it: Story) -> None:
        it.put(pod("web", app=Behaviour(term_exit_code=1)))
        await it.until(lambda: it.is_ready("web"), within=1)
        it.world.trouble("disk-full", 60, lambda: None)
        it.world.journal.disk_full, it.world.fate = True, Fate(notes_kept=False)
        before = it.api.version
        Evict("evictions", "web", None).play(it.world)
        await it.until(lambda: it.phase("web") == "Failed", within=20)
        it.api.lists_as_of = before
        it.api.set_watch_pace(delay_seconds=15)
        it.world.crash()
        await asyncio.sleep(30)
        it.api.lists_as_of, it.world.journal.disk_full = None, False
        it.api.set_watch_pace()
        await asyncio.sleep(60)
        assert it.phase("web") == "Failed"
        assert not it.world.truth.running(it.uid("web"))

    tell(story)


def test_what_is_said_of_a_static_pod_is_kept_until_all_of_it_is_over() -> None:
    """Its status was forgotten when its containers had ended: its mirror was told an empty one after the last word."""

    async def story(it: Story) -> None:
        place, manifest = "/static.yaml", pod("static")
        uid = it.write(place, manifest)
        await it.until(lambda: it.is_ready("static-n1"), within=2)
        changes = it.changes()
        it.world.volumes.delays["unmount"] = 8.0
        it.write(place, pod("static", container(image="app:v2")))
        await asyncio.sleep(6)
        it.write(place, manifest)
        await asyncio.sleep(60)
        assert it.runs(uid)
        told = [change.new.status for change in changes if change.new is not None and change.old is not None]
        assert told
        assert all(status.conditions for status in told)

    tell(story)


@pytest.mark.parametrize("seed", [28, 83, 87, 131])  # the loop is late at the right moment
def test_a_pod_that_was_deleted_while_the_runtime_was_down_starts_nothing_when_it_is_back(seed: int) -> None:
    """Seed 552: the deletion waited in the loop until the runtime was well, and a pass went on before that (I12)."""

    world = World(seed)
    watch(world)

    async def story() -> None:
        it = Story(world)
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        it.world.troubles.begin(it.world.now(), "runtime-down")
        it.runtime.go_down()
        it.runtime.end_container(uid, "app", 0)
        await asyncio.sleep(60)
        spec = it.seen("web").spec
        it.api.replace_spec("web", msgspec.structs.replace(spec, active_deadline_seconds=10_000))
        it.put(*(pod(f"other{number}") for number in range(40)))
        it.delete("web")
        await asyncio.sleep(10)
        it.world.loop.dawdle(0.5, 0.5)
        it.world.troubles.begin(it.world.now(), "dawdle")
        it.runtime.come_up()
        await it.until(lambda: it.is_gone("web"), within=60)
        assert len(it.lives(uid)) == 1

    verdict = world.play(story)
    assert verdict.violation is None, verdict.violation
