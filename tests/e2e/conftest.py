"""What scenarios share: a node to be played on, once for each kind of runtime, and a diary.

Whoever wants `on_a_node` is played on processes and on containers, unless it says `processes_only` or
`containers_only` (`tests/e2e/kinds.py`).
"""

import pytest

from podkeeper.runtimes.process.keeper.isolation import probe
from tests.e2e.homes import Containers, Processes
from tests.e2e.kinds import EVERY_KIND, PROCESSES, chooses_kind
from tests.e2e.node import OnANode
from tests.e2e.scripts import Diary
from tests.host.own_cgroups import HERE
from tests.runtimes.cri.conftest import containerd, cri_node, crio

__all__ = ["containerd", "cri_node", "crio"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play on every kind of runtime."""
    if "on_a_node" in metafunc.fixturenames and not chooses_kind(metafunc.definition):
        metafunc.parametrize("on_a_node", EVERY_KIND, indirect=True)


@pytest.fixture
def on_a_node(request: pytest.FixtureRequest) -> OnANode:
    """Plays scenarios on one kind of runtime."""
    if request.param == PROCESSES:
        return OnANode(Processes())
    return OnANode(Containers(request.getfixturevalue(request.param)))


@pytest.fixture
def diary(tmp_path_factory: pytest.TempPathFactory) -> Diary:
    """Where the containers of one scenario note what happens."""
    return Diary(tmp_path_factory.mktemp("diary"))


@pytest.fixture
def limited_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where nobody keeps the processes of a pod within their number."""
    if "pids" not in HERE.controllers and not probe(str(tmp_path_factory.mktemp("probe"))).counts:
        pytest.skip(f"neither cgroups nor user namespaces that count processes: {HERE.describe()}")
