"""Prepare the fork server of worker pools for tests."""

from podkeeper.testing.sim import campaign

# Each process of a pool imports the main module of this process, which is pytest.
campaign.PRELOADED.append("pytest")
