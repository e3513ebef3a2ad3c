"""Sieve's three perturbations over whole lives of pods: crash between any two writes, every stale view, missed news.

The fast tests go through everything in one short life, the slow ones in all lives. A failure names the life, what
went wrong in it and where, and shows all that happened.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache

import pytest

from podkeeper.model.engine_metrics import MISSED_EVENTS
from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.perturb import (
    News,
    RuntimeNews,
    crashes,
    missed_news,
    stale_relists,
    time_travels,
)
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.scenes import Stage, Tale
from podkeeper.testing.sim.telling import Original, Perturbation, told_with, undisturbed
from podkeeper.testing.sim.world import World
from tests.sim.sieve_lives import LIVES, MANIFEST, POLITE, app, crash_of_the_app, pod

SHORT = "a job"


@cache
def original(life: str) -> Original:
    return undisturbed(LIVES[life])


def go_through(life: str, perturbations: Iterable[Perturbation], at_least: int) -> None:
    """Tell a life once for each thing that can go wrong in it; `at_least` so many, or the enumeration has no teeth."""
    told = 0
    for perturbation in perturbations:
        failure = told_with(perturbation, LIVES[life], original(life))
        assert failure is None, failure
        told += 1
    assert told >= at_least


# Fast.


def test_a_crash_between_any_two_writes_of_a_short_life_changes_nothing() -> None:
    go_through(SHORT, crashes(original(SHORT), away_seconds=(1.0,)), at_least=100)


def test_every_stale_view_after_a_crash_in_a_short_life_changes_nothing() -> None:
    go_through(SHORT, time_travels(original(SHORT)), at_least=100)


def test_every_stale_list_within_one_life_of_the_agent_changes_nothing() -> None:
    go_through(SHORT, stale_relists(original(SHORT)), at_least=40)


def test_whatever_happens_to_news_of_a_short_life_changes_nothing() -> None:
    go_through(SHORT, missed_news(original(SHORT)), at_least=50)


def test_news_that_was_lost_is_counted() -> None:
    counted: list[float] = []

    async def plot(stage: Stage) -> None:
        await crash_of_the_app(stage)
        counted.append(_missed(stage.world))

    tale = Tale("its app crashes", plot)
    undisturbed_tale = undisturbed(tale)
    for number in range(undisturbed_tale.news):
        assert told_with(RuntimeNews(number, News.LOST), tale, undisturbed_tale) is None
    # What the agent does itself it looks at anyway; of the crash nobody else tells.
    assert (counted[0], sum(counted)) == (0, 1)


def _missed(world: World) -> float:
    assert world.agent is not None
    return world.agent.metrics.registry.get_sample_value(MISSED_EVENTS.name) or 0.0


# The perturbations themselves have teeth.


def test_a_container_that_runs_once_more_is_noticed() -> None:
    assert _told_otherwise(lambda world, uid: world.runtime.end_container(uid, "app", 9)) is not None


def test_a_tale_that_goes_as_ever_is_not_complained_of() -> None:
    assert _told_otherwise(lambda world, uid: None) is None


def _told_otherwise(disturb: Callable[[World, PodUID], None]) -> str | None:
    """Tell of a crash of the app, once as it should be and once with something done at the end of it."""
    tale = Tale("its app crashes", crash_of_the_app)
    expected = undisturbed(tale)

    class _Disturbed:
        def install(self, world: World) -> None:
            def do() -> None:
                pods = [life.uid for life in world.truth.all_running()]
                disturb(world, pods[0])

            world.loop.call_later(expected.seconds - 5.0, do)

    return told_with(_Disturbed(), tale, expected)


# What they found, told on its own.


def test_a_restarted_agent_tells_the_mirror_of_a_former_manifest_nothing_of_the_new_pod() -> None:
    """v2 was written while no agent lived: until its own mirror is there, nobody may take v1's for it."""
    world, shown = World(0), set[tuple[str, str]]()

    def see(change: PodChanged) -> None:
        if change.new is not None and change.by == 2:
            spec, statuses = change.new.spec, change.new.status.container_statuses or ()
            shown.update((spec.containers[0].image or "", each.image) for each in statuses)

    async def story() -> None:
        world.files.write(MANIFEST, pod(app(1), app=POLITE))
        await asyncio.sleep(10)
        world.crash(away_seconds=5)
        world.files.write(MANIFEST, pod(app(2), app=POLITE))
        await asyncio.sleep(30)

    world.bus.subscribe(PodChanged, see)
    assert world.play(story).violation is None
    assert shown == {("app:v2", "app:v2")}


# Slow: nothing is left out.

ALL: dict[str, Callable[[Original], Iterable[Perturbation]]] = {
    "crashes": crashes,
    "time travels": time_travels,
    "stale lists": stale_relists,
    "missed news": missed_news,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("life", LIVES)
def test_nothing_that_goes_wrong_once_changes_how_a_life_ends(life: str, kind: str) -> None:
    go_through(life, ALL[kind](original(life)), at_least=50)
