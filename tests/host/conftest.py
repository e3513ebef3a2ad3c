"""The systemd of the session, for tests that want a real one."""

from collections.abc import Iterator

import pytest

from tests.host.booted import Booted, booted, missing


@pytest.fixture(scope="session")
def systemd() -> Iterator[Booted]:
    """A systemd on cgroups as this machine has them; skipped with the reason where there can be none."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with booted() as made:
        yield made


@pytest.fixture(scope="session")
def unified_systemd() -> Iterator[Booted]:
    """The same, on version 2 alone."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with booted(unified=True) as made:
        yield made
