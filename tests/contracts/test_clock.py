"""Each clock against the clock contract."""

import asyncio

import pytest

from podkeeper.host.clock import SystemClock
from podkeeper.ports.clock import Clock
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.clock import CLOCK
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.virtual_time import VirtualClock


def virtual() -> Clock:
    return VirtualClock()


def system() -> Clock:
    return SystemClock()


IMPLEMENTATIONS = {
    "virtual": Implementation(opened(virtual)),
    "system": Implementation(opened(system), run=asyncio.run),
}


@pytest.mark.parametrize("scenario", CLOCK.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[Clock], scenario: ContractCase[Clock]) -> None:
    implementation.check(scenario)


def test_clocks_with_the_same_seed_return_the_same_fractions() -> None:
    loop = asyncio.new_event_loop()
    first, second = SystemClock(loop, seed=7), SystemClock(loop, seed=7)
    loop.close()
    assert [first.fraction() for _ in range(5)] == [second.fraction() for _ in range(5)]
