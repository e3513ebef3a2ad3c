"""What the simulation found about cgroups that cannot be created, or are created slowly."""

import asyncio

import pytest

from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.records import Called
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, pod, tell


def test_a_new_agent_restarts_a_container_as_soon_as_cgroups_can_be_made() -> None:
    """Seed 300004: I8 blamed the agent, though it could not prepare the pod's cgroup since it had started."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=700, exit_code=1)))
        await it.until(lambda: it.is_ready("web"), within=5)
        await asyncio.sleep(650)
        trouble = it.world.troubles.begin(it.world.now(), "cgroup-trouble")
        it.world.cgroups.faults.fail("ensure", times=1000)
        await it.restart_agent()
        await it.until(lambda: not it.runs(uid), within=100)
        await asyncio.sleep(30)
        assert not it.runs(uid)
        it.world.cgroups.faults.clear()
        it.world.troubles.end(it.world.now(), trouble)
        await it.until(lambda: it.runs(uid), within=60)

    tell(story)


def test_cgroup_trouble_does_not_delay_a_restart_of_a_prepared_pod() -> None:
    async def story(it: Story) -> None:
        uid = it.put(pod("web", app=Behaviour(after_seconds=20, exit_code=1)))
        await it.until(lambda: it.is_ready("web"), within=5)
        it.world.troubles.begin(it.world.now(), "cgroup-trouble")
        it.world.cgroups.faults.fail("ensure", times=1000)
        await it.until(lambda: len(it.lives(uid)) == 2 and it.runs(uid), within=30)

    tell(story)


def test_a_pod_past_its_deadline_is_cleaned_up_at_its_own_pace() -> None:
    """Seed 258: with each retry of any other pod, and every second, its failing clean-up was tried again (I22)."""

    async def story(it: Story) -> None:
        uid = it.put(pod("late", deadline=5))
        await it.until(lambda: it.is_ready("late"), within=5)
        it.world.troubles.begin(it.world.now(), "cgroup-trouble")
        it.world.cgroups.faults.fail("ensure", times=None)
        it.world.cgroups.faults.fail("remove", times=None)
        unmounts: list[float] = []
        it.world.bus.subscribe(
            Called, lambda call: unmounts.append(call.at) if (call.operation, call.uid) == ("unmount", uid) else None
        )
        it.put(*(pod(f"other{number}") for number in range(12)))
        await asyncio.sleep(60)
        assert it.phase("late") == "Failed"
        assert 1 < len(unmounts) < 15

    tell(story)


def test_a_removed_pod_is_cleaned_up_although_the_api_has_never_answered() -> None:
    """Seed 469: the clean-up had failed once, and its retry was dropped: no source named the pod any more.

    Housekeeping would have repeated it, but it waits until all sources have been heard.
    """

    async def story(it: Story) -> None:
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        await it.restart_agent()
        uid = it.write("/web.yaml", pod("web"))
        await it.until(lambda: it.runs(uid), within=5)
        it.world.cgroups.faults.fail("remove", times=1)
        it.world.troubles.begin(it.world.now(), "cgroup-trouble")
        it.world.files.erase("/web.yaml")
        await it.until(lambda: it.agent.workers.should_pod_be_finished(uid), within=60)
        assert uid not in await it.world.cgroups.list_pods()

    tell(story)


@pytest.mark.parametrize("seed", [38, 228, 332])  # the end of the first call is noticed late
def test_a_cgroup_that_was_just_prepared_is_not_asked_for_again(seed: int) -> None:
    """Seed 88: the second call was slow, and the restart of a container waited for it (I8)."""
    world = World(seed)
    watch(world)
    ensured: list[Called] = []
    world.bus.subscribe(Called, lambda call: ensured.append(call) if call.operation == "ensure" else None)

    async def story() -> None:
        world.loop.dawdle(0.1, 0.02)
        world.troubles.begin(0.0, "dawdle")
        Story(world).put(pod("web"))
        await asyncio.sleep(3)

    verdict = world.play(story)
    assert verdict.violation is None, verdict.violation
    assert len(ensured) == 1
