"""Each implementation of pod cgroups against the contract."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.cgroups import CGROUPS
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.fakes import FakeCgroups
from podkeeper.testing.virtual_time import VirtualClock
from tests.host.booted import BootedSystemd
from tests.host.own_cgroups import needs_cgroups, own_cgroups
from tests.host.slice_scenarios import contract


def fake() -> Cgroups:
    return FakeCgroups(VirtualClock())


@asynccontextmanager
async def host() -> AsyncIterator[Cgroups]:
    """The cgroups of this machine, below a root for this test."""
    with own_cgroups() as (cgroups, _):
        yield cgroups


IMPLEMENTATIONS = [
    pytest.param(Implementation(opened(fake)), id="fake"),
    pytest.param(Implementation(host, run=asyncio.run), id="host", marks=needs_cgroups),
]


@pytest.mark.parametrize("scenario", CGROUPS.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_contract(implementation: Implementation[Cgroups], scenario: ContractCase[Cgroups]) -> None:
    implementation.check(scenario)


@pytest.mark.parametrize("scenario", CGROUPS.scenarios, ids=name_of)
def test_contract_on_systemd_slices(systemd: BootedSystemd, scenario: ContractCase[Cgroups]) -> None:
    systemd.run_scenario(contract, scenario.__name__)
