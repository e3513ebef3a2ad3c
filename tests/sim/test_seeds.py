"""A slice of the simulation: whole nodes from a few seeds. `.ci/run` plays more, `podkeeper sim` any number."""

from collections import Counter
from itertools import pairwise

import pytest

from podkeeper.testing.sim.campaign import Crew, SeedResult
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.mischief import FAULTS
from podkeeper.testing.sim.play import Plan

SEEDS = range(4)


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    """The seeds, played once for all tests here."""
    with Crew(jobs=1) as crew:
        return sorted(crew.results(Plan(seed=seed, hours=1) for seed in SEEDS), key=lambda result: result.plan.seed)


def test_no_promise_is_broken(results: list[SeedResult]) -> None:
    assert [(result.plan.seed, str(result.violation)) for result in results if result.violation is not None] == []


def test_every_promise_is_put_to_the_test_and_every_kind_of_trouble_is_made(results: list[SeedResult]) -> None:
    checks = sum((result.checks for result in results), Counter[str]())
    troubles = sum((result.troubles for result in results), Counter[str]())
    assert (sorted(INVARIANTS.keys() - checks.keys()), sorted(FAULTS.keys() - troubles.keys())) == ([], [])


def test_the_node_is_busy(results: list[SeedResult]) -> None:
    assert sum(result.pods_alive for result in results) / len(results) >= 8


def test_each_seed_is_another_history_and_the_same_one_in_another_process(results: list[SeedResult]) -> None:
    assert all(one.hash != other.hash for one, other in pairwise(results))
    with Crew(jobs=1) as crew:
        (again,) = crew.results([Plan(seed=SEEDS[-1], hours=1)])
    assert again.hash == results[-1].hash
