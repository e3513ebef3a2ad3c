"""The containerd of the session, for tests that want a real one."""

from collections.abc import Iterator

import pytest

from tests.runtimes.cri.containerd import Containerd, borrowed, missing


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A containerd; skipped with the reason where there can be none."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with borrowed() as node:
        yield node
