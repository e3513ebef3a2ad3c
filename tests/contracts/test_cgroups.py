"""Every implementation of pod cgroups against their contract."""

import pytest

from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.cgroups import CGROUPS
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.fakes import FakeCgroups
from podkeeper.testing.virtual_time import VirtualClock


def fake() -> Cgroups:
    return FakeCgroups(VirtualClock())


IMPLEMENTATIONS = {"fake": Implementation(opened(fake))}


@pytest.mark.parametrize("scenario", CGROUPS.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[Cgroups], scenario: Scenario[Cgroups]) -> None:
    implementation.check(scenario)
