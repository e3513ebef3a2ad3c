"""Every implementation of volumes against their contract."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from podkeeper.ports.volumes import Volumes
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.contracts.volumes import VOLUMES
from podkeeper.testing.fakes import FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock
from tests.volumes.volume_house import as_nobody, needs_root, volumes_in_a_house


def fake() -> Volumes:
    return FakeVolumes(VirtualClock())


def run_as_nobody(scene: Coroutine[Any, Any, None]) -> None:
    as_nobody(lambda: asyncio.run(scene))
    scene.close()  # it was played in a process of its own


IMPLEMENTATIONS = [
    pytest.param(Implementation(opened(fake)), id="fake"),
    pytest.param(Implementation(volumes_in_a_house, run=asyncio.run), id="host"),
    pytest.param(
        Implementation(volumes_in_a_house, run=run_as_nobody), id="host, as an ordinary user", marks=needs_root
    ),
]


@pytest.mark.parametrize("scenario", VOLUMES.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_promise_is_kept(implementation: Implementation[Volumes], scenario: Scenario[Volumes]) -> None:
    implementation.check(scenario)
