"""The container runtimes of the session, for tests that want a real one, or each of them in turn."""

from collections.abc import Iterator

import pytest

from tests.runtimes.cri import containerd as containerd_node
from tests.runtimes.cri import crio as crio_node
from tests.runtimes.cri.containerd import Containerd
from tests.runtimes.cri.cri_node import CriNode
from tests.runtimes.cri.crio import Crio

AND_CRIO = () if crio_node.left_out() else (pytest.param("crio", marks=pytest.mark.slow),)
KINDS = ("containerd", *AND_CRIO)


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A containerd; skipped with the reason where there can be none."""
    if (reason := containerd_node.missing()) is not None:
        pytest.skip(reason)
    with containerd_node.borrowed() as node:
        yield node


@pytest.fixture(scope="session")
def crio() -> Iterator[Crio]:
    """A CRI-O; skipped with the reason where there can be none."""
    if (reason := crio_node.left_out()) is not None:
        pytest.skip(reason)
    with crio_node.borrowed() as node:
        yield node


@pytest.fixture(scope="session", params=KINDS)
def cri_node(request: pytest.FixtureRequest) -> CriNode:
    """One container runtime after the other."""
    node: CriNode = request.getfixturevalue(request.param)
    return node
