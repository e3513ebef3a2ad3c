"""A real systemd for the session."""

from collections.abc import Iterator

import pytest

from tests.host.booted import BootedSystemd, booted, missing


@pytest.fixture(scope="session")
def systemd() -> Iterator[BootedSystemd]:
    """A booted systemd with the cgroup version of this machine. Skip if it cannot be booted."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with booted() as systemd:
        yield systemd


@pytest.fixture(scope="session")
def unified_systemd() -> Iterator[BootedSystemd]:
    """A booted systemd with cgroup version 2 only."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with booted(unified=True) as systemd:
        yield systemd
