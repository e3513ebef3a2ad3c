"""What the simulation found about lists that are older than the pods of the node."""

import asyncio

import pytest

from podkeeper.model.k8s.core import EphemeralContainer, Pod
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.deeds import Debug
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, pod, tell


def lose_all_notes_and_show_old_lists(it: Story, lists_as_of: int, *, watch_delay_seconds: float) -> None:
    """The disk is full, so a crash loses every note. Lists come from a cache that lags, and watches are late."""
    it.world.journal.disk_full, it.world.fate = True, Fate(notes_kept=False)
    it.world.troubles.begin(it.world.now(), "disk-full")
    it.api.lists_as_of = lists_as_of
    it.api.set_watch_pace(delay_seconds=watch_delay_seconds)
    it.world.troubles.begin(it.world.now(), "stale-lists")
    it.world.troubles.begin(it.world.now(), "watch-stale")


def shows_debugger(it: Story) -> bool:
    return any(each.state.running is not None for each in it.seen("web").status.ephemeral_container_statuses or ())


def recover(it: Story) -> None:
    it.world.journal.disk_full, it.api.lists_as_of = False, None
    it.api.set_watch_pace()


async def start_job_missing_from_old_lists(it: Story, job: Pod) -> PodUID:
    """Start a job that is missing from the lists that the next agent receives. All notes about it are lost."""
    await asyncio.sleep(5)
    lose_all_notes_and_show_old_lists(it, it.api.version, watch_delay_seconds=20)
    uid = it.put(job)
    await it.until(lambda: it.is_ready("job"), within=30)
    return uid


async def expect_one_failed_run(it: Story, uid: PodUID) -> None:
    """The job becomes Failed with the exit code of its only run."""
    await it.until(lambda: it.phase("job") == "Failed", within=90)
    await asyncio.sleep(60)
    assert [life.exit_code for life in it.lives(uid)] == [3]


@pytest.mark.parametrize("policy", ["Never", "Always"])
def test_a_running_pod_that_an_old_list_lacks_is_not_stopped(policy: str) -> None:
    """The pod was killed as an orphan; when the watch reported it, a job that runs once ran again (I7)."""

    async def story(it: Story) -> None:
        uid = await start_job_missing_from_old_lists(it, pod("job", policy=policy))
        it.world.crash()
        await asyncio.sleep(15)
        recover(it)
        await asyncio.sleep(90)
        assert it.is_ready("job")
        assert [life.ended for life in it.lives(uid)] == [None]

    tell(story)


def test_a_job_that_ended_while_no_agent_lived_is_not_run_again_because_an_old_list_lacks_it() -> None:
    """Its dead container was removed as an orphan's, and with it the only proof that the job had run."""

    async def story(it: Story) -> None:
        uid = await start_job_missing_from_old_lists(
            it, pod("job", policy="Never", app=Behaviour(after_seconds=30, exit_code=3))
        )
        it.world.crash(away_seconds=30)
        await asyncio.sleep(50)
        recover(it)
        await expect_one_failed_run(it, uid)

    tell(story)


@pytest.mark.parametrize("seconds", [1.5, 10])
def test_a_job_that_ends_while_an_old_list_lacks_it_is_not_run_again(seconds: float) -> None:
    """Seed 774: the agent removed the container at its exit. A crash loop lost its backoff (I16)."""

    async def story(it: Story) -> None:
        uid = await start_job_missing_from_old_lists(it, pod("job", policy="Never"))
        it.world.crash(away_seconds=1)
        await asyncio.sleep(seconds)
        it.runtime.end_container(uid, "app", 3)
        await asyncio.sleep(15)
        recover(it)
        await expect_one_failed_run(it, uid)

    tell(story)


def test_a_pod_that_the_api_no_longer_has_is_stopped_as_soon_as_the_api_answers() -> None:
    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        it.world.crash(away_seconds=5)
        it.delete("web", grace=0)
        await asyncio.sleep(5)
        it.api.faults.fail("get", times=3)
        it.world.troubles.begin(it.world.now(), "api-errors")
        await it.until(lambda: not it.runs(uid), within=20)
        await it.until(lambda: not it.sandboxes(uid), within=20)

    tell(story)


def test_a_pod_whose_removal_a_slow_disk_did_not_note_is_ended_again_once_the_list_is_fresh() -> None:
    """The checker blamed the new agent for a note that the disk had not taken (I12)."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        await asyncio.sleep(30)
        it.world.journal.sync_seconds, it.world.fate = 20.0, Fate(notes_kept=False)
        it.world.troubles.begin(it.world.now(), "disk-full")
        it.api.lists_as_of = it.api.version
        it.world.troubles.begin(it.world.now(), "stale-lists")
        it.delete("web", grace=0)
        await it.until(lambda: not it.runs(uid), within=10)
        it.world.crash()
        await asyncio.sleep(20)
        it.world.journal.sync_seconds, it.api.lists_as_of = 0.0, None
        await asyncio.sleep(120)
        assert not it.runs(uid)

    tell(story)


def test_a_pod_that_ends_while_an_old_list_lacks_its_debugger_is_published_as_over() -> None:
    """Its last status had no debugger, and was held back for ever: a finished pod makes no other one."""

    async def story(it: Story) -> None:
        it.put(pod("web", policy="Never", app=Behaviour(after_seconds=30, exit_code=3)))
        await it.until(lambda: it.is_ready("web"), within=5)
        lose_all_notes_and_show_old_lists(it, it.api.version, watch_delay_seconds=20)
        Debug("debuggers", "web", EphemeralContainer(name="debugger", image="debug:v1")).play(it.world)
        await it.until(lambda: shows_debugger(it), within=30)
        it.world.crash()
        it.api.set_watch_pace(stalled=True)
        await asyncio.sleep(40)
        recover(it)
        await it.until(lambda: it.phase("web") == "Failed", within=60)
        it.delete("web")
        await it.until(lambda: it.is_gone("web"), within=60)

    tell(story)


def test_a_debugger_that_an_old_list_lacks_stays_published() -> None:
    """Seed 450: the note of the pod was older than its debugger, too, and the status made from it was sent (I18)."""

    async def story(it: Story) -> None:
        it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=5)
        lose_all_notes_and_show_old_lists(it, it.api.version, watch_delay_seconds=20)
        Debug("debuggers", "web", EphemeralContainer(name="debugger", image="debug:v1")).play(it.world)
        await it.until(lambda: shows_debugger(it), within=30)
        it.world.crash()
        await asyncio.sleep(15)
        assert shows_debugger(it)
        recover(it)
        await asyncio.sleep(60)
        assert shows_debugger(it)

    tell(story)
