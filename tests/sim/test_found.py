"""Regressions for bugs that the simulation found, one scenario each."""

import asyncio

import msgspec
import pytest

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.build import container
from podkeeper.testing.sim.actions import Evict
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.world import CrashOptions, World
from tests.sim.sim_node import SimNode, pod, run_scenario


def test_a_start_that_takes_effect_after_its_deadline_does_not_run_twice() -> None:
    """The next attempt had started when the hung start took effect: two running containers of one name (I3)."""

    async def scenario(node: SimNode) -> None:
        hung = node.runtime.faults.hang(Operation.START_CONTAINER, seconds=200)
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=180)
        await asyncio.sleep(120)  # past the end of the hung call
        assert hung.times == 0
        assert [(run.attempt, run.started is not None) for run in node.runs_of(uid)] == [(0, False), (1, True)]

    run_scenario(scenario)


def test_an_older_exit_status_never_replaces_the_last_one() -> None:
    """Dead containers were removed, newest first, before the last status: an exit code of an older attempt won (I2)."""

    async def scenario(node: SimNode) -> None:
        run = Behaviour(after_seconds=5, exit_code=0, crashes=2, term_seconds=None)
        uid = node.put(pod("web", grace=2, behaviours={"app": run}))
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=60)
        changes = node.changes()
        node.runtime.delays[Operation.REMOVE_CONTAINER] = (
            8  # one is removed and one exists at the inspection of the last sync
        )
        node.runtime.faults.fail(Operation.REMOVE_CONTAINER)  # so that the older attempt still exists
        node.world.volumes.faults.fail("unmount", times=2)
        node.world.fault_log.begin(node.world.now(), "volume-trouble", uid)
        node.delete("web")
        await node.until(lambda: not node.runs(uid), within=5)
        await asyncio.sleep(0.1)
        death = LifecycleEvent(uid, LifecycleEventType.CONTAINER_DIED, node.runs_of(uid)[-1].id)
        node.agent.engine.inbox.put(death)  # a late event
        await node.until(lambda: node.is_gone("web"), within=60)
        last = [change.new for change in changes if change.new is not None][-1]
        ends = [each.state.terminated for each in last.status.container_statuses or ()]
        assert [end.exit_code for end in ends if end is not None] == [137]

    run_scenario(scenario)


def test_an_evicted_pod_keeps_its_exit_code_after_a_start_that_seemed_to_fail() -> None:
    """The start timed out and took effect. Its stored failure hid the exit code (I7)."""

    async def scenario(node: SimNode) -> None:
        node.runtime.faults.lose_answer(Operation.START_CONTAINER)
        node.world.fault_log.begin(node.world.now(), "lost-answers")
        node.put(pod("web", behaviours={"app": Behaviour(term_exit_code=3)}))
        await node.until(lambda: node.is_ready("web"), within=1)
        Evict("evict", "web", 1).run(node.world)
        await node.until(lambda: node.phase("web") == "Failed", within=10)
        end = node.status("web").state.terminated
        assert end is not None
        assert end.exit_code == 3

    run_scenario(scenario)


@pytest.mark.parametrize("jump", [7200, -7200])
def test_a_clock_jump_does_not_prolong_the_backoff_of_an_image_pull(jump: float) -> None:
    """A pull failed while the clock was ahead. After the correction, the next one waited for hours (I6)."""

    async def scenario(node: SimNode) -> None:
        node.world.clock.jump(jump)
        node.runtime.faults.fail(Operation.PULL_IMAGE, times=1)
        node.put(pod("web"))
        await asyncio.sleep(5)
        node.world.clock.jump(-jump)
        waited = await node.until(lambda: node.is_ready("web"), within=30)
        assert waited > 4

    run_scenario(scenario)


@pytest.mark.parametrize("jump", [7200, -7200])
def test_a_clock_jump_does_not_prolong_the_backoff_of_a_container(jump: float) -> None:
    """An exit seen before the clock was set back was hours in the future, and so was the restart (I6)."""

    async def scenario(node: SimNode) -> None:
        node.world.clock.jump(jump)
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=1, exit_code=1, crashes=2)}))
        await node.until(lambda: len(node.runs_of(uid)) == 2 and not node.runs(uid), within=10)
        await asyncio.sleep(1)
        node.world.clock.jump(-jump)
        waited = await node.until(lambda: len(node.runs_of(uid)) == 3, within=30)
        assert waited > 5

    run_scenario(scenario)


def test_a_clock_jump_does_not_remove_a_container_that_is_about_to_start() -> None:
    """Seed 100043: after the clock was set back, the new attempt seemed older than a dead one and was removed."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=1, exit_code=1, crashes=1)}))
        await node.until(lambda: len(node.runs_of(uid)) == 2 and node.runs(uid), within=5)
        node.world.clock.jump(-480)
        node.world.fault_log.begin(node.world.now(), "clock-jump")
        node.runtime.faults.fail(Operation.REMOVE_CONTAINER, uid)  # so that the first dead one still exists
        node.runtime.faults.hang(Operation.START_CONTAINER, uid, seconds=5)
        node.world.fault_log.begin(node.world.now(), "slow-calls", uid)
        node.api.replace_spec("web", pod("web", container(image="app:v2")).spec)
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=5)
        await asyncio.sleep(1)
        node.agent.engine.inbox.put(LifecycleEvent(uid, LifecycleEventType.CONTAINER_DIED, node.runs_of(uid)[1].id))
        await node.until(lambda: node.runs(uid), within=10)
        assert len(node.runs_of(uid)) == 3

    run_scenario(scenario)


@pytest.mark.parametrize("jump", [7200, 6, -7200])
def test_a_clock_jump_before_an_exit_is_seen_does_not_shorten_the_backoff(jump: float) -> None:
    """Seed 387: by the new clock the exit was hours old, so its backoff seemed to be over (I16)."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(after_seconds=8, exit_code=1, crashes=2)}))
        await node.until(lambda: len(node.runs_of(uid)) == 2, within=10)

        def delay(event: RuntimeEvent) -> tuple[tuple[float, RuntimeEvent], ...]:
            return ((4.0, event),)

        node.runtime.add_event_filter(delay)
        node.world.fault_log.begin(node.world.now(), "late-events")
        await node.until(lambda: not node.runs(uid), within=10)
        await asyncio.sleep(1)
        node.world.clock.jump(jump)
        await asyncio.sleep(4)
        node.runtime.remove_event_filter(delay)
        await node.until(lambda: len(node.runs_of(uid)) == 3, within=30)
        before, after = node.runs_of(uid)[1:]
        assert before.ended is not None
        assert after.started is not None
        assert 9 < after.started - before.ended < 21  # 10 s, at most 4 s later, and the jitter of the next sync

    run_scenario(scenario)


def test_a_refused_start_is_retried_with_backoff() -> None:
    """The removal of the last attempt counted as an exit, so the next attempt came without a pause."""

    async def scenario(node: SimNode) -> None:
        node.runtime.faults.fail(Operation.START_CONTAINER, times=1000)
        node.world.fault_log.begin(node.world.now(), "runtime-errors")
        uid = node.put(pod("web", container("app"), container("beside")))
        await asyncio.sleep(60)
        assert 4 <= len(node.runs_of(uid)) <= 7

    run_scenario(scenario)


def test_a_terminal_phase_is_kept_by_an_agent_without_its_checkpoint() -> None:
    """The disk was full and the list old: the new agent ran the pod again and published it as Running."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("web", behaviours={"app": Behaviour(term_exit_code=1)}))
        await node.until(lambda: node.is_ready("web"), within=1)
        node.world.begin_fault("disk-full", 60, lambda: None)
        node.world.journal.disk_full, node.world.crash_options = True, CrashOptions(keep_unsynced=False)
        before = node.api.version
        Evict("evictions", "web", None).run(node.world)
        await node.until(lambda: node.phase("web") == "Failed", within=20)
        node.api.lists_as_of = before
        node.api.set_watch_pace(delay_seconds=15)
        node.world.crash()
        await asyncio.sleep(30)
        node.api.lists_as_of, node.world.journal.disk_full = None, False
        node.api.set_watch_pace()
        await asyncio.sleep(60)
        assert node.phase("web") == "Failed"
        assert not node.world.truth.running(node.uid("web"))

    run_scenario(scenario)


def test_the_status_of_a_static_pod_is_kept_until_the_pod_is_removed() -> None:
    """Its status was dropped when its containers had ended, so the mirror received an empty one after the final one."""

    async def scenario(node: SimNode) -> None:
        place, manifest = "/static.yaml", pod("static")
        uid = node.write(place, manifest)
        await node.until(lambda: node.is_ready("static-n1"), within=2)
        changes = node.changes()
        node.world.volumes.delays["unmount"] = 8.0
        node.write(place, pod("static", container(image="app:v2")))
        await asyncio.sleep(6)
        node.write(place, manifest)
        await asyncio.sleep(60)
        assert node.runs(uid)
        statuses = [change.new.status for change in changes if change.new is not None and change.old is not None]
        assert statuses
        assert all(status.conditions for status in statuses)

    run_scenario(scenario)


@pytest.mark.parametrize("seed", [28, 83, 87, 131])  # with these seeds the loop is late at the right time
def test_a_pod_deleted_while_the_runtime_was_down_starts_nothing_afterwards(seed: int) -> None:
    """Seed 552: the deletion waited in the loop until the runtime recovered, and a sync continued before that (I12)."""

    world = World(seed)
    watch(world)

    async def scenario() -> None:
        node = SimNode(world)
        uid = node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=5)
        node.world.fault_log.begin(node.world.now(), "runtime-down")
        node.runtime.go_down()
        node.runtime.end_container(uid, "app", 0)
        await asyncio.sleep(60)
        spec = node.seen("web").spec
        node.api.replace_spec("web", msgspec.structs.replace(spec, active_deadline_seconds=10_000))
        node.put(*(pod(f"other{number}") for number in range(40)))
        node.delete("web")
        await asyncio.sleep(10)
        node.world.loop.delay_wakeups(0.5, 0.5)
        node.world.fault_log.begin(node.world.now(), "late-wakeups")
        node.runtime.come_up()
        await node.until(lambda: node.is_gone("web"), within=60)
        assert len(node.runs_of(uid)) == 1

    result = world.run(scenario)
    assert result.violation is None, result.violation
