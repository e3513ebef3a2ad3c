"""Let pytest explain the asserts of the contracts, as it does those of tests; and lend containerd and systemd."""

import pytest

from tests.host.conftest import systemd
from tests.runtimes.cri.conftest import containerd

__all__ = ["containerd", "systemd"]

pytest.register_assert_rewrite("podkeeper.testing.contracts")
