"""Let pytest explain the asserts of the contracts, as it does those of tests; and the containerd of the session."""

import pytest

from tests.runtimes.cri.conftest import containerd

__all__ = ["containerd"]

pytest.register_assert_rewrite("podkeeper.testing.contracts")
