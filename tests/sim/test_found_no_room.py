"""What the simulation found about pods for which there is no room: named after what went wrong."""

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from podkeeper.app.build import simple_node
from podkeeper.model.k8s.core import Container, Pod, ResourceRequirements
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.preempt import SYSTEM_CRITICAL_PRIORITY
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.mischief_around import UnreadableSources, WatchStale
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import NODE
from tests.sim.stories import Story, container, pod, tell

PLACE = "/static.yaml"


def wants(cpu: str, name: str = "app") -> Container:
    return replace(container(name), resources=ResourceRequirements(requests={"cpu": cpu}))


def critical(made: Pod) -> Pod:
    return replace(made, spec=replace(made.spec, priority=SYSTEM_CRITICAL_PRIORITY))


STUBBORN = Behaviour(term_seconds=None)


@pytest.mark.parametrize("when", ["while it is held", "before the agent comes back"])
def test_a_critical_pod_is_deleted_in_time_though_others_are_being_killed_for_it(when: str) -> None:
    """After a restart it found its place taken: its deletion waited for the grace of those killed for it (I5)."""

    async def story(it: Story) -> None:
        it.put(pod("victim", wants("4"), grace=60, app=STUBBORN))
        uid = it.put(critical(pod("web", wants("4"), grace=2)))
        await it.until(lambda: it.is_ready("victim", "web"), within=1)
        it.world.crash(away_seconds=5)
        it.write(PLACE, pod("static", wants("4")))  # came last, and is told first
        if when.startswith("before"):
            it.delete("web")
        await asyncio.sleep(20)
        if when.startswith("while"):
            assert uid in it.agent.preemption.held()
            it.delete("web")
        await it.until(lambda: it.is_gone("web"), within=10)
        await asyncio.sleep(120)
        assert it.is_gone("web")
        assert len(it.lives(uid)) == 1

    tell(story)


def test_a_pod_for_which_there_is_no_room_is_told_so_though_a_source_has_never_spoken() -> None:
    """No manifest could be read since the agent began: it waited to say that a pod is over until that was over (I8)."""

    async def story(it: Story) -> None:
        it.world.crash(away_seconds=1)
        UnreadableSources(files=True, web=False, seconds=200).play(it.world)
        await asyncio.sleep(20)
        it.put(pod("web", wants("9")))
        await it.until(lambda: it.phase("web") == "Failed", within=1)
        assert it.seen("web").status.reason == "OutOfcpu"

    tell(story)


def test_a_pod_that_finds_no_room_after_a_restart_is_not_called_over_while_it_runs() -> None:
    """That it is not ready it is told at once: so it is not watched."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", wants("8")))
        await it.until(lambda: it.is_ready("web"), within=1)
        it.world.crash(away_seconds=1)
        it.world.settings = dataclasses.replace(it.world.settings, node=simple_node(NODE, cpu="4"))
        UnreadableSources(files=True, web=False, seconds=60).play(it.world)
        ran = []

        def see(change: PodChanged) -> None:
            if change.new is not None and is_terminal(change.new.status.phase):
                ran.append(it.runs(uid))

        it.world.bus.subscribe(PodChanged, see)
        await it.until(lambda: bool(ran), within=120)
        assert not any(ran)

    tell(story, watched=False)


@pytest.mark.parametrize("how", ["the agent is restarted", "it comes back at once", "it comes back later"])
def test_a_static_pod_that_was_turned_away_is_judged_anew_when(how: str) -> None:
    """That it had failed was kept, in the journal too: there was room, and it never ran (I10)."""

    async def story(it: Story) -> None:
        it.put(critical(pod("big", wants("8"), grace=1)))
        await it.until(lambda: it.is_ready("big"), within=1)
        manifest = pod("static", wants("4"))
        uid = it.write(PLACE, manifest)
        await asyncio.sleep(10)
        assert not it.runs(uid)
        it.delete("big")
        await it.until(lambda: it.is_gone("big"), within=10)
        await asyncio.sleep(10)
        assert not it.runs(uid)  # as in the reference: nobody asks for it again
        if how == "the agent is restarted":
            await it.restart_agent()
        else:
            it.world.files.erase(PLACE)
            await asyncio.sleep(0.5 if how.endswith("at once") else 10)
            assert it.write(PLACE, manifest) == uid
        await it.until(lambda: it.runs(uid), within=5)
        await it.until(lambda: it.is_ready("static-n1"), within=5)

    tell(story)


def test_a_static_pod_that_comes_back_at_once_and_still_finds_no_room_is_turned_away_again() -> None:
    async def story(it: Story) -> None:
        it.put(critical(pod("big", wants("8"), grace=1)))
        await it.until(lambda: it.is_ready("big"), within=1)
        manifest = pod("static", wants("4"))
        uid = it.write(PLACE, manifest)
        await asyncio.sleep(10)
        it.world.files.erase(PLACE)
        await asyncio.sleep(0.5)
        it.write(PLACE, manifest)
        await asyncio.sleep(60)
        assert (it.runs(uid), it.is_ready("big")) == (False, True)

    tell(story)


def test_a_static_job_that_is_done_is_not_run_again_by_a_restart() -> None:
    async def story(it: Story) -> None:
        uid = it.write(PLACE, pod("job", policy="Never", app=Behaviour(after_seconds=5, exit_code=0)))
        await asyncio.sleep(20)
        await it.restart_agent()
        await asyncio.sleep(60)
        assert (len(it.lives(uid)), it.phase("job-n1")) == (1, "Succeeded")

    tell(story)


def test_a_preempted_pod_stays_failed_though_its_containers_leave_with_success() -> None:
    """Seed 194: the watch had not shown that the API knew it as Failed when the last status was made (I1)."""

    async def story(it: Story) -> None:
        it.put(pod("victim", wants("6"), policy="OnFailure", app=Behaviour(term_seconds=0.5, term_exit_code=0)))
        await it.until(lambda: it.is_ready("victim"), within=1)
        WatchStale(seconds=60, delay_seconds=5).play(it.world)
        it.put(critical(pod("web", wants("6"))))
        await asyncio.sleep(30)
        assert it.is_ready("web")
        assert (it.phase("victim"), it.seen("victim").status.reason) == ("Failed", "Preempting")

    tell(story)


def test_a_rejected_pod_whose_successor_the_watch_has_not_shown_yet_is_not_started() -> None:
    """Seed 583: the status was dropped because its object belonged to the successor, so the pod was started (I12)."""

    async def story(it: Story) -> None:
        it.put(pod("big", wants("8")))
        await it.until(lambda: it.is_ready("big"), within=1)
        WatchStale(seconds=300, delay_seconds=100).play(it.world)
        rejected = it.put(pod("web", wants("4")))
        await it.until(lambda: it.phase("web") == "Failed", within=110)
        it.delete("web", grace=0)
        it.put(pod("web", wants("4")))
        await asyncio.sleep(300)
        assert it.lives(rejected) == []

    tell(story)
