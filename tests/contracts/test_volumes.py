"""Every implementation of volumes against their contract."""

import pytest

from podkeeper.ports.volumes import Volumes
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.contracts.volumes import VOLUMES
from podkeeper.testing.fakes import FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock


def fake() -> Volumes:
    return FakeVolumes(VirtualClock())


IMPLEMENTATIONS = {"fake": Implementation(opened(fake))}


@pytest.mark.parametrize("scenario", VOLUMES.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[Volumes], scenario: Scenario[Volumes]) -> None:
    implementation.check(scenario)
