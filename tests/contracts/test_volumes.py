"""Each implementation of volumes against the volumes contract."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from podkeeper.ports.volumes import Volumes
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.volumes import VOLUMES
from podkeeper.testing.fakes import FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock
from tests.volumes.harness import as_unprivileged_user, needs_root, temporary_volumes


def fake() -> Volumes:
    return FakeVolumes(VirtualClock())


def run_as_unprivileged_user(scenario: Coroutine[Any, Any, None]) -> None:
    as_unprivileged_user(lambda: asyncio.run(scenario))
    scenario.close()  # it ran in a child process


IMPLEMENTATIONS = [
    pytest.param(Implementation(opened(fake)), id="fake"),
    pytest.param(Implementation(temporary_volumes, run=asyncio.run), id="host"),
    pytest.param(
        Implementation(temporary_volumes, run=run_as_unprivileged_user), id="host, as another user", marks=needs_root
    ),
]


@pytest.mark.parametrize("scenario", VOLUMES.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_contract(implementation: Implementation[Volumes], scenario: ContractCase[Volumes]) -> None:
    implementation.check(scenario)
