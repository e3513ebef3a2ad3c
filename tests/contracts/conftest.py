"""Let pytest explain the asserts of the contracts, as it does those of tests; lend container runtimes and systemd."""

import pytest

from tests.host.conftest import systemd
from tests.runtimes.cri.conftest import containerd, cri_node, crio

__all__ = ["containerd", "cri_node", "crio", "systemd"]

pytest.register_assert_rewrite("podkeeper.testing.contracts")
