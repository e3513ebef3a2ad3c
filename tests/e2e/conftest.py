"""Fixtures of the scenarios: a node for each kind of runtime, and an event log.

A test with `run_on_node` runs on processes and on containers, unless a mark of `runtime_kinds.py` selects some of them,
such as `processes_only` or `containers_only`.
"""

import pytest

from podkeeper.runtimes.process.keeper.isolation import probe
from tests.e2e.backends import CriBackend, ProcessBackend
from tests.e2e.node import ScenarioRunner
from tests.e2e.runtime_kinds import ALL_RUNTIMES, PROCESS, selects_runtime
from tests.e2e.scripts import EventLog
from tests.host.own_cgroups import HERE
from tests.runtimes.cri.conftest import containerd, cri_node, crio

__all__ = ["containerd", "cri_node", "crio"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run scenarios on every kind of runtime."""
    if "run_on_node" in metafunc.fixturenames and not selects_runtime(metafunc.definition):
        metafunc.parametrize("run_on_node", ALL_RUNTIMES, indirect=True)


@pytest.fixture
def run_on_node(request: pytest.FixtureRequest) -> ScenarioRunner:
    """Runs scenarios on one kind of runtime."""
    if request.param == PROCESS:
        return ScenarioRunner(ProcessBackend())
    return ScenarioRunner(CriBackend(request.getfixturevalue(request.param)))


@pytest.fixture
def event_log(tmp_path_factory: pytest.TempPathFactory) -> EventLog:
    """The file in which the containers of one scenario record events."""
    return EventLog(tmp_path_factory.mktemp("events"))


@pytest.fixture
def limited_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if the number of processes of a pod cannot be limited."""
    if "pids" not in HERE.controllers and not probe(str(tmp_path_factory.mktemp("probe"))).counts:
        pytest.skip(f"neither cgroups nor user namespaces that count processes: {HERE.describe()}")
