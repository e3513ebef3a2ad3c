"""Pains of the end: pods stuck Terminating, grace counted twice, names that stay reserved, volumes left behind."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.sim.life import Side
from podkeeper.testing.sim.records import Called
from podkeeper.testing.sim.world import World
from tests.sim.stories import AT_ONCE, Story, container, pod, tell

GRACE = 10
STUBBORN = Behaviour(term_seconds=None)


# 1: pod stuck Terminating for ever.


async def _agent_dies_again_and_again(it: Story, uid: PodUID) -> None:
    for away in (0.5, 2.0, 7.0):
        await asyncio.sleep(1)
        it.world.crash(away_seconds=away)
        await asyncio.sleep(away)


async def _api_is_away(it: Story, uid: PodUID) -> None:
    it.api.go_down()
    await asyncio.sleep(120)
    it.api.come_up()


async def _api_and_agent_are_away(it: Story, uid: PodUID) -> None:
    it.api.go_down()
    await asyncio.sleep(3)
    it.world.crash(away_seconds=30)
    await asyncio.sleep(60)
    it.api.come_up()


async def _a_volume_is_busy(it: Story, uid: PodUID) -> None:
    it.world.volumes.in_use.add(uid)
    await asyncio.sleep(90)
    it.world.volumes.in_use.clear()


async def _an_unmount_hangs(it: Story, uid: PodUID) -> None:
    it.world.volumes.faults.hang("unmount", uid)
    await asyncio.sleep(90)
    it.world.volumes.faults.clear()


async def _a_cgroup_does_not_go(it: Story, uid: PodUID) -> None:
    it.world.cgroups.faults.fail("remove", uid, times=5)
    await asyncio.sleep(60)


async def _the_stop_hangs(it: Story, uid: PodUID) -> None:
    it.runtime.faults.hang("stop_container", uid)
    await asyncio.sleep(90)
    it.runtime.faults.clear()


async def _the_stop_is_refused(it: Story, uid: PodUID) -> None:
    it.runtime.faults.fail("stop_container", uid, times=5)
    await asyncio.sleep(60)


async def _the_container_vanishes(it: Story, uid: PodUID) -> None:
    (life,) = it.lives(uid)
    await it.runtime.remove_container(life.id)


async def _the_sandbox_vanishes(it: Story, uid: PodUID) -> None:
    (sandbox,) = it.sandboxes(uid)
    await it.runtime.remove_sandbox(sandbox)


async def _all_vanishes_while_the_agent_is_away(it: Story, uid: PodUID) -> None:
    (sandbox,) = it.sandboxes(uid)
    it.world.crash(away_seconds=5)
    await it.runtime.remove_sandbox(sandbox)
    await asyncio.sleep(6)


async def _the_runtime_is_away(it: Story, uid: PodUID) -> None:
    it.runtime.go_down()
    await asyncio.sleep(60)
    it.runtime.come_up()


async def _the_machine_restarts(it: Story, uid: PodUID) -> None:
    it.world.reboot()
    await asyncio.sleep(31)


STUCK = {
    "the agent dies again and again": _agent_dies_again_and_again,
    "the API is away": _api_is_away,
    "the API and the agent are away": _api_and_agent_are_away,
    "a volume is busy": _a_volume_is_busy,
    "an unmount hangs": _an_unmount_hangs,
    "a cgroup cannot be removed": _a_cgroup_does_not_go,
    "the stop of a container hangs": _the_stop_hangs,
    "the stop of a container is refused": _the_stop_is_refused,
    "the container is gone from the runtime": _the_container_vanishes,
    "the sandbox is gone from the runtime": _the_sandbox_vanishes,
    "all is gone when the agent comes back": _all_vanishes_while_the_agent_is_away,
    "the runtime is away": _the_runtime_is_away,
    "the machine restarts": _the_machine_restarts,
}
VANISHING = (_the_container_vanishes, _the_sandbox_vanishes, _all_vanishes_while_the_agent_is_away)


@pytest.mark.parametrize("trouble", STUCK.values(), ids=STUCK.keys())
def test_no_deleted_pod_stays_terminating_for_ever(trouble: Callable[[Story, PodUID], Awaitable[None]]) -> None:
    """Pain 1: k/k 51835, 106734, 116954."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", grace=GRACE, app=STUBBORN))
        await it.until(lambda: it.is_ready("web"), within=3)
        it.delete("web")
        it.world.troubles.begin(it.world.now(), "of the story", uid)  # whose grace and exits are not to be judged
        await trouble(it, uid)
        # All is well again: what is left of the grace, and the longest pause after a failure.
        await it.until(lambda: it.is_gone("web"), within=GRACE + 60)
        await asyncio.sleep(40)
        assert not it.runs(uid)
        assert it.world.volumes.mounted_pods() == frozenset()
        assert await it.world.cgroups.list_pods() == frozenset()

    tell(story, watched=trouble not in VANISHING)


ENDING = (
    *("runtime.stop_container", "runtime.stop_sandbox", "volumes.unmount", "cgroups.remove"),
    *("journal.sync", "api.patch_status", "api.delete"),
)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("call", ENDING)
def test_an_agent_that_dies_while_it_ends_a_pod_leaves_none_terminating(call: str, side: Side) -> None:
    """Pain 1: k/k 51835, 106734; the agent is killed right before and right after each call that ends a pod."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", grace=GRACE))
        await it.until(lambda: it.is_ready("web"), within=3)
        deaths = 0

        def dies_here(made: Called, at: Side) -> bool:
            nonlocal deaths
            is_it = deaths == 0 and at is side and f"{made.room}.{made.operation}" == call
            deaths += is_it
            return is_it

        it.world.crash_point = dies_here
        it.delete("web")
        await it.until(lambda: it.is_gone("web") and it.world.is_up, within=GRACE + 30)
        await asyncio.sleep(40)
        assert (deaths, it.runs(uid)) == (1, False)
        assert it.world.volumes.mounted_pods() == frozenset()
        assert await it.world.cgroups.list_pods() == frozenset()

    tell(story)


# 13: grace counted twice with preStop; a forced delete waits.

HOOKS = {
    "a hook that ends in time": ExecStep(takes_seconds=4),
    "a hook that never ends": ExecStep(takes_seconds=9999),
    "a hook that fails": ExecStep(exit_code=1),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_hook_and_signals_together_fit_the_grace(hook: ExecStep) -> None:
    """Pain 13: k/k 115817, 117373; the container ignores the signal."""

    async def story(it: Story) -> None:
        life = Behaviour(term_seconds=None, exec=(hook,))
        uid = it.put(pod("web", container(pre_stop="drain"), grace=GRACE, app=life))
        await it.until(lambda: it.is_ready("web"), within=3)
        it.delete("web")
        begun = it.world.now()
        await it.until(lambda: not it.runs(uid), within=2 * GRACE)
        seconds = (it.lives(uid)[0].ended or 0) - begun
        # A hook that used up all the grace leaves the container two seconds for its signal, as the reference has it.
        assert GRACE - 0.1 <= seconds <= GRACE + 2 + AT_ONCE
        await it.until(lambda: it.is_gone("web"), within=1)

    tell(story)


SHORTENED = {
    "while the container is asked to end": container(),
    "while the hook runs": container(pre_stop="drain"),
}


@pytest.mark.parametrize("shape", SHORTENED.values(), ids=SHORTENED.keys())
def test_a_shortened_grace_takes_effect_at_once(shape: object) -> None:
    """Pain 13: k/k 113717, 117373; deleted with ten minutes, then with two seconds."""

    async def story(it: Story) -> None:
        life = Behaviour(term_seconds=None, exec=(ExecStep(takes_seconds=9999),))
        assert isinstance(shape, type(container()))
        uid = it.put(pod("web", shape, grace=600, app=life))
        await it.until(lambda: it.runs(uid), within=3)
        it.delete("web")
        await asyncio.sleep(20)
        assert it.runs(uid)
        it.delete("web", grace=2)
        assert await it.until(lambda: not it.runs(uid), within=60) <= 4 + AT_ONCE
        await it.until(lambda: it.is_gone("web"), within=1)

    tell(story)


FORCED = {"a pod that runs": False, "a pod that is ending for ten minutes": True}


@pytest.mark.parametrize("ends", FORCED.values(), ids=FORCED.keys())
def test_a_forced_deletion_waits_for_nothing(ends: bool) -> None:
    """Pain 13: k/k 113717, 120449; its name is free at once, and its containers are dead soon after."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web", grace=600, app=STUBBORN))
        await it.until(lambda: it.is_ready("web"), within=3)
        if ends:
            it.delete("web")
            await asyncio.sleep(5)
        it.delete("web", grace=0)
        assert it.is_gone("web")
        successor = it.put(pod("web"))
        assert await it.until(lambda: it.runs(successor), within=10) <= AT_ONCE
        assert await it.until(lambda: not it.runs(uid), within=60) <= 2 + AT_ONCE

    tell(story)


# 17: a timed-out create leaves "name is reserved" for ever.

MAKING = ("run_sandbox", "create_container", "start_container", "pull_image")


@pytest.mark.parametrize(
    "late_seconds", [0.0, 200.0], ids=["the answer is lost", "the answer comes after the deadline"]
)
@pytest.mark.parametrize("operation", MAKING)
def test_what_a_timed_out_call_made_is_taken_up_or_cleaned_up(operation: str, late_seconds: float) -> None:
    """Pain 17: containerd 4604; twice in a row the call takes effect and nobody hears of it."""

    async def story(it: Story) -> None:
        it.runtime.faults.lose_answer(operation, times=2, seconds=late_seconds)
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=60 + 2 * late_seconds)
        await asyncio.sleep(300)
        assert it.is_ready("web")
        assert len(it.sandboxes(uid)) == 1
        assert len([life for life in it.lives(uid) if life.running]) == 1
        assert len([life for life in it.lives(uid) if life.started is not None]) == 1

    tell(story)


# 18: orphaned volumes logged every 2 s, never cleaned.


def _left_behind(it: Story, uid: PodUID) -> bool:
    return uid in it.world.volumes.mounted_pods()


def test_volumes_of_a_pod_that_went_while_no_agent_lived_are_cleaned_up() -> None:
    """Pain 18: k/k 60987, 134075."""

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=3)
        it.world.crash(away_seconds=60)
        it.runtime.kill_sandbox(uid)
        it.delete("web", grace=0)
        await asyncio.sleep(60)
        await it.until(lambda: not _left_behind(it, uid), within=10)
        await asyncio.sleep(5)
        assert await it.world.volumes.directories() == frozenset()

    tell(story)


def test_a_volume_in_use_is_never_removed_and_its_trouble_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Pain 18: k/k 60987, 134075; somebody holds an orphan's volume open for ten minutes."""
    removals: list[str] = []

    def prepare(world: World) -> None:
        world.bus.subscribe(
            Called, lambda made: removals.append(made.uid) if made.operation == "remove_directory" else None
        )

    async def story(it: Story) -> None:
        uid = it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=3)
        it.world.volumes.in_use.add(uid)
        it.world.crash(away_seconds=5)
        it.runtime.kill_sandbox(uid)
        it.delete("web", grace=0)
        caplog.clear()
        await asyncio.sleep(600)
        assert _left_behind(it, uid)
        assert removals == []
        told = [each for each in caplog.records if each.levelno >= logging.WARNING and uid in each.getMessage()]
        assert len(told) == 1
        it.world.volumes.in_use.clear()
        await it.until(lambda: not _left_behind(it, uid), within=40)
        await it.until(lambda: uid in removals, within=40)

    tell(story, prepare=prepare)
