"""A few seeds of the simulation. `make sim` and `podkeeper sim` run more."""

from collections import Counter
from itertools import pairwise

import pytest

from podkeeper.testing.sim.campaign import SeedResult, WorkerPool
from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.run import SimPlan
from tests.sim.fork_server import stop_fork_server

SEEDS = range(4)


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    """Run the seeds once for all tests here."""
    with WorkerPool(jobs=1) as crew:
        return sorted(crew.results(SimPlan(seed=seed, hours=1) for seed in SEEDS), key=lambda result: result.plan.seed)


def test_no_invariant_is_violated(results: list[SeedResult]) -> None:
    assert [(result.plan.seed, str(result.violation)) for result in results if result.violation is not None] == []


def test_every_invariant_is_checked_and_every_fault_happens(results: list[SeedResult]) -> None:
    checks = sum((result.checks for result in results), Counter[str]())
    fault_counts = sum((result.fault_counts for result in results), Counter[str]())
    assert (sorted(INVARIANTS.keys() - checks.keys()), sorted(FAULTS.keys() - fault_counts.keys())) == ([], [])


def test_the_node_is_busy(results: list[SeedResult]) -> None:
    assert sum(result.pods_alive for result in results) / len(results) >= 8


def test_each_seed_has_its_own_hash_which_is_the_same_in_another_process(results: list[SeedResult]) -> None:
    assert all(one.hash != other.hash for one, other in pairwise(results))
    stop_fork_server()
    with WorkerPool(jobs=1) as crew:
        (again,) = crew.results([SimPlan(seed=SEEDS[-1], hours=1)])
    assert again.hash == results[-1].hash
