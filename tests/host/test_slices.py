"""Pod cgroups as slices of a real systemd."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.host import slice_scenarios
from tests.host.booted import BootedSystemd


@pytest.mark.parametrize("scenario", slice_scenarios.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_slices_of_a_real_systemd(systemd: BootedSystemd, scenario: Callable[..., Any]) -> None:
    if systemd.version != 1:
        pytest.skip("the scenarios check files of version 1")
    systemd.run_scenario(scenario)


def test_systemd_gets_the_limits_of_version_2(unified_systemd: BootedSystemd) -> None:
    unified_systemd.run_scenario(slice_scenarios.systemd_gets_the_limits_of_version_2)
