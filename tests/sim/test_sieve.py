"""Sieve's three perturbations of short scenarios: crashes between writes, stale views, missed events.

The fast tests enumerate everything for one short scenario, the slow ones for all. A failure prints the scenario, the
perturbation and the whole trace.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache

import pytest

from podkeeper.model.engine_metrics import MISSED_EVENTS
from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.perturb import (
    EventPerturbation,
    PerturbedEvent,
    crashes,
    missed_events,
    stale_relists,
    time_travels,
)
from podkeeper.testing.sim.perturbed_run import Baseline, Perturbation, baseline_of, run_with
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.scenario import Scenario, ScenarioRun
from podkeeper.testing.sim.world import World
from tests.sim.sieve_scenarios import MANIFEST, POLITE, SCENARIOS, app, crash_of_the_app, pod

SHORT = "a job"


@cache
def baseline(run: str) -> Baseline:
    return baseline_of(SCENARIOS[run])


def run_all(run: str, perturbations: Iterable[Perturbation], at_least: int) -> None:
    """Run a scenario with each perturbation. There must be at least `at_least` of them."""
    count = 0
    for perturbation in perturbations:
        failure = run_with(perturbation, SCENARIOS[run], baseline(run))
        assert failure is None, failure
        count += 1
    assert count >= at_least


# Fast.


def test_a_crash_between_any_two_writes_changes_nothing() -> None:
    run_all(SHORT, crashes(baseline(SHORT), downtime_seconds=(1.0,)), at_least=100)


def test_every_stale_view_after_a_crash_changes_nothing() -> None:
    run_all(SHORT, time_travels(baseline(SHORT)), at_least=100)


def test_every_stale_list_within_one_agent_process_changes_nothing() -> None:
    run_all(SHORT, stale_relists(baseline(SHORT)), at_least=40)


def test_lost_late_and_repeated_events_change_nothing() -> None:
    run_all(SHORT, missed_events(baseline(SHORT)), at_least=50)


def test_lost_events_are_counted() -> None:
    counted: list[float] = []

    async def script(run: ScenarioRun) -> None:
        await crash_of_the_app(run)
        counted.append(_missed(run.world))

    scenario = Scenario("its app crashes", script)
    undisturbed = baseline_of(scenario)
    for number in range(undisturbed.events):
        assert run_with(PerturbedEvent(number, EventPerturbation.LOST), scenario, undisturbed) is None
    # The agent inspects after its own calls. Only the event reports the crash.
    assert (counted[0], sum(counted)) == (0, 1)


def _missed(world: World) -> float:
    assert world.agent is not None
    return world.agent.engine.metrics.registry.get_sample_value(MISSED_EVENTS.name) or 0.0


# The comparison finds differences.


def test_an_additional_run_of_a_container_is_reported() -> None:
    assert _run_disturbed(lambda world, uid: world.runtime.end_container(uid, "app", 9)) is not None


def test_an_unchanged_scenario_has_no_difference() -> None:
    assert _run_disturbed(lambda world, uid: None) is None


def _run_disturbed(disturb: Callable[[World, PodUID], None]) -> str | None:
    """Run `crash_of_the_app` with a disturbance at its end."""
    scenario = Scenario("its app crashes", crash_of_the_app)
    expected = baseline_of(scenario)

    class _Disturbed:
        def install(self, world: World) -> None:
            def do() -> None:
                pods = [run.uid for run in world.truth.all_running()]
                disturb(world, pods[0])

            world.loop.call_later(expected.seconds - 5.0, do)

    return run_with(_Disturbed(), scenario, expected)


# A bug that they found.


def test_a_restarted_agent_does_not_update_the_mirror_of_the_former_manifest() -> None:
    """v2 was written while no agent ran. Until its own mirror exists, the mirror of v1 must not show it."""
    world, shown = World(0), set[tuple[str, str]]()

    def see(change: PodChanged) -> None:
        if change.new is not None and change.by == 2:
            spec, statuses = change.new.spec, change.new.status.container_statuses or ()
            shown.update((spec.containers[0].image or "", each.image) for each in statuses)

    async def scenario() -> None:
        world.files.write(MANIFEST, pod(app(1), behaviours={"app": POLITE}))
        await asyncio.sleep(10)
        world.crash(downtime_seconds=5)
        world.files.write(MANIFEST, pod(app(2), behaviours={"app": POLITE}))
        await asyncio.sleep(30)

    world.bus.subscribe(PodChanged, see)
    assert world.run(scenario).violation is None
    assert shown == {("app:v2", "app:v2")}


# Slow: all perturbations of all scenarios.

ALL: dict[str, Callable[[Baseline], Iterable[Perturbation]]] = {
    "crashes": crashes,
    "time travels": time_travels,
    "stale lists": stale_relists,
    "missed events": missed_events,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("run", SCENARIOS)
def test_no_single_perturbation_changes_the_result(run: str, kind: str) -> None:
    run_all(run, ALL[kind](baseline(run)), at_least=50)
