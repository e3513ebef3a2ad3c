"""Pods' cgroups as slices of a real systemd."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.host import slice_scenes
from tests.host.booted import Booted


@pytest.mark.parametrize("scene", slice_scenes.SCENES, ids=lambda scene: scene.__name__)
def test_with_a_real_systemd(systemd: Booted, scene: Callable[..., Any]) -> None:
    if systemd.version != 1:
        pytest.skip("the scenes look at the kernel's files of version 1")
    systemd.play(scene)


def test_systemd_is_told_what_version_2_calls_the_limits(unified_systemd: Booted) -> None:
    unified_systemd.play(slice_scenes.systemd_is_told_what_version_2_calls_the_limits)
