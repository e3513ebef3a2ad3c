"""What the simulation found about the notes of pods that the API has deleted."""

import asyncio

import pytest

from podkeeper.model.k8s.core import EphemeralContainer
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.deeds import Debug, Evict
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, pod, tell

DEBUGGER = EphemeralContainer(name="debugger", image="debug:v1")


@pytest.mark.parametrize("stale_lists", [False, True], ids=["the API is down", "lists are stale"])
@pytest.mark.parametrize("grace", [0, 5], ids=["removed by force", "deleted"])
def test_a_pod_whose_end_was_noted_does_not_start_again_from_an_older_note(stale_lists: bool, grace: int) -> None:
    """Seed 74: a crash kept the noted API version of a pod's removal, but also the note of the pod.

    The next agent refused a list that was older than this version, and started the pod from its note. So a debugger
    ran a second time (I7).
    """

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        await asyncio.sleep(30)
        before = it.api.version
        it.world.journal.sync_seconds, it.world.fate = 0.5, Fate(notes_kept=False)
        it.delete("web", grace=grace)
        await it.until(lambda: not it.runs(uid), within=10)
        if stale_lists:
            it.api.lists_as_of = before
            it.world.troubles.begin(it.world.now(), "stale-lists")
        else:
            it.api.go_down()
            it.world.troubles.begin(it.world.now(), "api-down")
        it.world.crash(away_seconds=1.0)  # the disk does not have the notes of the last half second
        await asyncio.sleep(20)
        assert len(it.lives(uid)) == 1
        it.api.lists_as_of = None
        it.api.come_up()
        await it.until(lambda: it.is_gone("web"), within=60)

    tell(story)


def test_a_pod_deleted_by_the_agent_does_not_start_again_while_its_source_still_reports_it() -> None:
    """Seed 579: the status was dropped with the object. The next agent started the pod from its note (I12)."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        await it.restart_agent()
        await it.until(lambda: it.agent.manager.pod_by_uid(uid) is not None, within=10)
        Evict("evictions", "web", 2).play(it.world)
        await it.until(lambda: not it.runs(uid), within=10)
        it.delete("web", grace=1)
        it.api.faults.fail("list", times=1000)
        it.api.come_up()
        await it.until(lambda: it.is_gone("web"), within=90)
        await asyncio.sleep(5)
        it.api.go_down()
        await it.restart_agent()
        await asyncio.sleep(30)
        assert len(it.lives(uid)) == 1
        it.api.faults.clear()
        it.api.come_up()
        await it.until(lambda: it.agent.manager.pod_by_uid(uid) is None, within=90)
        await it.until(lambda: it.agent.statuses.get_pod_status(uid) is None, within=10)

    tell(story)


def test_a_pod_with_a_debugger_whose_removal_left_no_trace_is_ended_again_once_the_list_is_fresh() -> None:
    """The disk refused all notes, and the containers were removed. The checker blamed the next agent (I7)."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", debugger=Behaviour(after_seconds=5)))
        await it.until(lambda: it.is_ready("web"), within=5)
        Debug("debuggers", "web", DEBUGGER).play(it.world)
        await asyncio.sleep(30)
        it.world.journal.disk_full, it.world.fate = True, Fate(notes_kept=False)
        it.world.troubles.begin(it.world.now(), "disk-full")
        it.api.lists_as_of = it.api.version
        it.world.troubles.begin(it.world.now(), "stale-lists")
        it.delete("web", grace=0)
        await it.until(lambda: all(life.removed is not None for life in it.lives(uid)), within=10)
        it.api.set_watch_pace(delay_seconds=10)
        it.world.troubles.begin(it.world.now(), "watch-stale")
        it.world.crash()
        await it.until(lambda: it.runs(uid), within=5)
        it.world.journal.disk_full, it.api.lists_as_of = False, None
        it.api.set_watch_pace()
        await it.until(lambda: not it.runs(uid), within=60)

    tell(story)
