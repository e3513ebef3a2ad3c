"""Let pytest explain the asserts of the contracts, as it does those of tests."""

import pytest

pytest.register_assert_rewrite("podkeeper.testing.contracts")
