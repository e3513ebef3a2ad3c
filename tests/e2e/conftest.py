"""What scenarios share."""

import pytest

from podkeeper.runtimes.process.keeper.isolation import probe
from tests.e2e.scripts import Diary
from tests.host.own_cgroups import HERE


@pytest.fixture
def diary(tmp_path_factory: pytest.TempPathFactory) -> Diary:
    """Where the containers of one scenario note what happens."""
    return Diary(tmp_path_factory.mktemp("diary"))


@pytest.fixture
def limited_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where nobody keeps the processes of a pod within their number."""
    if "pids" not in HERE.controllers and not probe(str(tmp_path_factory.mktemp("probe"))).counts:
        pytest.skip(f"neither cgroups nor user namespaces that count processes: {HERE.describe()}")
