"""What the simulation found about readiness, one scenario each: named after what went wrong."""

import asyncio

import pytest

from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.mischief_agent import ClockJump, DiskTrouble
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, container, each_ready_bit, exec_probe, pod, tell

ASKED_FOR_A_WHILE = Behaviour(exec=(ExecStep(takes_seconds=0.1),))
"""A container whose probes take long enough to be caught unready."""


@pytest.mark.parametrize("jump", ["ahead when it started, then put right", "put back before the restart"])
def test_a_clock_that_jumps_makes_no_pod_unready_when_the_agent_is_restarted(jump: str) -> None:
    """By the clock the container had started after the agent: it was taken for its own, and unready until probed."""

    async def story(it: Story) -> None:
        if jump.startswith("ahead"):
            ClockJump(3600.0, 60.0).play(it.world)
        it.put(pod("web", container(ready=exec_probe(period=20)), app=ASKED_FOR_A_WHILE))
        await asyncio.sleep(61)
        assert it.is_ready("web")
        if jump.startswith("put back"):
            it.world.clock.jump(-3600)
        changes = it.changes()
        await it.restart_agent()
        await asyncio.sleep(60)
        assert it.is_ready("web")
        assert each_ready_bit(changes) == []

    tell(story)


def test_a_container_that_starts_in_the_second_of_a_restart_stays_ready() -> None:
    """Times are told in whole seconds: by them a container of this very second was the new agent's own."""

    async def story(it: Story) -> None:
        await asyncio.sleep(10.1)
        it.put(pod("web", container(ready=exec_probe(period=20)), app=ASKED_FOR_A_WHILE))
        await it.until(lambda: it.is_ready("web"), within=0.3)
        changes = it.changes()
        await it.restart_agent(away_seconds=0.1)
        await asyncio.sleep(60)
        assert each_ready_bit(changes) == []

    tell(story)


def test_a_pod_that_became_ready_at_once_stays_so_when_the_disk_took_note_of_its_start_only() -> None:
    """The API knew better than the note, but both were of one second: the note won, and the pod was unready."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=False)
        await asyncio.sleep(20.1)
        it.put(pod("web", container(ready=exec_probe(period=20)), app=ASKED_FOR_A_WHILE))
        await asyncio.sleep(0.05)
        assert not it.status("web").ready
        DiskTrouble(full=True, sync_seconds=0.0, seconds=2).play(it.world)
        await asyncio.sleep(1)
        assert it.is_ready("web")
        changes = it.changes()
        await it.restart_agent()
        await asyncio.sleep(60)
        assert each_ready_bit(changes) == []

    tell(story)


def test_a_container_that_became_ready_beside_one_that_is_not_stays_so_when_the_disk_took_no_note_of_it() -> None:
    """Seed 34: neither phase nor conditions had changed, so the note did not look older than what the API showed."""

    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=False)
        never = Behaviour(exec=(ExecStep(exit_code=1),))
        probes = [container(each, ready=exec_probe(period=20)) for each in ("app", "slow")]
        it.put(pod("web", *probes, app=ASKED_FOR_A_WHILE, slow=never))
        await asyncio.sleep(0.05)
        assert not it.status("web").ready
        DiskTrouble(full=True, sync_seconds=0.0, seconds=30).play(it.world)
        ClockJump(-3600.0, 60.0).play(it.world)
        await asyncio.sleep(25)
        assert it.status("web").ready
        changes = it.changes()
        await it.restart_agent()
        await asyncio.sleep(60)
        assert [shown for shown in changes if not _is_ready(shown)] == []

    tell(story)


def _is_ready(change: PodChanged) -> bool:
    """Whether a change shows the container `app` as ready."""
    statuses = () if change.new is None else change.new.status.container_statuses or ()
    return any(each.ready for each in statuses if each.name == "app")


def test_a_container_whose_start_was_told_to_have_failed_becomes_ready_when_its_probe_says_so() -> None:
    async def story(it: Story) -> None:
        life = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=30)))
        it.runtime.faults.lose_answer(Operation.START_CONTAINER)
        uid = it.put(pod("web", container(ready=exec_probe(period=5)), app=life))
        await asyncio.sleep(20)
        assert not it.is_ready("web")
        await asyncio.sleep(20)
        assert it.is_ready("web")
        assert len(it.lives(uid)) == 1

    tell(story)


@pytest.mark.parametrize("look_hangs", [False, True], ids=["seen at once", "not seen for a while"])
@pytest.mark.parametrize("noted_after", [1.0, 5.0, 25.0], ids=["not begun", "not started", "not ready"])
def test_what_a_full_disk_took_note_of_last_is_not_told_again_after_a_restart(
    noted_after: float, look_hangs: bool
) -> None:
    """The API knew better than the note: what ran and was ready was called unstarted, or even Pending, once more."""
    started = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=15)))
    ready = Behaviour(exec=(ExecStep(exit_code=1), ExecStep(from_seconds=35)))

    async def story(it: Story) -> None:
        it.world.fate = Fate(notes_kept=False)
        it.runtime.delays[Operation.RUN_SANDBOX] = 2
        side = container("side", startup=exec_probe(period=5, failures=20), restart="Always")
        uid = it.put(pod("web", container(ready=exec_probe(period=20)), init=(side,), side=started, app=ready))
        await asyncio.sleep(noted_after)
        DiskTrouble(full=True, sync_seconds=0.0, seconds=300).play(it.world)
        await it.until(lambda: it.is_ready("web"), within=90)
        if look_hangs:
            it.runtime.faults.hang(Operation.POD_RECORD, seconds=40)
            it.world.troubles.begin(it.world.now(), "hung-calls", uid)
        changes = it.changes()
        await it.restart_agent()
        await asyncio.sleep(60)
        assert each_ready_bit(changes) == []
        assert it.status("web", "side").started

    tell(story)


def test_a_ready_container_stays_ready_after_a_restart_while_another_one_is_in_crash_loop_back_off() -> None:
    """Seed 289: the note of the pod was dropped as older than the API, although both were the same.

    The list was too old to use, so the pod came from a note without a status, and the first status was sent before the
    container had been probed.
    """

    async def story(it: Story) -> None:
        lists_as_of = it.api.version
        crashing = Behaviour(after_seconds=5, exit_code=1)
        it.put(
            pod("web", container(ready=exec_probe(period=60)), container("side"), app=ASKED_FOR_A_WHILE, side=crashing)
        )
        await asyncio.sleep(100)
        await it.until(lambda: it.status("web", "side").state.waiting is not None, within=60)
        assert it.status("web").ready
        changes = it.changes()
        it.api.lists_as_of = lists_as_of
        it.world.troubles.begin(it.world.now(), "stale-lists")
        it.runtime.go_down()
        it.world.troubles.begin(it.world.now(), "runtime-down")
        await it.restart_agent()
        await asyncio.sleep(15)
        it.runtime.come_up()
        await asyncio.sleep(15)
        it.api.lists_as_of = None
        await asyncio.sleep(90)
        assert all(("app", True, True) in after.containers for _, _, after in each_ready_bit(changes))

    tell(story)
