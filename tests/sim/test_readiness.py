"""Readiness: a Ready bit that changes for no reason is found, and what truly changes may be said."""

import asyncio

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probe_book import ProbeBook
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.mischief_around import EventTrouble, News
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, container, exec_probe, pod
from tests.sim.watching import broken, play


def readiness(world: World) -> Readiness:
    """Watch over readiness only."""
    return Readiness(world, ProbeBook(world, Pods(world)))


def says(it: Story, name: str, *, ready: bool, containers: tuple[str, ...] = ()) -> None:
    """Let the agent say so, of some containers too, for no reason."""

    async def patch() -> None:
        condition = {"type": "Ready", "status": str(ready)}
        statuses = [{"name": each, "ready": ready} for each in containers]
        patch = {"status": {"conditions": [condition], "containerStatuses": statuses}}
        await it.api.patch_status(Pod, name, patch, "default")

    it.world.in_agent(patch())


@pytest.mark.parametrize("ready", [True, False])
def test_a_ready_bit_that_changes_for_no_reason_is_found(ready: bool) -> None:
    steps = (ExecStep(exit_code=0 if not ready else 1),)

    async def story(it: Story) -> None:
        it.put(pod("web", container(ready=exec_probe(failures=1)), app=Behaviour(exec=steps)))
        await asyncio.sleep(60)
        assert it.is_ready("web") is not ready
        says(it, "web", ready=ready)
        await asyncio.sleep(1)

    assert broken(play(story, readiness)) == "I7"


def test_what_truly_changes_may_be_said() -> None:
    flapping = Behaviour(exec=tuple(ExecStep(from_seconds=60.0 * n, exit_code=n % 2) for n in range(10)))

    async def story(it: Story) -> None:
        it.put(pod("web", container(ready=exec_probe(period=5)), container("slow", startup=exec_probe()), app=flapping))
        it.put(pod("crash", app=Behaviour(after_seconds=40)))
        changes = it.changes()
        for _ in range(5):
            await asyncio.sleep(110)
            await it.restart_agent(away_seconds=15)
        assert len([each for each in changes if each.by and ready_bit(each.old) is not ready_bit(each.new)]) > 8

    verdict = play(story, readiness)
    assert verdict.violation is None
    assert verdict.checks["I7"] > 20


def ready_bit(found: Pod | None) -> bool:
    conditions = () if found is None else found.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


@pytest.mark.parametrize("api_is_away", [False, True])
def test_a_static_pod_stays_ready_when_the_agent_is_restarted(api_is_away: bool) -> None:
    async def story(it: Story) -> None:
        it.write("/static.yaml", pod("static", container(ready=exec_probe(period=20))))
        await asyncio.sleep(60)
        assert it.is_ready("static-n1")
        if api_is_away:
            it.api.go_down()
            it.world.trouble("api-down", 30, it.api.come_up)
        changes: list[PodChanged] = it.changes()
        await it.restart_agent()
        await asyncio.sleep(120)
        assert it.is_ready("static-n1")
        assert [each for each in changes if not ready_bit(each.new)] == []

    assert play(story, readiness).violation is None


def test_a_pod_stays_ready_when_the_disk_took_no_note_of_it() -> None:
    async def story(it: Story) -> None:
        it.put(
            pod("web", container(ready=exec_probe(period=20)), app=Behaviour(exec=(NOT_YET, ExecStep(from_seconds=30))))
        )
        await asyncio.sleep(20)
        it.world.journal.disk_full = True
        await asyncio.sleep(40)
        assert it.is_ready("web")
        await it.restart_agent()
        changes = it.changes()
        await asyncio.sleep(30)
        assert [each for each in changes if not ready_bit(each.new)] == []

    assert play(story, readiness).violation is None


NOT_YET = ExecStep(exit_code=1)


def test_a_container_that_starts_again_is_not_taken_to_have_started_as_the_last_one_had() -> None:
    slow_start = Behaviour(exec=(NOT_YET, ExecStep(from_seconds=30)))
    probes = container(ready=exec_probe(period=1), startup=exec_probe(period=7, failures=20))

    async def story(it: Story) -> None:
        uid = it.put(pod("web", probes, app=slow_start))
        await asyncio.sleep(60)
        assert it.is_ready("web")
        it.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(20)
        assert not it.is_ready("web")
        await asyncio.sleep(30)
        assert it.is_ready("web")

    assert play(story, readiness).violation is None


READY_LATE = Behaviour(exec=(NOT_YET, ExecStep(from_seconds=25)))


def test_a_pod_may_be_called_ready_when_a_container_has_just_ended_unseen() -> None:
    async def story(it: Story) -> None:
        uid = it.put(pod("web", container(), container("late", ready=exec_probe(period=10)), late=READY_LATE))
        await asyncio.sleep(26)
        EventTrouble(News.LOST, 1.0, 20, seed=0).play(it.world)
        it.runtime.end_container(uid, "app", 1)
        await it.until(lambda: it.is_ready("web"), within=10)
        assert len(it.world.truth.running(uid)) == 1

    assert play(story, readiness).violation is None


@pytest.mark.parametrize(
    ("trouble", "seconds_ago"), [("", 6), ("lost-events", 151)], ids=["undisturbed", "in the midst of trouble"]
)
@pytest.mark.parametrize("containers", [(), ("app",)], ids=["the pod", "the container as well"])
def test_a_pod_is_not_called_ready_when_a_container_ended_long_ago(
    containers: tuple[str, ...], trouble: str, seconds_ago: float
) -> None:
    async def story(it: Story) -> None:
        late = container("late", ready=exec_probe(period=1))
        uid = it.put(pod("web", container(), late, policy="Never", late=READY_LATE))
        if trouble:
            it.world.troubles.begin(0.0, trouble)
        await asyncio.sleep(24)
        it.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(seconds_ago)
        assert it.status("web", "late").ready
        says(it, "web", ready=True, containers=containers)
        await asyncio.sleep(1)

    verdict = play(story, readiness)
    assert verdict.violation is not None
    assert "the pod is said to be ready" in verdict.violation.message
