"""Pains of neighbours: one slow pod that takes the node down, bursts that start slowly, housekeeping in the way."""

import asyncio
from collections.abc import Callable
from statistics import median

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.sim.world import World
from tests.sim.stories import AT_ONCE, Story, container, exec_probe, pod, tell

OTHERS = [f"web-{index:02}" for index in range(8)]
Plant = Callable[[Story, PodUID], Fault]

# 2: "PLEG is not healthy": one slow pod or runtime call takes the node down.

HANGS: dict[str, Plant] = {
    "no look at it ends": lambda it, uid: it.runtime.faults.hang("pod_record", uid, times=None),
    "its stop hangs": lambda it, uid: it.runtime.faults.hang("stop_container", uid, times=None),
    "the stop of its sandbox hangs": lambda it, uid: it.runtime.faults.hang("stop_sandbox", uid, times=None),
    "its probes hang": lambda it, uid: it.runtime.faults.hang("exec_sync", uid, times=None),
    "its volume does not unmount": lambda it, uid: it.world.volumes.faults.hang("unmount", uid, times=None),
}


@pytest.mark.parametrize("plant", HANGS.values(), ids=HANGS.keys())
def test_one_pod_whose_calls_hang_does_not_take_the_node_down(plant: Plant) -> None:
    """Pain 2: k/k 45419, 95750, 93886; for ten minutes others come and go as if nothing were."""

    async def story(it: Story) -> None:
        culprit = it.put(pod("culprit", container(ready=exec_probe()), grace=2, app=Behaviour(term_seconds=None)))
        await it.until(lambda: it.is_ready("culprit"), within=15)
        plant(it, culprit)
        it.world.troubles.begin(it.world.now(), "of the story", culprit)
        it.delete("culprit")
        for _ in range(4):
            it.put(*(pod(name) for name in OTHERS))
            assert await it.until(lambda: it.is_ready(*OTHERS), within=60) <= AT_ONCE + 0.1
            for name in OTHERS:
                it.delete(name)
            assert await it.until(lambda: it.is_gone(*OTHERS), within=60) <= AT_ONCE + 0.1
            await asyncio.sleep(120)
            assert it.agent.health() == ()

    tell(story)


NAMED: dict[str, tuple[Plant, str]] = {
    "a start": (lambda it, uid: it.runtime.faults.hang("start_container", uid), "start_container"),
    "a sandbox": (lambda it, uid: it.runtime.faults.hang("run_sandbox", uid), "run_podsandbox"),
    "a look": (lambda it, uid: it.runtime.faults.hang("pod_record", uid, times=None), "podsandbox_status"),
}


@pytest.mark.parametrize("plant, operation", NAMED.values(), ids=NAMED.keys())
def test_the_culprit_is_named(plant: Plant, operation: str) -> None:
    """Pain 2: k/k 45419; who is slow, and with what."""

    async def story(it: Story) -> None:
        culprit = it.put(pod("culprit"))
        plant(it, culprit)
        it.put(*(pod(name) for name in OTHERS))
        await asyncio.sleep(30)
        slow = it.agent.runtime.slow_calls()
        assert {(call.operation, call.about) for call in slow} <= {(operation, "default/culprit"), (operation, culprit)}
        assert slow
        assert slow[0].seconds >= 20
        assert it.agent.health() == ()

    tell(story)


def test_a_list_that_hangs_is_named_and_pods_still_start_and_stop() -> None:
    """Pain 2: k/k 95750; the runtime's list of all pods never ends, its other calls do."""

    async def story(it: Story) -> None:
        await asyncio.sleep(10)
        it.runtime.faults.hang("list_pods", times=None)
        await asyncio.sleep(300)
        (trouble,) = it.agent.health()
        assert "relist" in trouble
        it.put(*(pod(name) for name in OTHERS))
        assert await it.until(lambda: it.is_ready(*OTHERS), within=60) <= AT_ONCE + 0.1
        for name in OTHERS:
            it.delete(name)
        assert await it.until(lambda: it.is_gone(*OTHERS), within=60) <= AT_ONCE + 0.1
        it.runtime.faults.clear()
        await it.until(lambda: it.agent.health() == (), within=400)

    tell(story)


# 10: bursts start slowly.

BURST = [f"burst-{index:03}" for index in range(100)]
SLOTS = 8
CALLS = 3  # sandbox, create, start


def test_a_burst_is_started_as_a_stream() -> None:
    """Pain 10: k/k 39113, 27385; a hundred pods at once, each runtime call takes a second."""

    def prepare(world: World) -> None:
        world.runtime.delays.update(run_sandbox=1.0, create_container=1.0, start_container=1.0)

    async def story(it: Story) -> None:
        uids = [it.put(pod(name)) for name in BURST]
        await it.until(lambda: it.is_ready(*BURST), within=120)
        started = sorted(life.started or 0.0 for uid in uids for life in it.lives(uid))
        total = len(BURST) * CALLS / SLOTS
        assert started[-1] <= total * 1.1 + AT_ONCE * CALLS
        assert 0.4 <= median(started) / started[-1] <= 0.6
        assert started[0] <= 2 * CALLS

    tell(story, prepare=prepare)


def test_what_makes_pods_ready_is_sent_before_the_rest() -> None:
    """Pain 10: k/k 39113; a slow API and many pods that only tell how they wait: who becomes ready overtakes them."""
    ready, waiting = BURST[:5], BURST[5:]

    async def story(it: Story) -> None:
        it.put(*(pod(name, container(ready=exec_probe(period=1, delay=5))) for name in ready))
        await asyncio.sleep(4)
        it.api.delays.update(get=2.0, patch_status=2.0)
        it.runtime.missing_images.add("absent:v1")
        it.put(*(pod(name, container(image="absent:v1")) for name in waiting))
        await it.until(lambda: it.is_ready(*ready), within=60)
        # The probes say so after some 6 s; the sendings under way, and then their own.
        assert it.world.now() <= 6 + 2 * 4 + AT_ONCE
        await it.until(lambda: all(it.seen(name).status.conditions for name in waiting), within=120)

    tell(story)


# 11: housekeeping blocks new pods.

STUCK: dict[str, Callable[[Story, PodUID], object]] = {
    "directories cannot be listed": lambda it, uid: it.world.volumes.faults.hang("directories", times=None),
    "cgroups cannot be listed": lambda it, uid: it.world.cgroups.faults.hang("list_pods", times=None),
    "a volume does not unmount": lambda it, uid: it.world.volumes.faults.hang("unmount", uid, times=None),
    "a directory cannot be removed": lambda it, uid: it.world.volumes.faults.hang("remove_directory", uid, times=None),
    "a cgroup cannot be removed": lambda it, uid: it.world.cgroups.faults.hang("remove", uid, times=None),
    "the runtime cannot be listed": lambda it, uid: it.runtime.faults.hang("list_pods", times=None),
}


@pytest.mark.parametrize("plant", STUCK.values(), ids=STUCK.keys())
def test_housekeeping_that_hangs_keeps_no_pod_waiting(plant: Callable[[Story, PodUID], object]) -> None:
    """Pain 11: k/k 89936; an orphan's remains cannot be removed, and one pod after the other starts at once."""

    async def story(it: Story) -> None:
        orphan = it.put(pod("orphan"))
        await it.until(lambda: it.is_ready("orphan"), within=3)
        plant(it, orphan)
        it.world.crash(away_seconds=2)
        it.runtime.kill_sandbox(orphan)
        it.delete("orphan", grace=0)
        await asyncio.sleep(4)
        for index in range(12):
            uid = it.put(pod(f"web-{index}"))
            assert await it.until(lambda uid=uid: it.runs(uid), within=10) <= AT_ONCE  # type: ignore[misc]  # bound now
            await asyncio.sleep(0.7)

    tell(story)
