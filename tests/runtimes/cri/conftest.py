"""Fixtures: the real container runtimes of the test session."""

from collections.abc import Iterator

import pytest

from tests.runtimes.cri import containerd as containerd_node
from tests.runtimes.cri import crio as crio_node
from tests.runtimes.cri.containerd import Containerd
from tests.runtimes.cri.cri_node import CriNode
from tests.runtimes.cri.crio import Crio

AND_CRIO = () if crio_node.why_skipped() else (pytest.param("crio", marks=pytest.mark.slow),)
KINDS = ("containerd", *AND_CRIO)


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A containerd. Skips the test with a reason if the machine cannot run it."""
    if (reason := containerd_node.missing()) is not None:
        pytest.skip(reason)
    with containerd_node.shared_instance() as node:
        yield node


@pytest.fixture(scope="session")
def crio() -> Iterator[Crio]:
    """A CRI-O. Skips the test with a reason if the machine cannot run it."""
    if (reason := crio_node.why_skipped()) is not None:
        pytest.skip(reason)
    with crio_node.shared_instance() as node:
        yield node


@pytest.fixture(scope="session", params=KINDS)
def cri_node(request: pytest.FixtureRequest) -> CriNode:
    """Each container runtime in turn."""
    node: CriNode = request.getfixturevalue(request.param)
    return node
