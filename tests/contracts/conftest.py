"""Fixtures for container runtimes and systemd, and pytest's assert messages inside the contracts."""

import pytest

from tests.host.conftest import systemd
from tests.runtimes.cri.conftest import containerd, cri_node, crio

__all__ = ["containerd", "cri_node", "crio", "systemd"]

pytest.register_assert_rewrite("podkeeper.testing.contracts")
