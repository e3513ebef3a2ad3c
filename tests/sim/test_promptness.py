"""Promptness: who is late without excuse is found, and nobody else."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.invariants.promptness import Promptness
from tests.sim.stories import Story, container, pod
from tests.sim.watching import Misdeed, broken, play


def hang(it: Story, uid: PodUID, seconds: float) -> None:
    """One pod's calls hang from now on."""
    for operation in ("run_sandbox", "create_container", "start_container", "stop_container", "pod_record"):
        it.runtime.faults.hang(operation, uid, times=None)
    it.world.trouble("hung-calls", seconds, it.runtime.faults.clear, uid)


def slow(it: Story, operation: str, seconds: float = 12.0) -> None:
    """The agent is slow at something, and nothing excuses it."""
    it.runtime.delays[operation] = seconds


async def a_pod_starts_late(it: Story) -> None:
    slow(it, "run_sandbox")
    it.put(pod("late"))
    await asyncio.sleep(20)


async def a_pod_starts_late_beside_one_that_hangs(it: Story) -> None:
    hang(it, it.uid("web"), 100)
    await a_pod_starts_late(it)


async def a_pod_leaves_late(it: Story) -> None:
    slow(it, "stop_sandbox", 60)
    it.delete("web")
    await asyncio.sleep(70)


async def a_container_starts_again_late(it: Story) -> None:
    slow(it, "create_container")
    it.runtime.end_container(it.uid("web"), "app", 1)
    await asyncio.sleep(20)


async def a_static_pod_waits_for_the_api(it: Story) -> None:
    it.world.trouble("api-down", 60, lambda: None)
    slow(it, "run_sandbox")
    it.write("/late.yaml", pod("late"))
    await asyncio.sleep(20)


async def a_static_pod_waits_for_the_api_to_run_again(it: Story) -> None:
    it.world.trouble("api-down", 60, lambda: None)
    slow(it, "create_container")
    (static,) = it.world.files.pods()
    it.runtime.end_container(PodUID(static.metadata.uid or ""), "app", 1)
    await asyncio.sleep(20)


async def a_successor_starts_late(it: Story) -> None:
    slow(it, "create_container")
    it.write("/static.yaml", pod("static", container(image="app:v2")))
    await asyncio.sleep(30)


LATE = {
    "a pod starts late":                            (a_pod_starts_late, "I8"),
    "late because of another pod's hung calls":     (a_pod_starts_late_beside_one_that_hangs, "I8"),
    "a deleted pod leaves late":                    (a_pod_leaves_late, "I8"),
    "a container starts again late":                (a_container_starts_again_late, "I8"),
    "a successor starts late":                      (a_successor_starts_late, "I8"),
    "a static pod waits for the API":               (a_static_pod_waits_for_the_api, "I14"),
    "a static pod that crashed waits for the API":  (a_static_pod_waits_for_the_api_to_run_again, "I14"),
}  # fmt: skip


async def some_pods(it: Story) -> None:
    it.put(pod("web"), pod("beside"))
    it.write("/static.yaml", pod("static", app=Behaviour(term_seconds=4)))
    await asyncio.sleep(30)


@pytest.mark.parametrize("late, invariant", LATE.values(), ids=LATE.keys())
def test_who_is_late_without_excuse_is_found(late: Misdeed, invariant: str) -> None:
    async def story(it: Story) -> None:
        await some_pods(it)
        await late(it)

    assert broken(play(story, Promptness)) == invariant


def test_who_has_trouble_of_his_own_is_not_blamed() -> None:
    async def story(it: Story) -> None:
        await some_pods(it)
        hang(it, it.uid("web"), 200)
        it.delete("web")
        await asyncio.sleep(100)
        it.world.crash()
        it.put(pod("unnoticed"))
        await asyncio.sleep(100)

    assert play(story, Promptness).violation is None


def test_one_pods_hung_calls_delay_no_other() -> None:
    async def story(it: Story) -> None:
        await some_pods(it)
        hang(it, it.uid("web"), 400)
        it.runtime.end_container(it.uid("web"), "app", 1)
        it.put(pod("new", init=(container("first"),), first=Behaviour(after_seconds=1)))
        await asyncio.sleep(10)
        it.runtime.end_container(it.uid("beside"), "app", 1)
        it.delete("new")
        await asyncio.sleep(60)

    verdict = play(story, Promptness)
    assert verdict.violation is None
    assert verdict.checks["I8"] >= 3


def test_static_pods_start_change_and_recover_while_the_api_is_away() -> None:
    async def story(it: Story) -> None:
        await some_pods(it)
        it.api.go_down()
        it.world.trouble("api-down", 300, it.api.come_up)
        await asyncio.sleep(20)
        new = it.write("/new.yaml", pod("new"))
        await asyncio.sleep(10)
        it.runtime.end_container(new, "app", 1)
        it.write("/static.yaml", pod("static", container(image="app:v2")))
        await asyncio.sleep(100)

    verdict = play(story, Promptness)
    assert verdict.violation is None
    assert verdict.checks["I14"] >= 3


def test_a_lost_event_costs_no_more_than_a_relist() -> None:
    async def story(it: Story) -> None:
        await some_pods(it)
        it.runtime.filter_events(lambda event: ())
        it.world.trouble("lost-events", 5, lambda: it.runtime.filter_events(None))
        it.runtime.end_container(it.uid("web"), "app", 1)
        await asyncio.sleep(100)
        assert len(it.lives(it.uid("web"))) == 2

    verdict = play(story, Promptness)
    assert verdict.violation is None
    assert verdict.checks["I8"] >= 1
